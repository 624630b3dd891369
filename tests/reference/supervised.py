"""Imitation, one token at a time in float64."""

import numpy as np


def negative_log_likelihood(logprob_BT):
  loss_BT = np.zeros(logprob_BT.shape)
  for b, t in np.ndindex(loss_BT.shape):
    loss_BT[b, t] = -float(logprob_BT[b, t])
  return loss_BT
