"""Log-ratios, one token at a time in float64."""

import numpy as np


def log_ratio(policy_logprob_BT, behavior_logprob_BT, mask_BT, *, limit=20.0):
  log_ratio_BT = np.zeros(mask_BT.shape)
  for b, t in np.ndindex(mask_BT.shape):
    if mask_BT[b, t]:
      x = float(policy_logprob_BT[b, t]) - float(behavior_logprob_BT[b, t])
      log_ratio_BT[b, t] = min(max(x, -limit), limit)
  return log_ratio_BT
