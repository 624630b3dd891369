"""Programs of several slices: what crosses the network, in bytes."""

import dataclasses
import unittest

import jax
import jax.numpy as jnp
import pytest
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec

from agentrl_jax.model import sharding
from agentrl_jax.model.sharding import MeshConfig
from configs import pod
from launch.config.settings import read_settings
from launch.planning import chips
from launch.planning.chips import parse_slice
from launch.planning.compiler.collectives import (
  between_slices,
  bytes_by_kind,
  collectives,
)
from launch.planning.compiler.hlo import Module
from launch.planning.formulas import exchanged_between_slices
from launch.planning.study import Deployment, Planner

WIDTH, ROWS, TOKENS, BYTES = 4096, 64, 128, 2


def _crossing(found):
  return [one for one in found if one.num_slices > 1]


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class ProductTest(parameterized.TestCase):
  """The gradient of one product, with weights split over `fsdp`."""

  @parameterized.parameters(
    (2, {"data": 2, "fsdp": 4}),
    (4, {"data": 4, "fsdp": 4}),
    # Copies within a slice sum their parts before they cross.
    (2, {"data": 4, "fsdp": 2}),
    (2, {"data": 2, "fsdp": 2, "sequence": 2}),
  )
  @pytest.mark.slow
  def test_over_data_gradients_are_summed_in_shares(self, num_slices, axes):
    found = _exchanges(num_slices, "data", axes)
    share = WIDTH * WIDTH * BYTES / 4  # of each chip of a slice
    rest = (num_slices - 1) / num_slices
    self.assertEqual(
      bytes_by_kind(_crossing(found)), {"all-reduce": 2 * share * rest}
    )
    # All that the other axes exchange stays on the links of a slice.
    for one in found:
      if one.num_slices == 1:
        self.assertLessEqual(max(one.group), 3)

  @pytest.mark.slow
  def test_over_fsdp_weights_are_gathered_and_gradients_summed(self):
    found = _exchanges(2, "fsdp", {"fsdp": 8})
    in_slice = WIDTH * WIDTH * BYTES / 4  # the chips of one slice
    self.assertEqual(
      bytes_by_kind(_crossing(found)),
      # One way: the forward pass alone needs this product's weights.
      {"all-gather": in_slice / 2, "all-reduce": 2 * in_slice / 2},
    )

  @pytest.mark.slow
  def test_one_slice_sends_nothing_over_the_network(self):
    self.assertEqual(_crossing(_exchanges(1, "data", {"fsdp": 4})), [])


def _exchanges(num_slices: int, over: str, axes: dict[str, int]):
  topology = parse_slice(f"{num_slices}xv5p-8")
  mesh = sharding.make_mesh(
    axes,
    chips.describe(topology),
    slices=MeshConfig(over_slices=over, slices_of="devices"),
  )
  split = NamedSharding(mesh, PartitionSpec("fsdp"))
  whole = NamedSharding(mesh, PartitionSpec())

  def gradient(weights, rows):
    def loss(weights):
      gathered = jax.lax.with_sharding_constraint(weights, whole)
      return jnp.sum((rows @ gathered).astype(jnp.float32) ** 2)

    found = jax.grad(loss)(weights)
    return jax.lax.with_sharding_constraint(found, split)

  traced = jax.jit(gradient).trace(
    jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16, sharding=split),
    jax.ShapeDtypeStruct(
      (ROWS, TOKENS, WIDTH),
      jnp.bfloat16,
      sharding=sharding.batch_sharding(mesh),
    ),
  )
  made = traced.lower(lowering_platforms=("tpu",)).compile()
  places = chips.coordinates(list(mesh.devices.flat))
  return collectives(Module(made.as_text()), num_devices=len(places))


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class LearnerTest(parameterized.TestCase):
  @parameterized.parameters(
    ("data", {"data": 2, "fsdp": 4}, {"all-reduce"}),
    (
      "fsdp",
      {"fsdp": 8},
      {"all-gather", "all-reduce", "all-to-all", "reduce-scatter"},
    ),
  )
  @pytest.mark.full
  @pytest.mark.timeout(3600)
  def test_an_update_sends_what_the_formula_says(self, over, mesh, kinds):
    settings = _settings(over, mesh)
    topology = parse_slice("2xv5p-8")
    planner = Planner(Deployment(learner=topology))
    gradient, apply = planner.study(settings, ("learner",))
    crossing = _crossing(gradient.compiled.exchanges)
    self.assertEqual(set(bytes_by_kind(crossing)), kinds)
    due = exchanged_between_slices(settings, 2)
    self.assertBetween(between_slices(crossing) / due, 1, 1.01)
    self.assertAlmostEqual(
      gradient.roofline.network_s,
      between_slices(crossing) / topology.chip.network_bandwidth,
    )
    # The norm of the gradient is one number for each share.
    self.assertLess(apply.received_between_slices, 10_000)


def _settings(over: str, mesh: dict[str, int]):
  config = pod.get_config("qwen3-1.7b")
  config.mesh.update(mesh | {"over_slices": over})
  config.train.update(micro_batch=8, row_length=8192)
  settings = read_settings(config)
  return dataclasses.replace(
    settings, model=dataclasses.replace(settings.model, num_layers=4)
  )
