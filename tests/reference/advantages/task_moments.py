"""Moments of each task from everything that was ever seen of it, in float64."""

import collections
import math

import numpy as np

from tests.reference.advantages import group_advantages, returns


def measure_tasks(x, task, weight, *, num_tasks):
  """(weight_I, mean_I, variance_I) of the entries listed one by one."""
  return moments_of([entries(x, task, weight)], num_tasks)


def entries(x, task, weight):
  """Lists of (value, weight) by task."""
  seen = collections.defaultdict(list)
  for at in np.ndindex(x.shape):
    if weight[at]:
      seen[int(task[at])].append((float(x[at]), float(weight[at])))
  return seen


def moments_of(batches, num_tasks, decay=1.0):
  """Of all entries of all batches; a batch's count less after each later one.

  A batch without entries of a task does not make its earlier ones older.
  """
  moments = np.zeros((3, num_tasks))
  for i in range(num_tasks):
    seen = []
    for batch in batches:
      if batch[i]:
        seen = [(x, w * decay) for x, w in seen] + batch[i]
    total = math.fsum(w for _, w in seen)
    if total:
      mean = math.fsum(w * x for x, w in seen) / total
      squares = math.fsum(w * (x - mean) ** 2 for x, w in seen)
      variance = squares / (total - 1) if total > 1 else 0.0
      moments[:, i] = total, mean, variance
  return tuple(moments)


def normalise_by_moments(x, task, mask, moments, *, center, scale, epsilon):
  _, mean_I, variance_I = moments
  y = np.zeros(x.shape)
  for at in np.ndindex(x.shape):
    if mask[at]:
      i = int(task[at])
      y[at] = float(x[at]) - (mean_I[i] if center else 0.0)
      if scale:
        sigma = math.sqrt(variance_I[i])
        y[at] = y[at] / (sigma + epsilon) if sigma else 0.0
  return y


def whiten(x_BT, mask_BT, *, center=True, epsilon=1e-8):
  tokens = [float(x_BT[at]) for at in np.ndindex(x_BT.shape) if mask_BT[at]]
  y_BT = np.zeros(x_BT.shape)
  if not tokens:
    return y_BT
  mean = math.fsum(tokens) / len(tokens)
  squares = math.fsum((x - mean) ** 2 for x in tokens)
  std = math.sqrt(squares / max(len(tokens) - 1, 1) + epsilon)
  constant = len(set(tokens)) == 1
  for at in np.ndindex(x_BT.shape):
    if mask_BT[at]:
      y = 0.0 if constant else (float(x_BT[at]) - mean) / std
      y_BT[at] = y if center else y + mean
  return y_BT


def reinforce_plus_plus_advantage(
  reward_BT, mask_BT, *, discount, segment_BT=None, epsilon=1e-8
):
  return_BT = returns.discounted_returns(
    reward_BT, mask_BT, discount=discount, segment_BT=segment_BT
  )
  return whiten(return_BT, mask_BT, epsilon=epsilon)


def reinforce_plus_plus_baseline_advantage(
  reward_N, group_N, num_tokens_N, *, valid_N, epsilon=1e-8
):
  """One advantage per trajectory: that of its tokens, laid out and whitened."""
  advantage_N = group_advantages.group_advantage(
    reward_N, group_N, valid_N=valid_N, scale_by_std=False
  )
  longest = max(num_tokens_N, default=0)
  mask_NT = np.zeros((len(reward_N), longest), bool)
  for n, num_tokens in enumerate(num_tokens_N):
    mask_NT[n, :num_tokens] = valid_N[n]
  spread_NT = np.tile(advantage_N[:, None], (1, longest))
  whitened_NT = whiten(spread_NT, mask_NT, epsilon=epsilon)
  return whitened_NT[:, 0]
