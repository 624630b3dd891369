"""GiGPO (arXiv:2505.10978), one step at a time in float64."""

import collections
import math

import numpy as np

from tests.reference.advantages import group_advantages


def gigpo_advantage(
  reward_NU,
  state_NU,
  group_N,
  *,
  valid_NU,
  discount,
  step_weight=1.0,
  scale_by_std=True,
  epsilon=1e-6,
):
  steps = [list(np.flatnonzero(valid_U)) for valid_U in valid_NU]
  rewards = [
    [float(reward_NU[n, u]) for u in made] for n, made in enumerate(steps)
  ]
  episode_N = group_advantages.group_advantage(
    [math.fsum(r) for r in rewards],
    group_N,
    valid_N=[bool(r) for r in rewards],
    scale_by_std=scale_by_std,
    epsilon=epsilon,
  )
  return_NU = np.zeros(reward_NU.shape)
  for n, made in enumerate(steps):
    for i, u in enumerate(made):
      return_NU[n, u] = math.fsum(
        discount**k * reward for k, reward in enumerate(rewards[n][i:])
      )
  step_NU = step_advantage(
    return_NU,
    state_NU,
    group_N,
    valid_NU=valid_NU,
    scale_by_std=scale_by_std,
    epsilon=epsilon,
  )
  total_NU = episode_N[:, None] + step_weight * step_NU
  return np.where(valid_NU, total_NU, 0)


def step_advantage(
  return_NU, state_NU, group_N, *, valid_NU, scale_by_std=True, epsilon=1e-6
):
  met = collections.defaultdict(list)
  for n, u in np.ndindex(valid_NU.shape):
    if valid_NU[n, u]:
      met[int(group_N[n]), int(state_NU[n, u])].append((n, u))
  advantage_NU = np.zeros(valid_NU.shape)
  for steps in met.values():
    returns = [float(return_NU[at]) for at in steps]
    mean = math.fsum(returns) / len(returns)
    squares = math.fsum((r - mean) ** 2 for r in returns)
    std = math.sqrt(squares / max(len(returns) - 1, 1))
    for at, value in zip(steps, returns, strict=True):
      if len(set(returns)) > 1:
        scale = std + epsilon if scale_by_std else 1.0
        advantage_NU[at] = (value - mean) / scale
  return advantage_NU
