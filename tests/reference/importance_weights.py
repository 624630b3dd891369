"""Weights of samples that another distribution drew, one at a time."""

import math

import numpy as np


def truncated_weight(log_ratio_BT, *, cap):
  weight_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(weight_BT.shape):
    weight_BT[at] = min(math.exp(log_ratio_BT[at]), cap)
  return weight_BT


def masked_weight(log_ratio_BT, *, low, high):
  weight_BT = np.zeros(log_ratio_BT.shape)
  for at in np.ndindex(weight_BT.shape):
    ratio = math.exp(log_ratio_BT[at])
    weight_BT[at] = ratio if low <= ratio <= high else 0.0
  return weight_BT


def normalised_weight(weight_BT, total, count):
  mean = total / count if count else 0.0
  return np.array(weight_BT) / (mean if mean > 1e-8 else 1.0)


def stale_failure_weight(log_ratio_BT, advantage_BT, *, divergence):
  weight_BT = np.ones(log_ratio_BT.shape)
  for at in np.ndindex(weight_BT.shape):
    if advantage_BT[at] < 0 and -log_ratio_BT[at] > divergence:
      weight_BT[at] = 0.0
  return weight_BT
