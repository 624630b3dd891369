"""Tables with one entry per group or task, read by ids that may be wrong."""

import jax
import jax.numpy as jnp

from agentrl_jax.losses.precision import widen


def look_up(table: jax.Array, index: jax.Array) -> jax.Array:
  """table[index], and NaN where the index is out of range.

  An id out of range is a mistake of the caller's, which no clipping or
  wrapping around should turn into someone else's number.
  """
  return (
    widen(table)
    .at[index]
    .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
  )
