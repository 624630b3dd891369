"""Which precision the losses compute in."""

import jax
import jax.numpy as jnp


def widen(x: jax.Array) -> jax.Array:
  """x in float32, whatever it came in; only float64 stays what it is.

  Log-probabilities of bfloat16 differ by a whole percent from one number to the
  next, and sums of them by more. float64 exists only where jax_enable_x64 is
  set, and whoever set it wants to see twelve digits agree.
  """
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
