"""From tokens to the sequences that they belong to, and back.

A row is one sequence, or several packed end to end. Then `segment_BT` says
which: ids count within their row, the same id in two rows names two sequences,
and a token with an id outside [0, num_segments) belongs to none.

Axes: B rows, T tokens, S segments of a row.
"""

import functools

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.precision import widen


def segment_totals(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
) -> tuple[jax.Array, jax.Array]:
  """Sums x over the trained tokens of each sequence, and counts them.

  Args:
    x_BT: per token; not read off the mask.
    mask_BT: bool, the trained tokens.
    segment_BT: integers; None where every row is one sequence.
    num_segments: S, fixed when compiled.

  Returns:
    (total_BS, length_BS), the lengths as integers.
  """
  chex.assert_rank([x_BT, mask_BT], 2)
  chex.assert_equal_shape([x_BT, mask_BT])
  chex.assert_type(mask_BT, bool)
  x_BT = jnp.where(mask_BT, widen(x_BT), 0)
  length_BT = mask_BT.astype(jnp.int32)
  require_ids("segment", segment_BT, num_segments)
  if segment_BT is None:
    return tuple(x.sum(axis=1, keepdims=True) for x in (x_BT, length_BT))
  chex.assert_equal_shape([x_BT, segment_BT])
  segment_sum = jax.vmap(
    functools.partial(jax.ops.segment_sum, num_segments=num_segments)
  )
  return segment_sum(x_BT, segment_BT), segment_sum(length_BT, segment_BT)


def spread_over_tokens(
  x_BS: jax.Array, mask_BT: jax.Array, segment_BT: jax.Array | None = None
) -> jax.Array:
  """Gives every trained token its sequence's x, and the others 0."""
  if segment_BT is None:
    return jnp.where(mask_BT, x_BS, 0)
  known_BT = in_a_segment(mask_BT, segment_BT, x_BS.shape[1])
  index_BT = jnp.where(known_BT, segment_BT, 0)
  return jnp.where(known_BT, jnp.take_along_axis(x_BS, index_BT, axis=1), 0)


def in_a_segment(
  mask_BT: jax.Array, segment_BT: jax.Array | None, num_segments: int
) -> jax.Array:
  """The mask, without the tokens that belong to no sequence."""
  if segment_BT is None:
    return mask_BT
  return mask_BT & (segment_BT >= 0) & (segment_BT < num_segments)


def require_ids(kind: str, ids_BT: jax.Array | None, number: int) -> None:
  """Raises a ValueError if several are announced, and none is named."""
  if ids_BT is None and number != 1:
    raise ValueError(
      f"num_{kind}s={number} without {kind}_BT: without ids there is one "
      f"{kind}. Pass them, or leave num_{kind}s at 1"
    )
