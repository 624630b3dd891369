"""Random batches with NaN wherever nothing may be read.

For the tests that cut or spread a batch, and want its parts to add up.
"""

import numpy as np


def attempts(
  seed: int, num_attempts: int, num_groups: int, num_tasks: int
) -> dict[str, np.ndarray]:
  """Rewards by group; some attempts are not valid, some have no tokens."""
  rng = np.random.default_rng(seed)
  group_N = rng.integers(num_groups, size=num_attempts)
  valid_N = rng.random(num_attempts) < 0.8
  reward_N = rng.choice([-0.2, 0.0, 0.3, 1.0], size=num_attempts)
  return {
    "reward_N": _hide(reward_N, valid_N),
    "group_N": group_N,
    "valid_N": valid_N,
    "task_N": group_N % num_tasks,
    "num_tokens_N": rng.integers(99, size=num_attempts),
  }


def steps(
  seed: int, num_attempts: int, num_steps: int, num_states: int
) -> dict[str, np.ndarray]:
  """Rewards of steps, which start in one of few states."""
  rng = np.random.default_rng(seed)
  shape = (num_attempts, num_steps)
  valid_NU = rng.random(shape) < 0.8
  return {
    "reward_NU": _hide(rng.choice([0.0, 0.5, 1.0], size=shape), valid_NU),
    "state_NU": rng.integers(num_states, size=shape),
    "valid_NU": valid_NU,
  }


def pairs(seed: int, num_pairs: int) -> tuple[np.ndarray, np.ndarray]:
  """Log-probabilities of answers under prompts, and those that are valid."""
  rng = np.random.default_rng(seed)
  shape = (num_pairs, num_pairs)
  valid_NN = rng.random(shape) < 0.8
  return _hide(-rng.gamma(2.0, 4.0, size=shape), valid_NN), valid_NN


def tokens(
  seed: int,
  num_rows: int,
  num_tokens: int,
  num_segments: int,
  num_tasks: int,
) -> dict[str, np.ndarray]:
  """Packed rows of several turns; one row has no trained token."""
  rng = np.random.default_rng(seed)
  shape = (num_rows, num_tokens)
  mask_BT = rng.random(shape) < rng.random((num_rows, 1))
  mask_BT[num_rows // 2] = False
  policy_BT = -rng.gamma(2.0, 0.5, size=shape)
  value_BT = rng.normal(size=shape)
  floats = {
    "x_BT": rng.normal(size=shape),
    "reward_BT": rng.normal(size=shape) * (rng.random(shape) < 0.2),
    "value_BT": value_BT,
    "return_BT": value_BT + rng.normal(scale=0.5, size=shape),
    "policy_BT": policy_BT,
    "behavior_BT": policy_BT + rng.normal(scale=0.5, size=shape),
    "reference_BT": policy_BT + rng.normal(scale=0.5, size=shape),
  }
  return {name: _hide(x, mask_BT) for name, x in floats.items()} | {
    "mask_BT": mask_BT,
    "segment_BT": np.sort(rng.integers(num_segments, size=shape), axis=1),
    "turn_BT": np.cumsum(rng.random(shape) < 0.3, axis=1),
    "task_BT": rng.integers(num_tasks, size=shape),
  }


def _hide(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
  return np.where(mask, x, np.nan).astype(np.float32)
