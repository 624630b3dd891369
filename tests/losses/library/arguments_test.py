"""Tests of `losses.arguments`: refused settings, and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

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


class WidenTest(parameterized.TestCase):
  @parameterized.parameters(
    jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32, bool
  )
  def test_becomes_float32(self, dtype):
    self.assertEqual(arguments.widen(jnp.ones(2, dtype)).dtype, jnp.float32)

  def test_float64_stays_where_it_is_enabled(self):
    x = np.array([1 / 3])
    with jax.enable_x64(True):
      np.testing.assert_array_equal(arguments.widen(x), x)
    self.assertEqual(arguments.widen(x).dtype, jnp.float32)
