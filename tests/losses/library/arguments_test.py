"""Tests of `losses.arguments`: refused settings, and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.losses import arguments


class RequireTest(parameterized.TestCase):
  @parameterized.parameters(0, 0.0, -1, float("nan"), np.float32(-2))
  def test_names_the_value_and_the_allowed_range(self, value):
    with self.assertRaisesRegex(ValueError, f"beta={value} must be positive"):
      arguments.require_positive("beta", value)

  @parameterized.parameters(1, 1e-9, float("inf"), np.float32(2), None)
  def test_accepts_positive_values(self, value):
    arguments.require_positive("beta", value)

  def test_traced_values_are_not_checked(self):
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
