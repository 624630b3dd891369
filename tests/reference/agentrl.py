"""AgentRL's whole objective (arXiv:2510.04206), from logits to one number."""

import numpy as np

from tests.reference import kl, logprobs, policy_gradient, ratios, reductions
from tests.reference.advantages import group_advantages


def objective(logits_BTV, batch, *, temperature, kl_weight):
  """`batch` is a mapping of numpy arrays; one trajectory per row."""
  mask_BT = batch["mask_BT"]
  logprob_BT = logprobs.token_logprob(
    logits_BTV, batch["token_BT"], temperature
  )
  advantage_B = group_advantages.group_advantage(
    batch["reward_B"], batch["group_B"], valid_N=np.ones(len(mask_BT), bool)
  )
  advantage_BT = group_advantages.task_normalise(
    np.broadcast_to(advantage_B[:, None], mask_BT.shape),
    np.broadcast_to(batch["task_B"][:, None], mask_BT.shape),
    mask_BT,
  )
  loss_BT = policy_gradient.clipped_surrogate(
    ratios.log_ratio(logprob_BT, batch["behavior_logprob_BT"], mask_BT),
    advantage_BT,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=3.0,
  )
  divergence_BT = kl.k3(
    ratios.log_ratio(logprob_BT, batch["reference_logprob_BT"], mask_BT),
    limit=10.0,
  )
  total, weight = reductions.token_mean(
    loss_BT + kl_weight * divergence_BT, mask_BT
  )
  return total / weight


def loss(
  policy_BT,
  behavior_BT,
  reference_BT,
  advantage_BT,
  mask_BT,
  segment_BT=None,
  num_segments=1,
  *,
  clip_low=0.2,
  clip_high=0.2,
  dual_clip=3.0,
  kl_coefficient=1e-4,
  reduction="token",
):
  """(total, weight) of one batch, whose advantages are known."""
  loss_BT = policy_gradient.clipped_surrogate(
    ratios.log_ratio(policy_BT, behavior_BT, mask_BT),
    advantage_BT,
    clip_low=clip_low,
    clip_high=clip_high,
    dual_clip=dual_clip,
  ) + kl_coefficient * kl.k3(
    ratios.log_ratio(policy_BT, reference_BT, mask_BT), limit=10.0
  )
  if reduction == "token":
    return reductions.token_mean(loss_BT, mask_BT)
  if segment_BT is None:
    segment_BT = np.zeros(mask_BT.shape, int)
  return reductions.segment_mean(loss_BT, mask_BT, segment_BT, num_segments)
