"""Random trajectories and packed rows for tests of advantages."""

from typing import NamedTuple

import hypothesis
import numpy as np

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=20
)


def random_attempts(seed: int, num_trajectories: int = 24, num_groups: int = 6):
  """Rewards as agents get them; the last group is empty, invalid are NaN."""
  rng = np.random.default_rng(seed)
  group_N = rng.integers(num_groups - 1, size=num_trajectories)
  reward_N = rng.choice([-0.2, 0.0, 0.3, 1.0], size=num_trajectories)
  valid_N = rng.random(num_trajectories) < 0.8
  reward_N[~valid_N] = np.nan
  return reward_N.astype(np.float32), group_N, valid_N


class Episodes(NamedTuple):
  """Several episodes per row, of several turns with observations between.

  Off the mask everything is NaN or absurd. One row has no trained token.
  """

  reward_BT: np.ndarray
  value_BT: np.ndarray
  mask_BT: np.ndarray
  turn_BT: np.ndarray
  segment_BT: np.ndarray


def random_episodes(
  seed: int, num_rows: int = 5, num_tokens: int = 12
) -> Episodes:
  rng = np.random.default_rng(seed)
  shape = (num_rows, num_tokens)
  segment_BT = np.sort(rng.integers(3, size=shape), axis=1)
  turn_BT = np.cumsum(rng.random(shape) < 0.4, axis=1)
  mask_BT = rng.random(shape) < 0.7
  mask_BT[1] = False
  reward_BT = np.where(rng.random(shape) < 0.5, rng.normal(size=shape), 0)
  value_BT = rng.normal(size=shape)
  off = ~mask_BT
  reward_BT[off] = value_BT[off] = np.nan
  turn_BT[off] = rng.integers(-9, 99, size=off.sum())
  segment_BT[off] = rng.integers(-9, 99, size=off.sum())
  return Episodes(
    reward_BT.astype(np.float32),
    value_BT.astype(np.float32),
    mask_BT,
    turn_BT,
    segment_BT,
  )
