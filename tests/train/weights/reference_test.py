"""Tests of `train.weights.reference`: dtype and place of the params."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights.reference import Reference
from tests.settings import COMPUTE, compute_config
from tests.train import small


class ReferenceTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.params = jax.tree.map(jnp.asarray, small.params_of())

  @parameterized.parameters("resident", "offloaded")
  def test_params_as_they_came(self, place):
    reference = Reference(
      Policy(small.MODEL, COMPUTE), self.params, place=place
    )
    jax.tree.map(np.testing.assert_array_equal, reference.fetch(), self.params)

  def test_an_offloaded_one_leaves_the_devices(self):
    reference = Reference(
      Policy(small.MODEL, COMPUTE), self.params, place="offloaded"
    )
    for leaf in jax.tree.leaves(reference._params):
      self.assertEqual(leaf.sharding.memory_kind, "pinned_host")
    for leaf in jax.tree.leaves(reference.fetch()):
      self.assertEqual(leaf.sharding.memory_kind, "device")

  @pytest.mark.slow
  def test_takes_the_dtype_of_the_computation_and_changes_nothing(self):
    """Matrices are cast when they are read, so they may be cast before."""
    policy = Policy(small.MODEL, compute_config(dtype="bfloat16"))
    kept = Reference(policy, self.params, place="resident").fetch()
    self.assertEqual(kept["embedding"].dtype, jnp.bfloat16)
    self.assertEqual(kept["final_norm"]["scale"].dtype, jnp.float32)
    token_BT = jnp.arange(12).reshape(2, 6)
    where = jnp.broadcast_to(jnp.arange(6), (2, 6)), jnp.ones((2, 6), int)
    hidden = jax.jit(policy.hidden)
    np.testing.assert_array_equal(
      hidden(kept, token_BT, *where), hidden(self.params, token_BT, *where)
    )
