"""Advantages, one group and one task at a time in float64."""

import collections
import math

import numpy as np


def group_advantage(
  reward_N, group_N, *, valid_N, scale_by_std=True, ddof=1, epsilon=1e-6
):
  members = collections.defaultdict(list)
  for n, group in enumerate(group_N):
    if valid_N[n]:
      members[int(group)].append(n)
  advantage_N = np.zeros(len(reward_N))
  for group in members.values():
    rewards = [float(reward_N[n]) for n in group]
    mean, std = 0.0, 1.0
    if len(rewards) > 1:
      mean, std = _mean_and_std(rewards, ddof)
    for n, reward in zip(group, rewards, strict=True):
      scale = std + epsilon if scale_by_std else 1.0
      advantage_N[n] = (reward - mean) / scale
  return advantage_N


def leave_one_out_advantage(reward_N, group_N, *, valid_N):
  advantage_N = np.zeros(len(reward_N))
  for n, others in _siblings(reward_N, group_N, valid_N):
    baseline = math.fsum(others) / len(others) if others else 0.0
    advantage_N[n] = float(reward_N[n]) - baseline
  return advantage_N


def best_of_group_advantage(
  reward_N, group_N, *, valid_N, scale_by_std=True, epsilon=1e-6
):
  advantage_N = np.zeros(len(reward_N))
  for n, others in _siblings(reward_N, group_N, valid_N):
    reward = float(reward_N[n])
    if others and reward > max(others):
      _, std = _mean_and_std([reward, *others], ddof=1)
      scale = std + epsilon if scale_by_std else 1.0
      advantage_N[n] = (reward - max(others)) / scale
  return advantage_N


def group_has_signal(reward_N, group_N, num_groups, valid_N):
  rewards = collections.defaultdict(set)
  for reward, group, valid in zip(reward_N, group_N, valid_N, strict=True):
    if valid:
      rewards[int(group)].add(float(reward))
  return np.array([len(rewards[m]) > 1 for m in range(num_groups)], bool)


def task_normalise(
  advantage_BT, task_BT, mask_BT, *, center=True, scale=True, epsilon=1e-6
):
  tokens = collections.defaultdict(list)
  for b, t in np.ndindex(mask_BT.shape):
    if mask_BT[b, t]:
      tokens[int(task_BT[b, t])].append((b, t))
  normalised_BT = np.zeros(mask_BT.shape)
  for places in tokens.values():
    values = [float(advantage_BT[at]) for at in places]
    mean, std = _mean_and_std(values, ddof=1)
    constant = len(set(values)) == 1
    for at, value in zip(places, values, strict=True):
      value = value - mean if center else value
      value = value / (std + epsilon) if scale else value
      normalised_BT[at] = 0 if constant and (center or scale) else value
  return normalised_BT


def _siblings(reward_N, group_N, valid_N):
  """Each valid attempt, with the rewards of the group's other valid ones."""
  valid = [n for n in range(len(reward_N)) if valid_N[n]]
  for n in valid:
    yield (
      n,
      [
        float(reward_N[m]) for m in valid if m != n and group_N[m] == group_N[n]
      ],
    )


def _mean_and_std(values, ddof):
  mean = math.fsum(values) / len(values)
  squares = math.fsum((v - mean) ** 2 for v in values)
  return mean, math.sqrt(squares / max(len(values) - ddof, 1))
