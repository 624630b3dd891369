"""Meshes to try: all that divide, and the formulas that order them."""

import dataclasses
import math

from absl.testing import parameterized

from agentrl_jax.model.sharding import MESH_AXES
from launch.config.settings import Settings
from launch.planning.chips import GIB, parse_slice
from launch.planning.compiled import Compiled, Memory
from launch.planning.roofline import Flops, Roofline
from launch.planning.search import (
  estimate,
  exchanged,
  exchanged_between_slices,
  largest,
  meshes,
  search,
  shape_name,
  state_bytes,
  summed,
  with_mesh,
  with_rows,
  with_slots,
)
from launch.planning.study import RESERVE, Deployment, Judgement
from tests.launch.planning.models import pod_settings

V5P_64 = parse_slice("v5p-64")
TWO_SLICES = parse_slice("2xv5p-64")
V6E_8 = parse_slice("v6e-8")
ROOM = V6E_8.chip.memory * (1 - RESERVE)
NOTHING = Memory(arguments=0, outputs=0, aliased=0, temporaries=0, code=0)


def _settings(name: str = "qwen2.5-14b") -> Settings:
  return pod_settings(name)


def _over(settings: Settings, axis: str) -> Settings:
  slices = dataclasses.replace(settings.slices, over=axis)
  return dataclasses.replace(settings, slices=slices)


def _mesh(**sizes: int) -> dict[str, int]:
  return dict.fromkeys(MESH_AXES, 1) | sizes


class MeshesTest(parameterized.TestCase):
  def test_all_meshes_of_a_slice_use_all_chips_and_divide_the_model(self):
    settings = _settings()
    found = list(meshes(settings, 32))
    self.assertTrue(all(math.prod(m.values()) == 32 for m in found))
    # 5 twos over 4 axes, without the 8 key/value heads over more than 8.
    self.assertLen(found, 56 - 4)
    self.assertIn(_mesh(fsdp=8, tensor=4), found)
    self.assertNotIn(_mesh(fsdp=2, tensor=16), found)

  def test_no_mesh_splits_a_width_that_it_does_not_divide(self):
    settings = _settings("qwen2.5-0.5b")  # 896 wide
    shares = {mesh["fsdp"] for mesh in meshes(settings, 256)}
    self.assertEqual(max(shares), 128)

  def test_rows_follow_the_mesh(self):
    settings = _settings()  # 32 rows
    changed = with_mesh(settings, _mesh(fsdp=8, tensor=4))
    self.assertEqual(changed.batch.micro_batch, 32)
    few = with_rows(settings, 8)
    changed = with_mesh(few, _mesh(fsdp=32))
    self.assertEqual(changed.batch.micro_batch, 32)

  def test_slots_of_all_policy_slots_grow_together(self):
    settings = _settings()
    first, second = settings.engine.slots
    changed = with_slots(settings, 2 * first)
    self.assertEqual(changed.engine.slots, (2 * first, 2 * second))


def _judged(seconds: float) -> Judgement:
  return Judgement(
    name="gradient",
    slice_=V5P_64,
    compiled=Compiled(memory=NOTHING, wanted=0),
    beside={},
    tokens=1000,
    flops=Flops(1, 1),
    roofline=Roofline(
      compute_s=seconds, memory_s=0, links_s=0, waiting_s=0, network_s=0
    ),
  )


class _Compiler:
  """In place of minutes of compiling: every mesh takes a second."""

  def __init__(self, deployment: Deployment):
    self.deployment = deployment

  def programs(self, settings, roles):
    return [settings.mesh]

  def judge(self, settings, program):
    return _judged(1.0)


class RankTest(parameterized.TestCase):
  @parameterized.parameters((0.5, 0), (2.0, -1))
  def test_the_mesh_of_the_config_stands_where_it_belongs(self, own_s, place):
    settings = _settings()
    told = []
    ranked = search(
      _Compiler(Deployment(learner=V5P_64)),
      settings,
      num_compiled=99,
      own=_judged(own_s),
      tell=told.append,
    )
    self.assertLen(ranked, len(list(meshes(settings, 32))))
    self.assertTrue(ranked[place].is_own)
    self.assertEqual(ranked[place].mesh, settings.mesh)
    self.assertNotIn(shape_name(settings.mesh), told)

  def test_where_the_compiler_dies_the_next_mesh_is_tried(self):
    died = Compiled(memory=None, wanted=0, failure="it died")
    own = dataclasses.replace(_judged(0.1), compiled=died, roofline=None)
    compiler = _Compiler(Deployment(learner=V5P_64))
    ranked = search(compiler, _settings(), num_compiled=2, own=own)
    self.assertEqual([c.judged.fits for c in ranked], [True, True, False])
    self.assertTrue(ranked[-1].is_own)

  def test_only_meshes_that_slices_divide_are_tried(self):
    compiler = _Compiler(Deployment(learner=TWO_SLICES))
    for over in ("data", "fsdp"):
      settings = _over(_settings(), over)
      ranked = search(compiler, settings, num_compiled=999)
      self.assertNotEmpty(ranked)
      for one in ranked:
        self.assertEqual(math.prod(one.mesh.values()), 64)
        self.assertEqual(one.mesh[over] % 2, 0)


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
    settings = _settings()
    batch = dataclasses.replace(settings.batch, row_length=512)
    settings = dataclasses.replace(settings, batch=batch)
    mesh, slices = _mesh(data=2, fsdp=4), parse_slice("2xv5p-8")
    one = estimate(settings, mesh, parse_slice("v5p-16"))
    two = estimate(settings, mesh, slices)
    self.assertGreater(two.estimate_s, one.estimate_s)
    split = estimate(_over(settings, "fsdp"), _mesh(fsdp=8), slices)
    self.assertGreater(split.estimate_s, two.estimate_s)

  def test_a_row_over_several_chips_waits_for_its_last_tokens(self):
    settings = _settings()
    batch = dataclasses.replace(settings.batch, row_length=131072)
    settings = dataclasses.replace(settings, batch=batch)
    whole = estimate(settings, _mesh(fsdp=32), V5P_64)
    split = estimate(settings, _mesh(fsdp=8, sequence=4), V5P_64)
    # Attention is three fifths of the work, and of its mean takes 7 / 4.
    self.assertBetween(split.estimate_s / whole.estimate_s, 1.3, 1.6)

  def test_estimate_is_infinite_where_the_state_does_not_fit(self):
    whole = estimate(_settings(), _mesh(data=32), V5P_64)
    self.assertEqual(whole.estimate_s, math.inf)
    split = estimate(_settings(), _mesh(fsdp=32), V5P_64)
    self.assertLess(split.estimate_s, 1)
    self.assertLess(state_bytes(with_mesh(_settings(), _mesh(fsdp=32))), 10e9)

  def test_names_leave_out_what_is_not_split(self):
    self.assertEqual(shape_name(_mesh(fsdp=8, tensor=4)), "fsdp=8 tensor=4")
    self.assertEqual(shape_name(_mesh()), "one chip")


class LargestTest(parameterized.TestCase):
  """The largest batch, on a chip whose programs take what they are told."""

  @parameterized.parameters(
    (2.0, 0.5, 8, 8),
    (2.0, 0.5, 64, 8),  # the first does not fit
    (1.0, 0.01, 8, 4),
    (20.0, 0.125, 16, 16),
  )
  def test_is_the_last_that_fits(self, fixed, per_row, start, step):
    tried = []

    def judge(rows: int) -> Judgement:
      tried.append(rows)
      return _taking((fixed + per_row * rows) * GIB)

    answer = largest("train.micro_batch", judge, start, step)
    most = int((ROOM / GIB - fixed) / per_row) // step * step
    self.assertEqual(answer.size, most)
    self.assertIn(answer.size, tried)
    self.assertLessEqual(len(tried), 5)

  def test_of_memory_that_grows_with_the_square_is_near_the_limit(self):
    def judge(rows: int) -> Judgement:
      return _taking((1 + 0.01 * rows**2) * GIB)

    answer = largest("train.micro_batch", judge, 8, 8)
    self.assertTrue(answer.judged.fits)
    self.assertBetween(answer.size, 32, 48)

  @parameterized.parameters((8, 0, "it died"), (16, 8, ""), (64, 16, ""))
  def test_is_below_the_batch_that_the_compiler_dies_of(
    self, dies, most, failure
  ):
    def judge(rows: int) -> Judgement:
      judged = _taking((1 + 0.25 * rows) * GIB)
      if rows < dies:
        return judged
      died = Compiled(memory=None, wanted=0, failure="it died")
      return dataclasses.replace(judged, compiled=died)

    answer = largest("train.micro_batch", judge, 8, 8)
    self.assertEqual((answer.size, answer.judged.failure), (most, failure))

  def test_is_none_where_nothing_fits(self):
    answer = largest("train.micro_batch", lambda _: _taking(99 * GIB), 8, 8)
    self.assertEqual(answer.size, 0)
    self.assertFalse(answer.judged.fits)


def _taking(wanted: float) -> Judgement:
  return dataclasses.replace(
    _judged(1.0),
    slice_=V6E_8,
    compiled=Compiled(memory=NOTHING, wanted=int(wanted)),
  )
