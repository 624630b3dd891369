"""Every parameter has a place on the mesh, and what does not fit is refused."""

import dataclasses

import jax
from absl.testing import absltest
from jax.sharding import PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from tests.model.policy_test import CONFIG


class ShardingTest(absltest.TestCase):
  def test_every_parameter_is_named(self):
    for changes in (
      {"tied_embedding": False, "qkv_bias": True},
      {"value_head": True},
      {},
    ):
      policy = Policy(dataclasses.replace(CONFIG, **changes))
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


if __name__ == "__main__":
  absltest.main()
