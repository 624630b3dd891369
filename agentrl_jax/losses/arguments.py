"""Checks of settings, and conversions of arrays, that all losses share."""

import numbers
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp


def require(
  name: str, value: object, allowed: str, holds: Callable[[float], bool]
) -> None:
  """Raises a `ValueError` with the value that was passed and those allowed.

  Checks plain numbers only. A traced array has no value yet, so schedules that
  are passed as arrays are not checked.

  Args:
    name: of the argument.
    value: its value.
    allowed: completes "... must be"; it may add a remedy.
    holds: whether a number is allowed; NaN should not be.
  """
  if isinstance(value, numbers.Real) and not holds(float(value)):
    raise ValueError(f"{name}={value} must be {allowed}")


def require_positive(name: str, value: object) -> None:
  """`require` of a number above 0."""
  require(name, value, "positive", lambda x: x > 0)


def require_fraction(name: str, value: object) -> None:
  """`require` of a number from 0 to 1: a discount, a decay, a share."""
  require(name, value, "from 0 to 1", lambda x: 0 <= x <= 1)


def check_masked(mask: jax.Array, *arrays: jax.Array, rank: int = 2) -> None:
  """Raises `AssertionError` unless the mask is bool and all have its shape."""
  chex.assert_rank([*arrays, mask], rank)
  chex.assert_equal_shape([*arrays, mask])
  chex.assert_type(mask, bool)


def widen(x: jax.Array) -> jax.Array:
  """Converts x to float32; float64 stays float64.

  Neighbouring numbers of bfloat16 differ by almost a percent, too much for
  log-probabilities and for sums of them. float64 exists only if jax_enable_x64
  is set, for example by tests that compare twelve digits.
  """
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def look_up(table: jax.Array, index: jax.Array) -> jax.Array:
  """Returns table[index], and NaN where the index is out of range.

  An id out of range is a mistake of the caller. Clipping or wrapping around
  would hide it behind the number of another group or task.
  """
  return (
    widen(table)
    .at[index]
    .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
  )
