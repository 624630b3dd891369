"""Refuses settings that cannot be meant, before anything is compiled."""

import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp


def require(
  name: str, value: object, allowed: str, holds: Callable[[float], bool]
) -> None:
  """Raises a ValueError that says what was found and what is allowed.

  Plain numbers only: a traced value has nothing to look at yet, so schedules
  may be passed as arrays, and are trusted.

  Args:
    name: of the argument.
    value: what was passed for it.
    allowed: completes "... must be", and may go on to say what to do.
    holds: whether a number is allowed; NaN should not be.
  """
  if isinstance(value, numbers.Real) and not holds(float(value)):
    raise ValueError(f"{name}={value} must be {allowed}")


def require_positive(name: str, value: object) -> None:
  """`require` of a number above 0."""
  require(name, value, "positive", lambda x: x > 0)


def require_fraction(name: str, value: object) -> None:
  """`require` of a share of a whole: a discount, a trace, a decay, a quota."""
  require(name, value, "from 0 to 1", lambda x: 0 <= x <= 1)


def widen(x: jax.Array) -> jax.Array:
  """x in float32, whatever it came in; only float64 stays what it is.

  Log-probabilities of bfloat16 differ by a whole percent from one number to the
  next, and sums of them by more. float64 exists only where jax_enable_x64 is
  set, and whoever set it wants to see twelve digits agree.
  """
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


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
