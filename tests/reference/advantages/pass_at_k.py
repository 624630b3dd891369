"""Advantages of teams of k attempts, one team at a time in float64."""

import collections
import itertools
import math

import numpy as np


def pass_at_k_advantage(success_N, group_N, *, valid_N, k):
  """GRPO (population std) over all teams; a member gets its teams' mean."""
  advantage_N = np.zeros(len(success_N))
  for members in _groups(group_N, valid_N):
    teams = list(itertools.combinations(members, min(k, len(members))))
    rewards = [float(any(success_N[n] for n in team)) for team in teams]
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    for n in members if std > 0 else []:
      mine = [
        (reward - mean) / std
        for team, reward in zip(teams, rewards, strict=True)
        if n in team
      ]
      advantage_N[n] = math.fsum(mine) / len(mine)
  return advantage_N


def max_at_k_advantage(reward_N, group_N, *, valid_N, k):
  """What the best of a team loses without the member, over all teams."""
  advantage_N = np.zeros(len(reward_N))
  for members in _groups(group_N, valid_N):
    teams = list(itertools.combinations(members, min(k, len(members))))
    for team in teams if len(teams[0]) > 1 else []:
      rewards = {n: float(reward_N[n]) for n in team}
      for n in team:
        without = max(r for m, r in rewards.items() if m != n)
        gain = max(rewards.values()) - without
        advantage_N[n] += gain / len(teams)
  return advantage_N


def _groups(group_N, valid_N):
  members = collections.defaultdict(list)
  for n, group in enumerate(group_N):
    if valid_N[n]:
      members[int(group)].append(n)
  return members.values()
