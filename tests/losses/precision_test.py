"""Tests of `losses.precision`: float32 at least, float64 if asked for."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.losses import arguments


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


if __name__ == "__main__":
  absltest.main()
