"""Reductions of [B, T] arrays to means that can be added to other means.

The reduction decides the weight of each token. No reduction reads x off the
mask, where value and gradient may be NaN.

A row is one sequence, or several packed end to end; then `segment_BT` has the
sequence of each token. Ids count within their row, the same id in two rows is
two sequences, and a token with an id outside [0, num_segments) belongs to none.
A sequence without a trained token is not counted.

Axes: B rows, T tokens, S segments of a row, I tasks, P pairs, Z versions.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, require_positive, widen


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
  """A mean as total and weight, so that micro-batches add up exactly.

  The average of the micro-batches' averages would give a token in a short
  micro-batch more weight than one in a long micro-batch.
  """

  total: jax.Array  # []
  weight: jax.Array  # [], number of tokens or sequences

  def __add__(self, other: "Mean") -> "Mean":
    return Mean(self.total + other.total, self.weight + other.weight)

  def value(self) -> jax.Array:
    """Returns total / weight; 0 if nothing was counted."""
    counted = self.weight > 0
    return jnp.where(
      counted, self.total / jnp.where(counted, self.weight, 1), 0
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RatioMoments:
  """Sums over the tokens of each version that sampled: counts, weights, KL."""

  count_Z: jax.Array  # tokens
  weight_Z: jax.Array  # sum of weights
  square_Z: jax.Array  # sum of their squares
  k1_Z: jax.Array  # sum of estimates of KL(mu || pi)
  k3_Z: jax.Array  # likewise, never negative
  abs_Z: jax.Array  # sum of |log-ratio|

  def __add__(self, other: "RatioMoments") -> "RatioMoments":
    return jax.tree.map(jnp.add, self, other)

  def share(self) -> jax.Array:
    """Returns share_Z, the share of the tokens that each version sampled."""
    return self.count_Z / jnp.maximum(jnp.sum(self.count_Z), 1)

  def effective_sample_size(self) -> jax.Array:
    """Returns (sum w)^2 / (n sum w^2), the effective share of n tokens.

    1 on policy, 1 / n if one token outweighs all; 0 for a version without
    tokens (or weights).
    """
    return _divide(
      jnp.square(self.weight_Z) / jnp.maximum(self.count_Z, 1), self.square_Z
    )

  def mean_weight(self) -> jax.Array:
    """Returns the mean weight: 1 in expectation, less if ratios are cut off."""
    return _divide(self.weight_Z, self.count_Z)

  def kl(self) -> jax.Array:
    """Returns KL(mu || pi) in nats per token, from k3: never negative.

    A ratio r enters as r - 1 - log r, so a few large ones dominate the mean;
    `abs_log_ratio` shows the other tokens.
    """
    return _divide(self.k3_Z, self.count_Z)

  def kl_k1(self) -> jax.Array:
    """Returns the estimate from k1, mean log mu - log pi (verl's ppo_kl)."""
    return _divide(self.k1_Z, self.count_Z)

  def abs_log_ratio(self) -> jax.Array:
    """Returns E_mu |log pi - log mu| in nats per token, without any exp.

    A token that is d nats away adds d / n, where it adds exp(d) / n to `kl`.
    """
    return _divide(self.abs_Z, self.count_Z)


def token_mean(x_BT: jax.Array, mask_BT: jax.Array) -> Mean:
  """Mean over trained tokens, so long answers weigh more.

    sum_bt m x / sum_bt m

  DAPO's token-level loss (arXiv:2503.14476, section 3.3) and AgentRL's default;
  verl's token-mean, and its token-sum by `.total`.
  """
  check_masked(mask_BT, x_BT)
  return Mean(jnp.sum(widen(x_BT), where=mask_BT), jnp.sum(mask_BT))


def weighted_mean(
  x_BT: jax.Array, mask_BT: jax.Array, weight_BT: jax.Array
) -> Mean:
  """Mean over trained tokens with given weights.

    sum_bt m w x / sum_bt m w

  Adds exactly over micro-batches if the weights were made from the global
  batch, as by `task_weights`. Importance weights belong in x: as
  `weight_BT` they would be divided by their mean in the batch, which
  `normalised_weight` does on purpose.

  Args:
    x_BT: per token.
    mask_BT: bool, the trained tokens.
    weight_BT: not negative; a constant, not read off the mask.
  """
  check_masked(mask_BT, x_BT)
  chex.assert_equal_shape([x_BT, weight_BT])
  weight_BT = jnp.where(mask_BT, widen(weight_BT), 0)
  weight_BT = jax.lax.stop_gradient(weight_BT)
  x_BT = jnp.where(mask_BT, widen(x_BT), 0)
  return Mean(jnp.sum(weight_BT * x_BT), jnp.sum(weight_BT))


def task_weights(
  task_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  num_tasks: int,
  share_I: jax.Array | None = None,
) -> jax.Array:
  """Returns weights that give each task its share of the loss.

    w = (s_i / n_i) * sum_j n_j / sum_j s_j

  for a token of task i, with n_i the task's trained tokens in the batch; the
  sums run over tasks with trained tokens, so the share of an absent task goes
  to the others in proportion. The weights average 1 over the trained tokens,
  hence `weighted_mean(x, mask, w)` is the mean over tasks, weighted by share,
  of each task's `token_mean`.

  The counts are those of the global batch: make the weights before it is cut.

  Args:
    task_BT: integers in [0, num_tasks), others give NaN; any value off the
      mask.
    mask_BT: bool, the trained tokens.
    num_tasks: I, fixed when compiled; tasks may be absent from a batch.
    share_I: not negative, of any sum; None for equal shares.

  Returns:
    weight_BT, a constant, 0 off the mask.
  """
  check_masked(mask_BT, task_BT)
  share_I = jnp.ones(num_tasks) if share_I is None else widen(share_I)
  chex.assert_shape(share_I, (num_tasks,))
  # A comparison and a sum, not a scatter: few tasks, many tokens, any sharding.
  tasks_I11 = jnp.arange(num_tasks)[:, None, None]
  count_I = jnp.sum((task_BT[None] == tasks_I11) & mask_BT[None], axis=(1, 2))
  present_share = jnp.sum(share_I, where=count_I > 0)
  scale = jnp.sum(mask_BT) / jnp.where(present_share > 0, present_share, 1)
  weight_I = scale * share_I / jnp.maximum(count_I, 1)
  weight_BT = weight_I.at[task_BT].get(
    mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
  )
  return jax.lax.stop_gradient(jnp.where(mask_BT, weight_BT, 0))


def sequence_mean(x_BT: jax.Array, mask_BT: jax.Array) -> Mean:
  """Mean over rows of the mean over their trained tokens.

    mean_b (sum_t m x / sum_t m)

  GRPO's (arXiv:2402.03300, eq. 3), and verl's seq-mean-token-mean. If rows are
  packed, use `segment_mean`.
  """
  return segment_mean(x_BT, mask_BT, None, 1)


def segment_mean(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None,
  num_segments: int,
) -> Mean:
  """Mean over sequences of packed rows of the mean over their tokens.

  A sequence is a pair (row, segment): ids count within their row, and the same
  id in two rows names two sequences.

  Args:
    x_BT: per token.
    mask_BT: bool, the trained tokens.
    segment_BT: integers; a token with an id outside [0, num_segments) is not
      counted.
    num_segments: at most so many per row.
  """
  total_BS, length_BS = segment_totals(x_BT, mask_BT, segment_BT, num_segments)
  return Mean(
    jnp.sum(total_BS / jnp.maximum(length_BS, 1)), jnp.sum(length_BS > 0)
  )


def sequence_sum_mean(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
) -> Mean:
  """Mean over sequences of the sums over their tokens.

    mean over sequences of sum_t m x

  The policy gradient of the expected return of a sequence; it grows with
  length. verl's seq-mean-token-sum.
  """
  return fixed_length_mean(x_BT, mask_BT, segment_BT, num_segments, length=1)


def fixed_length_mean(
  x_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  length: float,
) -> Mean:
  """Sum over tokens, divided by a constant and the number of sequences.

    mean over sequences of (sum_t m x / length)

  over sequences with a trained token: rows, or segments if `segment_BT` is
  given. The divisor is a constant, such as the maximum length of an answer, so
  that neither a sequence's own length (as in `sequence_mean`) nor that of
  others (as in `token_mean`) changes the weight of a token: Dr. GRPO
  (arXiv:2503.20783, section 3.1), and verl's seq-mean-token-sum-norm.

  Raises:
    ValueError: a length that is not positive.
  """
  require_positive("length", length)
  total_BS, length_BS = segment_totals(x_BT, mask_BT, segment_BT, num_segments)
  return Mean(jnp.sum(total_BS) / length, jnp.sum(length_BS > 0))


def pair_mean(x_P: jax.Array, valid_P: jax.Array) -> Mean:
  """Mean over valid pairs, or any other entries of a vector."""
  check_masked(valid_P, x_P, rank=1)
  return Mean(jnp.sum(widen(x_P), where=valid_P), jnp.sum(valid_P))


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
  check_masked(mask_BT, x_BT)
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
  """Returns its sequence's x for every trained token, 0 for the others."""
  if segment_BT is None:
    return jnp.where(mask_BT, x_BS, 0)
  known_BT = in_a_segment(mask_BT, segment_BT, x_BS.shape[1])
  index_BT = jnp.where(known_BT, segment_BT, 0)
  return jnp.where(known_BT, jnp.take_along_axis(x_BS, index_BT, axis=1), 0)


def in_a_segment(
  mask_BT: jax.Array, segment_BT: jax.Array | None, num_segments: int
) -> jax.Array:
  """Returns the mask without the tokens that belong to no sequence."""
  if segment_BT is None:
    return mask_BT
  return mask_BT & (segment_BT >= 0) & (segment_BT < num_segments)


def require_ids(kind: str, ids_BT: jax.Array | None, number: int) -> None:
  """Raises `ValueError` for more than one id without an array of ids."""
  if ids_BT is None and number != 1:
    raise ValueError(
      f"num_{kind}s={number} without {kind}_BT: without ids there is one "
      f"{kind}. Pass them, or leave num_{kind}s at 1"
    )


def _divide(x_Z: jax.Array, y_Z: jax.Array) -> jax.Array:
  """Returns x / y, and 0 where y is 0."""
  return jnp.where(y_Z != 0, x_Z / jnp.where(y_Z != 0, y_Z, 1), 0)
