"""Filters of groups, one group at a time in float64."""

import math

import numpy as np


def group_std(reward_N, group_N, *, num_groups, valid_N, ddof=1):
  std_M = np.zeros(num_groups)
  for m in range(num_groups):
    rewards = _rewards(reward_N, group_N, valid_N, m)
    if len(set(rewards)) > 1:
      # 13 digits, so that rounding breaks no tie.
      std_M[m] = float(f"{np.std(rewards, ddof=ddof):.13g}")
  return std_M


def keep_groups_above(reward_N, group_N, *, num_groups, valid_N, threshold):
  std_M = group_std(reward_N, group_N, num_groups=num_groups, valid_N=valid_N)
  return np.array([std > threshold for std in std_M], bool)


def keep_top_groups(reward_N, group_N, *, num_groups, valid_N, share):
  std_M = group_std(reward_N, group_N, num_groups=num_groups, valid_N=valid_N)
  present = [
    m for m in range(num_groups) if _rewards(reward_N, group_N, valid_N, m)
  ]
  quota = max(int(share * len(present) + 1e-9), 1)
  keep_M = np.zeros(num_groups, bool)
  keep_M[sorted(present, key=lambda m: -std_M[m])[:quota]] = True
  return keep_M


def keep_top_signal(reward_N, group_N, *, num_groups, valid_N, share):
  std_M = group_std(reward_N, group_N, num_groups=num_groups, valid_N=valid_N)
  keep_M = np.zeros(num_groups, bool)
  held = 0.0
  for m in sorted(range(num_groups), key=lambda m: -std_M[m]):
    if std_M[m] > 0 and held < share * std_M.sum() - 1e-9:
      keep_M[m] = True
      held += std_M[m]
  return keep_M


def keep_top_softmax(reward_N, group_N, *, num_groups, valid_N, share):
  std_M = group_std(reward_N, group_N, num_groups=num_groups, valid_N=valid_N)
  present = [
    m for m in range(num_groups) if _rewards(reward_N, group_N, valid_N, m)
  ]
  total = sum(math.exp(std_M[m]) for m in present)
  keep_M = np.zeros(num_groups, bool)
  held = 0.0
  for m in sorted(present, key=lambda m: -std_M[m]):
    if held < share - 1e-6:
      keep_M[m] = True
      held += math.exp(std_M[m]) / total
  return keep_M


def _rewards(reward_N, group_N, valid_N, group):
  return [
    float(reward)
    for reward, g, valid in zip(reward_N, group_N, valid_N, strict=True)
    if valid and g == group
  ]
