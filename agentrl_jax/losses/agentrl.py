"""AgentRL's whole objective as one function."""

import jax

from agentrl_jax.losses.arguments import require
from agentrl_jax.losses.kl import k3
from agentrl_jax.losses.policy_gradient import clipped_surrogate
from agentrl_jax.losses.ratios import log_ratio
from agentrl_jax.losses.reductions import Mean, segment_mean, token_mean

_KL_LIMIT = 10.0


def agentrl_loss(
  policy_logprob_BT: jax.Array,
  behavior_logprob_BT: jax.Array,
  reference_logprob_BT: jax.Array | None,
  advantage_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array | None = None,
  num_segments: int = 1,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float | None = 3.0,
  kl_coefficient: float = 1e-4,
  reduction: str = "token",
) -> Mean:
  """PPO with dual clip against the sampler, and k3 to the reference.

    mean over tokens of  clipped_surrogate(pi / mu, A) + beta k3(pi / ref)

  (AgentRL, arXiv:2510.04206, and its released settings, the defaults here; k3
  is at most 10.) mu is the distribution that each token was sampled from, stale
  versions and temperature included. Advantages come from
  `group_advantage` and `task_normalise`, over the global batch.

  The gradient is that of `clipped_surrogate` plus beta (1 - ref / pi); the two
  ratios are held within e^+-20, and pass no gradient on at these bounds.

  Args:
    policy_logprob_BT: log pi, at the sampler's temperature; differentiable.
    behavior_logprob_BT: log mu; a constant.
    reference_logprob_BT: log ref; a constant; None if kl_coefficient is 0.
    advantage_BT: a constant.
    mask_BT: bool, the trained tokens. Off it, all of the above may be NaN.
    segment_BT, num_segments: the sequences of packed rows, as in
      `segment_mean`; for reduction="sequence" only.
    clip_low, clip_high, dual_clip: as in `clipped_surrogate`.
    kl_coefficient: beta, not negative.
    reduction: "token", every token weighs the same, or "sequence", every
      sequence does.

  Returns:
    A Mean: add it to those of other micro-batches, then take its value.

  Raises:
    ValueError: a setting out of its range, or kl_coefficient without a
      reference.
  """
  require("kl_coefficient", kl_coefficient, "0 or positive", lambda x: x >= 0)
  if reduction not in ("token", "sequence"):
    raise ValueError(
      f"reduction={reduction!r} must be 'token' or 'sequence': what weighs "
      "the same, every token or every sequence"
    )
  loss_BT = clipped_surrogate(
    log_ratio(policy_logprob_BT, behavior_logprob_BT, mask_BT),
    advantage_BT,
    clip_low=clip_low,
    clip_high=clip_high,
    dual_clip=dual_clip,
  )
  if reference_logprob_BT is not None:
    to_reference_BT = log_ratio(
      policy_logprob_BT, reference_logprob_BT, mask_BT
    )
    loss_BT = loss_BT + kl_coefficient * k3(to_reference_BT, limit=_KL_LIMIT)
  else:
    require(
      "kl_coefficient",
      kl_coefficient,
      "0 without reference_logprob_BT: pass the log-probabilities of the "
      "policy to stay near to",
      lambda x: x == 0,
    )
  if reduction == "token":
    return token_mean(loss_BT, mask_BT)
  return segment_mean(loss_BT, mask_BT, segment_BT, num_segments)
