"""A critic's loss and its share of the variance, in float64."""

import numpy as np


def clipped_value_loss(value_BT, old_value_BT, return_BT, *, clip):
  loss_BT = np.zeros(value_BT.shape)
  for at in np.ndindex(loss_BT.shape):
    value, old = float(value_BT[at]), float(old_value_BT[at])
    target = float(return_BT[at])
    loss_BT[at] = 0.5 * (value - target) ** 2
    if clip is not None:
      near = min(max(value, old - clip), old + clip)
      loss_BT[at] = max(loss_BT[at], 0.5 * (near - target) ** 2)
  return loss_BT


def explained_variance(value_BT, return_BT, mask_BT):
  returns = [float(r) for r in return_BT[mask_BT]]
  errors = [
    float(r) - float(v)
    for v, r in zip(value_BT[mask_BT], return_BT[mask_BT], strict=True)
  ]
  if len(set(returns)) < 2:
    return 0.0
  return 1 - np.var(errors) / np.var(returns)
