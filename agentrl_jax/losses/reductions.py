"""From a [B, T] array to a mean that can be added to other means.

The choice of reduction decides which token weighs how much. None of them reads
x off the mask, where it may be NaN, in value or gradient.

Axes: B rows, T tokens, S segments of a row. A row is one sequence, or several
packed end to end.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["total", "weight"],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Mean:
  """A mean kept in two halves, so that micro-batches add up exactly.

  Averaging the averages of micro-batches gives a token in a short micro-batch
  more say than one in a long micro-batch. Adding totals and weights does not.
  """

  total: jax.Array  # []
  weight: jax.Array  # [], in tokens or sequences, whichever was counted

  def __add__(self, other: "Mean") -> "Mean":
    return Mean(self.total + other.total, self.weight + other.weight)

  def value(self) -> jax.Array:
    """total / weight; 0 if nothing was counted."""
    counted = self.weight > 0
    return jnp.where(
      counted, self.total / jnp.where(counted, self.weight, 1), 0
    )


def token_mean(x_BT: jax.Array, mask_BT: jax.Array) -> Mean:
  """Every trained token weighs the same, so long answers weigh more.

    sum_bt m x / sum_bt m

  DAPO's token-level loss (arXiv:2503.14476, section 3.3) and AgentRL's default.
  """
  _check(x_BT, mask_BT)
  return Mean(_sum(x_BT, mask_BT), jnp.sum(mask_BT))


def sequence_mean(x_BT: jax.Array, mask_BT: jax.Array) -> Mean:
  """Every row with a trained token weighs the same, so its tokens share.

    mean_b (sum_t m x / sum_t m)

  GRPO's (arXiv:2402.03300, eq. 3). If rows are packed, use `segment_mean`.
  """
  _check(x_BT, mask_BT)
  length_B = jnp.sum(mask_BT, axis=1)
  total_B = _sum(x_BT, mask_BT, axis=1)
  return Mean(
    jnp.sum(total_B / jnp.maximum(length_B, 1)), jnp.sum(length_B > 0)
  )


def segment_mean(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array,
  num_segments: int,
) -> Mean:
  """`sequence_mean` for packed rows: every segment weighs the same.

  A sequence is a pair (row, segment): ids count within their row, and the same
  id in two rows names two sequences.

  Args:
    x_BT: per token.
    mask_BT: bool, the trained tokens.
    segment_BT: integers; a token with an id outside [0, num_segments) is not
      counted.
    num_segments: at most so many per row.
  """
  _check(x_BT, mask_BT)
  total_BS, length_BS = _per_segment(x_BT, mask_BT, segment_BT, num_segments)
  return Mean(
    jnp.sum(total_BS / jnp.maximum(length_BS, 1)), jnp.sum(length_BS > 0)
  )


def fixed_length_mean(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  length: int,
) -> Mean:
  """Every token weighs the same, and no more in a batch of short answers.

    mean over sequences of (sum_t m x / length)

  over sequences with a trained token: rows, or segments if `segment_BT` is
  given. The divisor is a constant, such as the longest answer allowed, so that
  neither a sequence's own length (as in `sequence_mean`) nor its neighbours'
  (as in `token_mean`) changes the weight of a token: Dr. GRPO
  (arXiv:2503.20783, section 3.1).
  """
  _check(x_BT, mask_BT)
  if segment_BT is None:
    segment_BT = jnp.zeros(mask_BT.shape, jnp.int32)
  total_BS, length_BS = _per_segment(x_BT, mask_BT, segment_BT, num_segments)
  return Mean(jnp.sum(total_BS) / length, jnp.sum(length_BS > 0))


def _per_segment(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array,
  num_segments: int,
) -> tuple[jax.Array, jax.Array]:
  """Total and number of the trained tokens of each (row, segment)."""
  chex.assert_equal_shape([x_BT, segment_BT])
  segment_sum = jax.vmap(
    functools.partial(jax.ops.segment_sum, num_segments=num_segments)
  )
  masked_BT = jnp.where(mask_BT, x_BT, 0).astype(jnp.float32)
  return (
    segment_sum(masked_BT, segment_BT),
    segment_sum(mask_BT.astype(jnp.int32), segment_BT),
  )


def _sum(
  x_BT: jax.Array, mask_BT: jax.Array, axis: int | None = None
) -> jax.Array:
  return jnp.sum(x_BT, axis=axis, where=mask_BT, dtype=jnp.float32)


def _check(x_BT: jax.Array, mask_BT: jax.Array) -> None:
  chex.assert_rank([x_BT, mask_BT], 2)
  chex.assert_equal_shape([x_BT, mask_BT])
  chex.assert_type(mask_BT, bool)
