"""Meshes to try: all that divide, and the formulas that order them."""

import dataclasses
import math

from absl.testing import parameterized

from agentrl_jax.model.sharding import MESH_AXES
from launch.config.settings import Settings
from launch.planning.chips import parse_slice
from launch.planning.formulas import (
  estimate,
  estimates,
  exchanged,
  exchanged_between_slices,
  meshes,
  shape_name,
  state_bytes,
  summed,
  with_mesh,
  with_rows,
)
from tests.launch.planning.models import pod_settings

V5P_64 = parse_slice("v5p-64")
TWO_SLICES = parse_slice("2xv5p-64")


def _settings(name: str = "qwen2.5-14b") -> Settings:
  return pod_settings(name)


def _over(settings: Settings, axis: str) -> Settings:
  slices = dataclasses.replace(settings.slices, over_slices=axis)
  return dataclasses.replace(settings, slices=slices)


def _with_batch(settings: Settings, **changes: int) -> Settings:
  return dataclasses.replace(
    settings, batch=dataclasses.replace(settings.batch, **changes)
  )


def _mesh(**sizes: int) -> dict[str, int]:
  return dict.fromkeys(MESH_AXES, 1) | sizes


class MeshesTest(parameterized.TestCase):
  def test_all_meshes_of_a_slice_use_all_chips_and_divide_the_model(self):
    found = list(meshes(_settings(), 32))
    self.assertEqual({math.prod(mesh.values()) for mesh in found}, {32})
    # 5 twos over 4 axes, without the 8 key/value heads over more than 8.
    self.assertLen(found, 56 - 4)
    known = [_mesh(fsdp=8, tensor=4), _mesh(fsdp=2, tensor=16)]
    self.assertEqual([mesh in found for mesh in known], [True, False])

  def test_no_mesh_splits_a_width_that_it_does_not_divide(self):
    found = meshes(_settings("qwen2.5-0.5b"), 256)  # 896 wide
    self.assertEqual(max(mesh["fsdp"] for mesh in found), 128)

  def test_rows_follow_the_mesh(self):
    rows = [
      with_mesh(with_rows(_settings(), number), mesh).batch.micro_batch
      for number, mesh in ((32, _mesh(fsdp=8, tensor=4)), (8, _mesh(fsdp=32)))
    ]
    self.assertEqual(rows, [32, 32])

  @parameterized.parameters("data", "fsdp")
  def test_only_meshes_that_slices_divide_are_tried(self, over):
    found = estimates(_over(_settings(), over), TWO_SLICES)
    self.assertNotEmpty(found)
    for one in found:
      self.assertEqual(math.prod(one.mesh.values()), 64)
      self.assertEqual(one.mesh[over] % 2, 0)

  def test_meshes_that_fit_come_first_and_of_these_the_fastest(self):
    found = estimates(_settings(), V5P_64)
    fitting = [one.fits for one in found]
    self.assertEqual(fitting, sorted(fitting, reverse=True))
    times = [e.roofline.step_s / e.tokens for e in found if e.fits]
    self.assertEqual(times, sorted(times))
    (whole,) = (e for e in found if e.mesh == _mesh(data=32))
    self.assertFalse(whole.fits)


class FormulasTest(parameterized.TestCase):
  def test_fully_sharded_weights_move_three_times(self):
    settings = with_mesh(_settings(), _mesh(fsdp=32))
    self.assertAlmostEqual(
      exchanged(settings) / (3 * 2 * 14.77e9 * 31 / 32), 1, 2
    )

  def test_gradients_of_shares_that_are_no_whole_tiles_are_summed(self):
    weights = 2 * 14.77e9
    for fsdp, share in ((32, 0), (64, 0), (128, 127 / 128), (256, 255 / 256)):
      settings = with_mesh(_settings(), _mesh(fsdp=fsdp))  # of width 5120
      self.assertAlmostEqual(summed(settings) / weights, share, 2)

  def test_copies_move_gradients_only(self):
    settings = with_mesh(_settings(), _mesh(data=32))
    self.assertAlmostEqual(exchanged(settings) / (2 * 2 * 14.77e9), 1, 2)

  @parameterized.parameters(
    # Gradients of 1 / 16 of the weights, summed over two slices; 4 bytes each
    # for the embedding.
    ("data", {"data": 2, "fsdp": 16}, (2 * 13.99e9 + 4 * 0.779e9) / 16),
    ("data", {"data": 4, "fsdp": 16}, (2 * 13.99e9 + 4 * 0.779e9) / 32),
    ("data", {"data": 2, "fsdp": 8, "sequence": 4}, 31.10e9 / 32),
    ("data", {"data": 2, "fsdp": 8, "tensor": 2}, 31.10e9 / 16),
    # Layers are gathered twice and summed, the output matrix gathered and
    # scattered, and each chip's row of 8192 embedded tokens moved both ways.
    ("fsdp", {"fsdp": 32}, (4 * 13.21e9 + 2 * 0.779e9) / 16 + 2 * 8192 * 5120),
  )
  def test_between_slices_each_chip_moves_its_share(self, over, mesh, wanted):
    settings = with_mesh(_over(_settings(), over), _mesh(**mesh))
    found = exchanged_between_slices(settings, 2)
    self.assertAlmostEqual(found / wanted, 1, 2)

  def test_one_slice_moves_nothing_between_slices(self):
    settings = with_mesh(_settings(), _mesh(data=2, fsdp=16))
    self.assertEqual(exchanged_between_slices(settings, 1), 0)

  def test_short_rows_are_bound_by_the_network(self):
    settings = _with_batch(_settings(), row_length=512)
    mesh, slices = _mesh(data=2, fsdp=4), parse_slice("2xv5p-8")
    one = estimate(settings, mesh, parse_slice("v5p-16"))
    two = estimate(settings, mesh, slices)
    self.assertGreater(two.roofline.step_s, one.roofline.step_s)
    split = estimate(_over(settings, "fsdp"), _mesh(fsdp=8), slices)
    self.assertGreater(split.roofline.step_s, two.roofline.step_s)

  def test_a_row_over_several_chips_waits_for_its_last_tokens(self):
    settings = _with_batch(_settings(), row_length=131072)
    whole = estimate(settings, _mesh(fsdp=32), V5P_64)
    split = estimate(settings, _mesh(fsdp=8, sequence=4), V5P_64)
    # Attention is three fifths of the work, and of its mean takes 7 / 4.
    ratio = split.roofline.step_s / split.tokens / whole.roofline.step_s
    self.assertBetween(ratio * whole.tokens, 1.3, 1.6)

  def test_state_is_eighteen_bytes_of_a_weight(self):
    settings = with_mesh(_settings(), _mesh(fsdp=32))
    self.assertAlmostEqual(state_bytes(settings) / (18 * 14.77e9 / 32), 1, 2)

  def test_states_take_more_in_trees(self):
    settings = _settings("qwen3.5-27b")
    row, tree = (
      estimate(_with_batch(settings, sharing=n), _mesh(fsdp=32), V5P_64)
      for n in (1, 8)
    )
    # 18 KiB and 409,600 operations more, a token and head of 128 channels.
    heads = 8192 * 48
    self.assertEqual(tree.num_bytes - row.num_bytes, 18 * 1024 * heads)
    more_s = tree.roofline.compute_s - row.roofline.compute_s
    due_s = 4 * 48 * heads * 409_600 / V5P_64.chip.flops
    self.assertAlmostEqual(more_s / due_s, 1, 5)

  def test_names_leave_out_what_is_not_split(self):
    names = [shape_name(_mesh(**of)) for of in ({"fsdp": 8, "tensor": 4}, {})]
    self.assertEqual(names, ["fsdp=8 tensor=4", "one chip"])
