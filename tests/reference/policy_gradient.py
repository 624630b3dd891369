"""Policy-gradient losses, one token at a time in float64."""

import math

import numpy as np


def reinforce(log_ratio_BT, advantage_BT):
  loss_BT = np.zeros(log_ratio_BT.shape)
  for b, t in np.ndindex(loss_BT.shape):
    loss_BT[b, t] = -math.exp(log_ratio_BT[b, t]) * float(advantage_BT[b, t])
  return loss_BT


def clipped_surrogate(
  log_ratio_BT, advantage_BT, *, clip_low, clip_high, dual_clip=None
):
  loss_BT = np.zeros(log_ratio_BT.shape)
  for b, t in np.ndindex(loss_BT.shape):
    ratio = math.exp(log_ratio_BT[b, t])
    advantage = float(advantage_BT[b, t])
    clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
    loss = max(-advantage * ratio, -advantage * clipped)
    if dual_clip is not None and advantage < 0:
      loss = min(loss, -advantage * dual_clip)
    loss_BT[b, t] = loss
  return loss_BT
