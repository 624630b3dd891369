"""Losses of tokens: policy gradients, and the likelihood of demonstrations.

Each function maps [B, T] arrays to one [B, T] array. It neither masks, nor
averages, nor reads a config; `reductions` turns the result into a number.

All take (log_ratio_BT, advantage_BT) first and plain numbers by keyword, so
that one can replace another. Some need further arrays: `cispo` and `dppo` the
log-probabilities, `decoupled_surrogate` a second ratio, `gmpo` the segments.

Log-ratios are in nats and come from `ratios`, which zeroes them off the mask
and bounds them on it: those of tokens from `log_ratio`, those of sequences
(GSPO) from `sequence_log_ratio` or `gspo_token_log_ratio`. r = exp(log_ratio).
Advantages are constants.

Axes: B rows, T tokens. Entry [b, t] is about token t given tokens < t.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import require, require_positive, widen
from agentrl_jax.losses.ratios import masked_weight, sequence_log_ratio


def reinforce(log_ratio_BT: jax.Array, advantage_BT: jax.Array) -> jax.Array:
  """REINFORCE with importance weights, unclipped.

    loss = -r A          d loss / d log pi = -r A

  On policy (r = 1) the gradient is that of -A log pi (Williams, 1992).
  """
  log_ratio_BT, advantage_BT = _inputs(log_ratio_BT, advantage_BT)
  return -jnp.exp(log_ratio_BT) * advantage_BT


def clipped_surrogate(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
) -> jax.Array:
  """The clipped surrogate of PPO, with a separate bound on each side.

    loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

  Equal bounds are PPO (arXiv:1707.06347, eq. 7); a wider upper bound is the
  clip-higher of DAPO (arXiv:2503.14476, section 3.1). With dual_clip = c,

    loss = min(loss, -c A)  where A < 0

  bounds the loss of a bad token that became much likelier
  (arXiv:1912.09729, eq. 5); AgentRL takes 0.2, 0.2 and c = 3.

  The gradient is that of `reinforce` where neither bound binds, else 0:
  for A > 0 above 1 + clip_high, for A < 0 below 1 - clip_low and above c.
  `diagnostics.clip_fractions` counts these.

  Args:
    log_ratio_BT: log pi(token) - log mu(token), differentiable through pi.
    advantage_BT: treated as a constant.
    clip_low: above 0 and at most 1; 1 leaves no lower bound.
    clip_high: positive.
    dual_clip: above 1; None leaves bad tokens unbounded.

  Returns:
    loss_BT, to be minimised.

  Raises:
    ValueError: a bound out of its range.
  """
  check_clip(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
  log_ratio_BT, advantage_BT = _inputs(log_ratio_BT, advantage_BT)
  ratio_BT = jnp.exp(log_ratio_BT)
  clipped_BT = _clip(ratio_BT, 1 - clip_low, 1 + clip_high)
  loss_BT = -jnp.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
  if dual_clip is None:
    return loss_BT
  bounded_BT = jnp.minimum(loss_BT, -dual_clip * advantage_BT)
  return jnp.where(advantage_BT < 0, bounded_BT, loss_BT)


def decoupled_surrogate(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  proximal_log_ratio_BT: jax.Array,
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None = None,
  weight_cap: float | None = None,
) -> jax.Array:
  """PPO clipped against a recent policy, for data of an older one.

    loss = w * clipped_surrogate(pi / prox)          w = sg[prox / mu]

  Clipping against mu would hold the policy near the version that sampled a
  stale token; clipping against prox, the policy at the start of this update,
  bounds the step (arXiv:2110.00641; AReaL, arXiv:2505.24298, on its decoupled
  objective). With weight_cap, tokens with a larger w get weight 0, as in
  AReaL's code. For other corrections multiply `clipped_surrogate` by a weight
  of `importance_weights`.

  The gradient is w times that of `clipped_surrogate`; where nothing is clipped
  that is the gradient of `reinforce` with r = pi / mu.

  Args:
    log_ratio_BT: log pi(token) - log prox(token), differentiable through pi.
    advantage_BT: treated as a constant.
    proximal_log_ratio_BT: log prox(token) - log mu(token); a constant.
    clip_low, clip_high, dual_clip: as in `clipped_surrogate`, about pi / prox.
    weight_cap: positive; None for no cap.

  Raises:
    ValueError: a bound out of its range.
  """
  require_positive("weight_cap", weight_cap)
  chex.assert_equal_shape([log_ratio_BT, proximal_log_ratio_BT])
  loss_BT = clipped_surrogate(
    log_ratio_BT,
    advantage_BT,
    clip_low=clip_low,
    clip_high=clip_high,
    dual_clip=dual_clip,
  )
  high = jnp.inf if weight_cap is None else weight_cap
  return masked_weight(proximal_log_ratio_BT, low=0.0, high=high) * loss_BT


def cispo(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  policy_logprob_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  clip_low: float,
  clip_high: float,
) -> jax.Array:
  """CISPO: clips the weight, so that every token keeps its gradient.

    loss = -sg[clip(r, 1 - clip_low, 1 + clip_high)] A log pi
    d loss / d log pi = -clip(r, 1 - clip_low, 1 + clip_high) A

  (MiniMax-M1, arXiv:2506.13585, on CISPO.) Rare tokens that change the
  direction of a chain of thought are the first that `clipped_surrogate` drops;
  CISPO trains them at a bounded rate. The value means little, since it follows
  log pi; monitor the gradient.

  Args:
    log_ratio_BT: log pi(token) - log mu(token); only its value is used.
    advantage_BT: treated as a constant.
    policy_logprob_BT: log pi(token), differentiable; not read off the mask.
    mask_BT: bool, the trained tokens.
    clip_low: positive; 1 or more leaves no lower bound, as in the paper.
    clip_high: positive.

  Returns:
    loss_BT, 0 off the mask where advantages are finite.

  Raises:
    ValueError: a bound that is not positive.
  """
  require_positive("clip_low", clip_low)
  require_positive("clip_high", clip_high)
  log_ratio_BT, advantage_BT = _inputs(log_ratio_BT, advantage_BT)
  chex.assert_equal_shape([log_ratio_BT, policy_logprob_BT, mask_BT])
  chex.assert_type(mask_BT, bool)
  weight_BT = jax.lax.stop_gradient(
    _clip(jnp.exp(log_ratio_BT), 1 - clip_low, 1 + clip_high)
  )
  logprob_BT = jnp.where(mask_BT, widen(policy_logprob_BT), 0)
  return -weight_BT * advantage_BT * logprob_BT


def dppo(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  policy_logprob_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  divergence: str,
  clip_low: float,
  clip_high: float,
  weight_cap: float = 20.0,
) -> jax.Array:
  """DPPO: clips where the probability moved far, not where the ratio did.

    loss = -M sg[min(r, weight_cap)] A log pi
    d loss / d log pi = -M min(r, weight_cap) A

  M is 0 where the policy went beyond a bound in the direction of A, else 1:
  where A > 0 and D > clip_high, or A < 0 and D < -clip_low, with the signed
  divergence D of `binary_divergence` (arXiv:2602.04879, its binary forms). A
  clip of the ratio stops a rare token long before the policy has changed, and
  lets a likely one move the policy far. The value means little, as in `cispo`.

  Args:
    log_ratio_BT: log pi(token) - log mu(token); only its value is used.
    advantage_BT: treated as a constant.
    policy_logprob_BT: log pi(token), differentiable; not read off the mask.
    mask_BT: bool, the trained tokens.
    divergence: "tv" or "kl".
    clip_low, clip_high: positive; a share of probability for tv, nats for kl.
    weight_cap: positive, the largest weight of a token.

  Returns:
    loss_BT, 0 off the mask where advantages are finite.

  Raises:
    ValueError: an unknown divergence, or a bound that is not positive.
  """
  require_positive("clip_low", clip_low)
  require_positive("clip_high", clip_high)
  require_positive("weight_cap", weight_cap)
  log_ratio_BT, advantage_BT = _inputs(log_ratio_BT, advantage_BT)
  moved_BT = binary_divergence(
    log_ratio_BT, policy_logprob_BT, mask_BT, divergence=divergence
  )
  stopped_BT = jnp.where(
    advantage_BT > 0, moved_BT > clip_high, moved_BT < -clip_low
  )
  weight_BT = jax.lax.stop_gradient(
    jnp.minimum(jnp.exp(log_ratio_BT), weight_cap)
  )
  logprob_BT = jnp.where(mask_BT, widen(policy_logprob_BT), 0)
  return jnp.where(stopped_BT, 0, -weight_BT * advantage_BT * logprob_BT)


def binary_divergence(
  log_ratio_BT: jax.Array,
  policy_logprob_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  divergence: str,
) -> jax.Array:
  """The signed divergence of "this token or another" from mu to pi.

    tv   pi - mu
    kl   sign(pi - mu) K
         K = mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))

  pi and mu are probabilities of the sampled token. The absolute value bounds
  the divergence over the vocabulary from below (arXiv:2602.04879).

  Args:
    log_ratio_BT: log pi(token) - log mu(token).
    policy_logprob_BT: log pi(token).
    mask_BT: bool, the tokens to measure.
    divergence: "tv" or "kl".

  Returns:
    [B, T], a constant: above 0 where the token became likelier; in nats for
    kl; 0 off the mask.

  Raises:
    ValueError: an unknown divergence.
  """
  require("divergence", divergence, "tv or kl", lambda x: x in ("tv", "kl"))
  chex.assert_equal_shape([log_ratio_BT, policy_logprob_BT, mask_BT])
  chex.assert_type(mask_BT, bool)
  x_BT, policy_BT = (
    jax.lax.stop_gradient(jnp.where(mask_BT, widen(array_BT), 0))
    for array_BT in (log_ratio_BT, policy_logprob_BT)
  )
  behavior_BT = policy_BT - x_BT
  rise_BT = jnp.exp(policy_BT) - jnp.exp(behavior_BT)
  if divergence == "tv":
    return rise_BT
  # expm1 keeps the digits of 1 - p where p is close to 1.
  others_BT = -jnp.expm1(jnp.minimum(behavior_BT, 0))
  left_BT = -jnp.expm1(jnp.minimum(policy_BT, 0))
  gained_BT = jnp.where(
    others_BT > 0, others_BT * (jnp.log(others_BT) - jnp.log(left_BT)), 0
  )
  return jnp.sign(rise_BT) * (gained_BT - jnp.exp(behavior_BT) * x_BT)


def sapo(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  *,
  tau_positive: float = 1.0,
  tau_negative: float = 1.05,
) -> jax.Array:
  """SAPO: a soft gate instead of a clip.

    loss = -(4 / tau) p A          p = sigmoid(tau (r - 1))
    d loss / d log pi = -4 p (1 - p) r A

  with tau = tau_positive where A > 0, else tau_negative (arXiv:2511.20347). On
  policy the gradient is that of `reinforce`; away from it the gate closes
  smoothly on both sides, faster for a larger tau. Bad tokens get the larger
  one, since lowering them raises all other vocabulary entries.

  Args:
    log_ratio_BT: log pi(token) - log mu(token), differentiable through pi.
    advantage_BT: treated as a constant.
    tau_positive, tau_negative: temperatures, positive; defaults as published.

  Raises:
    ValueError: a temperature that is not positive.
  """
  require_positive("tau_positive", tau_positive)
  require_positive("tau_negative", tau_negative)
  log_ratio_BT, advantage_BT = _inputs(log_ratio_BT, advantage_BT)
  tau_BT = jnp.where(advantage_BT > 0, tau_positive, tau_negative)
  # Not expm1: its derivative is its value + 1, which has no digits for r << 1.
  gate_BT = jax.nn.sigmoid(tau_BT * (jnp.exp(log_ratio_BT) - 1))
  return -(4 / tau_BT) * gate_BT * advantage_BT


def gmpo(
  log_ratio_BT: jax.Array,
  advantage_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  clip_low: float = 0.4,
  clip_high: float = 0.4,
) -> jax.Array:
  """GMPO: the geometric mean of a sequence's clipped ratios.

    loss = -exp(mean_t x'_t) A
    x' = min(x, clip_high) where A > 0, max(x, -clip_low) where A < 0

  with x the log-ratio (arXiv:2507.20673). One outlying ratio moves a geometric
  mean little, so the bounds may be wide. Unlike those of `clipped_surrogate`
  they are in nats: ratios of e^-0.4 and e^0.4 as published. Reduce the loss
  with `sequence_mean` or `segment_mean`.

    d loss / d log pi(token) = loss / length, or 0 where its x' is held

  for the loss of a sequence, which should have one advantage.

  Args:
    log_ratio_BT: x, as `ratios.log_ratio` returns it.
    advantage_BT: treated as a constant, equal on all tokens of a sequence.
    mask_BT: bool, the trained tokens.
    segment_BT, num_segments: of packed rows, as in `sequence_log_ratio`.
    clip_low, clip_high: positive, in nats.

  Returns:
    loss_BT, to be minimised; all trained tokens of a sequence have its loss.

  Raises:
    ValueError: a bound that is not positive.
  """
  require_positive("clip_low", clip_low)
  require_positive("clip_high", clip_high)
  chex.assert_rank([log_ratio_BT, advantage_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT])
  x_BT, advantage_BT = widen(log_ratio_BT), widen(advantage_BT)
  x_BT = jnp.where((advantage_BT > 0) & (x_BT > clip_high), clip_high, x_BT)
  x_BT = jnp.where((advantage_BT < 0) & (x_BT < -clip_low), -clip_low, x_BT)
  sequence_BT = sequence_log_ratio(
    x_BT, mask_BT, segment_BT, num_segments, average=True, limit=20.0
  )
  return reinforce(sequence_BT, advantage_BT)


def negative_log_likelihood(logprob_BT: jax.Array) -> jax.Array:
  """Returns -log pi(token) in nats, the loss of behaviour cloning.

    d loss / d log pi = -1

  the gradient of `reinforce` on policy with every advantage 1.
  """
  chex.assert_rank(logprob_BT, 2)
  return -widen(logprob_BT)


def check_clip(
  *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> None:
  """Raises `ValueError` unless the bounds of `clipped_surrogate` are valid."""
  require(
    "clip_low",
    clip_low,
    "above 0 and at most 1: it is the share of its probability that a bad "
    "token may lose before its gradient stops",
    lambda x: 0 < x <= 1,
  )
  require_positive("clip_high", clip_high)
  require(
    "dual_clip",
    dual_clip,
    "above 1: it bounds ratios of bad tokens that became likelier; pass None "
    "to leave them unbounded",
    lambda x: x > 1,
  )


def _clip(x_BT: jax.Array, low: float, high: float) -> jax.Array:
  # Not jnp.clip, which passes half a gradient on at the very bound.
  held_BT = jnp.where(x_BT > high, high, x_BT)
  return jnp.where(held_BT < low, low, held_BT)


def _inputs(
  log_ratio_BT: jax.Array, advantage_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Both checked and in full precision, the advantage as a constant."""
  chex.assert_rank([log_ratio_BT, advantage_BT], 2)
  chex.assert_equal_shape([log_ratio_BT, advantage_BT])
  return widen(log_ratio_BT), jax.lax.stop_gradient(widen(advantage_BT))
