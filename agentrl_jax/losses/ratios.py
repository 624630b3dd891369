"""How much likelier a token, or a sequence, has become since it was sampled.

The one place where log-probabilities of two policies meet, and therefore the
one place that masks and bounds before anything is exponentiated. What follows
(`policy_gradient`, `importance_weights`, `kl`) takes its log-ratios from here
and does neither.

Axes: B rows, T tokens, S segments of a row. Entry [b, t] is about token t given
tokens < t.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.precision import widen
from agentrl_jax.losses.segments import (
  in_a_segment,
  segment_totals,
  spread_over_tokens,
)
from agentrl_jax.losses.straight_through import with_gradient_of


def log_ratio(
  policy_logprob_BT: jax.Array,
  behavior_logprob_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  limit: float | None = 20.0,
) -> jax.Array:
  """log pi(token) - log mu(token), and 0 off the mask.

  pi is the policy in training; mu the distribution that the token really was
  drawn from, whichever version, temperature and truncation that was: then r =
  exp(log_ratio) corrects for off-policy sampling, stale versions and numeric
  differences between sampler and learner alike (AgentRL, arXiv:2510.04206).
  With the logprobs of a reference in place of mu, it feeds `kl`.

  Off the mask neither value nor gradient depends on the inputs, which may be
  NaN. On the mask a log-ratio beyond +-`limit` nats is held there and passes no
  gradient on, so that no later exp overflows to inf and no gradient to
  0 * inf; a NaN stays a NaN.

  Args:
    policy_logprob_BT: differentiable.
    behavior_logprob_BT: treated as a constant.
    mask_BT: bool, the trained tokens.
    limit: in nats; e^20 is 5e8, far beyond any clipping, far below overflow.
      None for what bounds it later, as the functions below do, or never
      exponentiates it, as k1 and k2.

  Returns:
    log_ratio_BT.
  """
  arrays = [policy_logprob_BT, behavior_logprob_BT, mask_BT]
  chex.assert_rank(arrays, 2)
  chex.assert_equal_shape(arrays)
  chex.assert_type(mask_BT, bool)
  behavior_BT = jax.lax.stop_gradient(widen(behavior_logprob_BT))
  difference_BT = widen(policy_logprob_BT) - behavior_BT
  difference_BT = jnp.where(mask_BT, difference_BT, 0)
  if limit is None:
    return difference_BT
  # Not jnp.clip, which passes half a gradient on at the very limit.
  held_BT = jnp.where(difference_BT > limit, limit, difference_BT)
  return jnp.where(held_BT < -limit, -limit, held_BT)


def sequence_log_ratio(
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  average: bool,
  limit: float | None = 10.0,
) -> jax.Array:
  """Gives every trained token its whole sequence's log-ratio.

    sum_t x_t                 the sequence's true ratio, once exponentiated
    (sum_t x_t) / length      the geometric mean of its tokens', if `average`

  The mean is GSPO's log s_i (arXiv:2507.18071). The sum is unbiased where a
  weight is asked for (`importance_weights`) and grows with length as the mean
  does not.

  Where it exceeds `limit` it is held there and has no gradient. Below it needs
  no bound: exp goes to 0 and takes the gradient along. Hence the tokens' own
  log-ratios may come from `log_ratio(..., limit=None)`, and should where the
  sum is to be exact.

    d / d log pi(token of the sequence) = 1, or 1 / length if `average`

  so a loss at one token reaches every token of its sequence.

  Args:
    log_ratio_BT: x, as `log_ratio` returns it.
    mask_BT: bool, the trained tokens.
    segment_BT: integers where rows are packed; a token with an id outside
      [0, num_segments) gets 0.
    num_segments: at most so many per row.
    average: whether to divide by the sequence's number of trained tokens.
    limit: in nats, from above; None for no bound.

  Returns:
    log_ratio_BT, the same on all tokens of a sequence, 0 off the mask.
  """
  total_BS, length_BS = segment_totals(
    log_ratio_BT, mask_BT, segment_BT, num_segments
  )
  if average:
    total_BS = total_BS / jnp.maximum(length_BS, 1)
  spread_BT = spread_over_tokens(total_BS, mask_BT, segment_BT)
  return _bound_from_above(spread_BT, limit)


def gspo_token_log_ratio(
  log_ratio_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  limit: float | None = 10.0,
) -> jax.Array:
  """The sequence's mean log-ratio, with each token's own gradient.

    sg[log s_i] + x_t - sg[x_t]          d / d log pi(token t) = 1

  GSPO's token form (GSPO-token, arXiv:2507.18071), for advantages that differ
  within a sequence. Where they do not, `clipped_surrogate` of it
  has under `sequence_mean` the gradient that it has of `sequence_log_ratio`.
  With `log_ratio(..., limit=None)` this is verl's form, limit included.

  Args and returns as `sequence_log_ratio`, with average=True.
  """
  sequence_BT = sequence_log_ratio(
    log_ratio_BT,
    mask_BT,
    segment_BT,
    num_segments,
    average=True,
    limit=None,
  )
  known_BT = in_a_segment(mask_BT, segment_BT, num_segments)
  own_BT = jnp.where(known_BT, widen(log_ratio_BT), 0)
  return _bound_from_above(with_gradient_of(sequence_BT, own_BT), limit)


def _bound_from_above(x_BT: jax.Array, limit: float | None) -> jax.Array:
  return x_BT if limit is None else jnp.where(x_BT > limit, limit, x_BT)
