"""Tests of `losses.arguments`: what is refused, and what cannot be seen."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.losses import arguments


class RequireTest(parameterized.TestCase):
  @parameterized.parameters(0, 0.0, -1, float("nan"), np.float32(-2))
  def test_says_what_was_found_and_what_is_allowed(self, value):
    with self.assertRaisesRegex(ValueError, f"beta={value} must be positive"):
      arguments.require_positive("beta", value)

  @parameterized.parameters(1, 1e-9, float("inf"), np.float32(2), None)
  def test_lets_the_rest_pass(self, value):
    arguments.require_positive("beta", value)

  def test_trusts_what_is_traced(self):
    @jax.jit
    def traced(beta):
      arguments.require_positive("beta", beta)
      return beta

    self.assertEqual(traced(jnp.float32(-1)), -1)


if __name__ == "__main__":
  absltest.main()
