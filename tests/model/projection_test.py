"""The product of the decoder is a tensordot whose gradient turns nothing."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.model.projection import project

SHAPES = (  # of x and of the kernel, and the axes that are contracted
  ((3, 4), (4, 5), 1),
  ((2, 3, 4), (4, 2, 5), 1),
  ((2, 3, 2, 4), (2, 4, 5), 2),
  ((2, 3, 2, 2, 4), (2, 2, 4, 5), 3),
)


def _inputs(x_shape, kernel_shape):
  rng = np.random.default_rng(0)
  return (
    jnp.asarray(rng.normal(size=x_shape), jnp.float32),
    jnp.asarray(rng.normal(size=kernel_shape), jnp.float32),
  )


class ProjectTest(parameterized.TestCase):
  @parameterized.parameters(*SHAPES)
  def test_equals_tensordot(self, x_shape, kernel_shape, num_axes):
    inputs = _inputs(x_shape, kernel_shape)

    def cubes(product):
      return lambda x, kernel: (product(x, kernel) ** 3).sum()

    found = jax.value_and_grad(
      cubes(lambda x, k: project(x, k, num_axes)), (0, 1)
    )(*inputs)
    wanted = jax.value_and_grad(
      cubes(lambda x, k: jnp.tensordot(x, k, num_axes)), (0, 1)
    )(*inputs)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, wanted
    )

  @parameterized.parameters(*SHAPES[1:])
  def test_the_gradient_is_not_transposed(
    self, x_shape, kernel_shape, num_axes
  ):
    def primitives(product):
      gradient = jax.grad(lambda x, k: product(x, k).sum(), (0, 1))
      jaxpr = jax.make_jaxpr(gradient)(*_inputs(x_shape, kernel_shape))
      return str(jaxpr)

    self.assertNotIn(
      "transpose", primitives(lambda x, k: project(x, k, num_axes))
    )
    self.assertIn(
      "transpose", primitives(lambda x, k: jnp.tensordot(x, k, num_axes))
    )

  def test_dtype_stays(self):
    x, kernel = _inputs(*SHAPES[1][:2])
    gradient = jax.grad(
      lambda x, k: project(x, k, 1).astype(jnp.float32).sum(), (0, 1)
    )(x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))
    for leaf in gradient:
      self.assertEqual(leaf.dtype, jnp.bfloat16)


if __name__ == "__main__":
  absltest.main()
