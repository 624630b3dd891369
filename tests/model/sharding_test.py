"""Every parameter has a place on the mesh, and what does not fit is refused."""

import dataclasses
import unittest

import jax
from absl.testing import absltest
from jax.sharding import PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from launch.planning import chips
from launch.planning.chips import parse_slice
from tests.model.policy_test import CONFIG
from tests.settings import COMPUTE


class ShardingTest(absltest.TestCase):
  def test_every_parameter_is_named(self):
    for changes in (
      {"tied_embedding": False, "qkv_bias": True},
      {"value_head": True},
      {},
    ):
      policy = Policy(dataclasses.replace(CONFIG, **changes), COMPUTE)
      mesh = sharding.make_mesh({}, jax.devices()[:1])
      found = sharding.param_shardings(policy.abstract_params(), mesh)
      self.assertEqual(
        jax.tree.structure(found),
        jax.tree.structure(policy.abstract_params()),
      )

  def test_specs(self):
    self.assertEqual(
      sharding.param_spec(("layers", "down", "kernel")),
      PartitionSpec(None, "tensor", "fsdp"),
    )
    self.assertEqual(
      sharding.param_spec(("layers", "3", "down", "kernel")),
      PartitionSpec("tensor", "fsdp"),
    )
    self.assertEqual(
      sharding.param_spec(("embedding",)), PartitionSpec("tensor", "fsdp")
    )

  def test_a_parameter_without_a_place(self):
    with self.assertRaisesRegex(ConfigError, "layers/router has no logical"):
      sharding.param_spec(("layers", "router"))

  def test_mesh_that_does_not_match_the_devices(self):
    with self.assertRaisesRegex(ConfigError, "asks for 4 devices.*there are 1"):
      sharding.make_mesh({"data": 4}, jax.devices()[:1])
    with self.assertRaisesRegex(ConfigError, "'model'.* unknown"):
      sharding.make_mesh({"model": 1}, jax.devices()[:1])


@unittest.skipUnless(chips.has_compiler(), "libtpu is not installed")
class ArrangedTest(absltest.TestCase):
  def test_shares_of_a_layer_are_neighbours(self):
    """Chips that exchange most are linked: `tensor` within a row of the grid.

    In the order in which devices come, they would be two rows apart.
    """
    devices = chips.describe(parse_slice("v5e:4x8"))
    mesh = sharding.make_mesh({"fsdp": 8, "tensor": 4}, devices)
    for group in mesh.devices[0, :, :, 0]:
      first, *others = (device.coords for device in group)
      lined_up = [
        sum(a != b for a, b in zip(first, other, strict=True))
        for other in others
      ]
      self.assertEqual(lined_up, [1, 1, 1])
