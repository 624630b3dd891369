"""Log-ratios of two policies, and importance weights made of them.

Log-ratios are masked and bounded here, before anything is exponentiated.
`policy_gradient` and `kl` take them from here and do neither.

Importance weights are constants that multiply a loss:

  weight_BT = truncated_weight(log_ratio_BT, cap=2.0)
  loss = token_mean(weight_BT * loss_BT, mask_BT)

The ratio decides what a weight corrects. `log_ratio` gives each token its own
weight, of low variance, that ignores the tokens before it.
`sequence_log_ratio` gives a whole sequence one weight: of the sum
(average=False) the true one, whose variance grows with length; of the mean
(average=True) its geometric mean per token. pi over mu corrects a gradient of
log pi; prox over mu corrects staleness, or the mismatch between sampler and
learner, beside a surrogate with a ratio of its own (`decoupled_surrogate`).
Never weigh by a ratio that the surrogate already contains. Off the mask
log-ratios are 0 and weights 1, or the bound nearest to 1; the mask of the
reduction leaves those tokens out.

Axes: B rows, T tokens, S segments of a row. Entry [b, t] is about token t given
tokens < t.
"""

import numbers

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import (
  check_masked,
  require,
  require_positive,
  widen,
)
from agentrl_jax.losses.reductions import (
  Mean,
  in_a_segment,
  segment_totals,
  spread_over_tokens,
)

# e^20 is 5e8. From below too, so that a mean of weights can be divided by.
_LIMIT = 20.0


def log_ratio(
  policy_logprob_BT: jax.Array,
  behavior_logprob_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  limit: float | None = 20.0,
) -> jax.Array:
  """Returns log pi(token) - log mu(token), and 0 off the mask.

  pi is the policy in training; mu the distribution that the token was sampled
  from, with its version, temperature and truncation. Then r = exp(log_ratio)
  corrects for off-policy sampling, stale versions and numeric differences
  between sampler and learner (AgentRL, arXiv:2510.04206). With the logprobs of
  a reference instead of mu, the result is for `kl`.

  Off the mask neither value nor gradient depends on the inputs, which may be
  NaN. On the mask a log-ratio beyond +-`limit` nats is held there and passes no
  gradient on, so that no later exp overflows to inf and no gradient to
  0 * inf; a NaN stays a NaN.

  Args:
    policy_logprob_BT: differentiable.
    behavior_logprob_BT: treated as a constant.
    mask_BT: bool, the trained tokens.
    limit: in nats; e^20 is 5e8, far beyond any clipping, far below overflow.
      None if a later function bounds it, as those below do, or never
      exponentiates it, as k1 and k2.

  Returns:
    log_ratio_BT.
  """
  check_masked(mask_BT, policy_logprob_BT, behavior_logprob_BT)
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
  """Returns for every trained token the log-ratio of its sequence.

    sum_t x_t                 the sequence's true ratio, once exponentiated
    (sum_t x_t) / length      the geometric mean of its tokens', if `average`

  The mean is GSPO's log s_i (arXiv:2507.18071). The sum gives an unbiased
  importance weight, and grows with length.

  A value above `limit` is held there and has no gradient. No lower bound is
  needed, since exp goes to 0 with its gradient. So the tokens' own log-ratios
  may come from `log_ratio(..., limit=None)`, and should if the sum has to be
  exact.

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
    log_ratio_BT, equal on all tokens of a sequence, 0 off the mask.
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
  """Returns the sequence's mean log-ratio with each token's own gradient.

    sg[log s_i] + x_t - sg[x_t]          d / d log pi(token t) = 1

  GSPO's token form (GSPO-token, arXiv:2507.18071), for advantages that differ
  within a sequence. If they are equal, `clipped_surrogate` under
  `sequence_mean` has the same gradient as with `sequence_log_ratio`. With
  `log_ratio(..., limit=None)` this is verl's form, limit included.

  Args and returns as `sequence_log_ratio`, with average=True.
  """
  sequence_BT = sequence_log_ratio(
    log_ratio_BT, mask_BT, segment_BT, num_segments, average=True, limit=None
  )
  known_BT = in_a_segment(mask_BT, segment_BT, num_segments)
  own_BT = jnp.where(known_BT, widen(log_ratio_BT), 0)
  return _bound_from_above(with_gradient_of(sequence_BT, own_BT), limit)


def with_gradient_of(value: jax.Array, gradient: jax.Array) -> jax.Array:
  """Returns `value` with the gradient of `gradient`.

    sg[value] + gradient - sg[gradient]

  The straight-through trick. `with_gradient_of(k3(x), k2(x))` reports an
  estimate of low variance and descends the divergence that it estimates. An
  infinite `gradient` passes no gradient on and does not change the value.

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


def truncated_weight(log_ratio_BT: jax.Array, *, cap: float) -> jax.Array:
  """Returns min(r, cap): a bounded weight with some bias.

  Truncated importance sampling; rho-bar of V-trace (arXiv:1802.01561, section
  4.1) is a cap of 1. Tokens that became less likely keep their weight; the
  weight of tokens that became much likelier is bounded.

  Args:
    log_ratio_BT: of tokens or of sequences, held within +-20 here.
    cap: positive.

  Returns:
    weight_BT, a constant.

  Raises:
    ValueError: a cap that is not positive.
  """
  require_positive("cap", cap)
  return jnp.minimum(_ratio(log_ratio_BT), cap)


def masked_weight(
  log_ratio_BT: jax.Array, *, low: float, high: float
) -> jax.Array:
  """Returns r where low <= r <= high, else 0.

  If sampler and learner differ more than that about a token or sequence, it is
  probably a fault (IcePop, arXiv:2510.18855). It still counts in the weight of
  a `Mean`: the loss is averaged over all tokens.

  Args:
    log_ratio_BT: of tokens or of sequences, held within +-20 here.
    low: at least 0, and below `high`.
    high: may be infinite.

  Returns:
    weight_BT, a constant.

  Raises:
    ValueError: bounds that are negative or in the wrong order.
  """
  require("low", low, "at least 0: ratios are not negative", lambda x: x >= 0)
  require(
    "high",
    high,
    f"above low={low}, or every weight is 0",
    lambda x: x > low if isinstance(low, numbers.Real) else x > 0,
  )
  ratio_BT = _ratio(log_ratio_BT)
  return jnp.where((ratio_BT < low) | (ratio_BT > high), 0, ratio_BT)


def stale_failure_weight(
  log_ratio_BT: jax.Array, advantage_BT: jax.Array, *, divergence: float
) -> jax.Array:
  """Returns 0 for failures that the policy would hardly repeat, else 1.

    weight = 0 where A < 0 and mean_t log(mu / pi) > divergence

  A failure that has become unlikely needs no further penalty, and the gradient
  of a token that has become rare is large and noisy; good samples far from the
  policy still count (off-policy sequence masking, DeepSeek-V3.2,
  arXiv:2512.02556, section 3.1, eq. 9).

  Args:
    log_ratio_BT: of sequences, their mean: `sequence_log_ratio` with
      average=True, of log pi - log mu.
    advantage_BT: a constant; read token by token, if it differs within a
      sequence.
    divergence: positive, in nats per token.

  Returns:
    weight_BT, a constant.

  Raises:
    ValueError: a divergence that is not positive.
  """
  require_positive("divergence", divergence)
  chex.assert_rank([log_ratio_BT, advantage_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT])
  x_BT = widen(log_ratio_BT)
  stale_BT = (widen(advantage_BT) < 0) & (-x_BT > divergence)
  return jnp.where(stale_BT, jnp.zeros_like(x_BT), 1)


def normalised_weight(weight_BT: jax.Array, mean: Mean) -> jax.Array:
  """Returns weight / mean, so that weights do not change the size of a step.

  Self-normalised importance sampling: less variance, and a bias that vanishes
  with the size of the batch. The mean belongs to the global batch, over tokens
  or, of sequences' weights, over sequences; a `Mean` adds up over its parts:

    normalised_weight(weight_BT, token_mean(weight_BT, mask_BT))

  If the mean is (almost) 0, weights stay unchanged.

  Returns:
    weight_BT, a constant.
  """
  average = jax.lax.stop_gradient(mean.value())
  enough = average > 1e-8
  scale = jnp.where(enough, 1 / jnp.where(enough, average, 1), 1)
  return jax.lax.stop_gradient(widen(weight_BT)) * scale


def _bound_from_above(x_BT: jax.Array, limit: float | None) -> jax.Array:
  return x_BT if limit is None else jnp.where(x_BT > limit, limit, x_BT)


def _ratio(log_ratio_BT: jax.Array) -> jax.Array:
  chex.assert_rank(log_ratio_BT, 2)
  log_ratio_BT = jax.lax.stop_gradient(widen(log_ratio_BT))
  return jnp.exp(jnp.clip(log_ratio_BT, -_LIMIT, _LIMIT))
