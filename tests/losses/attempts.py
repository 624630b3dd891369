"""Random attempts at tasks, as awkward as real ones, for several tests."""

import numpy as np


def random_attempts(seed: int, num_trajectories: int = 24, num_groups: int = 6):
  """Rewards as agents get them; the last group is empty, invalid are NaN."""
  rng = np.random.default_rng(seed)
  group_N = rng.integers(num_groups - 1, size=num_trajectories)
  reward_N = rng.choice([-0.2, 0.0, 0.3, 1.0], size=num_trajectories)
  valid_N = rng.random(num_trajectories) < 0.8
  reward_N[~valid_N] = np.nan
  return reward_N.astype(np.float32), group_N, valid_N
