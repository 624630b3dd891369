"""One number's value with another number's gradient."""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.precision import widen


def with_gradient_of(value: jax.Array, gradient: jax.Array) -> jax.Array:
  """`value`, as far as anyone reads it, and `gradient` to who differentiates.

    sg[value] + gradient - sg[gradient]

  The straight-through trick. `with_gradient_of(k3(x), k2(x))` reports an
  estimate of low variance and descends the divergence that it estimates. Where
  `gradient` is infinite it passes none on, and leaves the value alone.

  Args:
    value: of any shape; treated as a constant.
    gradient: of the same shape.
  """
  chex.assert_equal_shape([value, gradient])
  value, gradient = widen(value), widen(gradient)
  nothing = jnp.where(
    jnp.isinf(gradient), 0, gradient - jax.lax.stop_gradient(gradient)
  )
  return jax.lax.stop_gradient(value) + nothing
