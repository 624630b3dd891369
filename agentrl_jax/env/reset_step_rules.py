"""What a wrapped object's steps come to: how they are read, and what they pay.

Pure functions of what the object said; nothing here runs it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError

RETURNS = ("sum", "last")
SPLIT_BY = ("observation", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """The settings that every wrapped environment has."""

  num_tasks: int = 1 << 20  # of each split
  max_rounds: int = 50  # answers of the policy, then the attempt is over
  returns: str = "sum"  # of an object's rewards; or "last"
  # The return that is worth 0, and the one that is worth 1; None: as it is.
  reward_range: tuple[float, float] | None = None
  truncated_is_completed: bool = False  # or the task's limit was reached
  # What keeps train and test apart: first observations, or only seeds.
  split_by: str = "observation"
  blocking: bool = False  # runs in a thread of its own, with a deadline
  step_limit_s: float = 60.0  # on what blocks, or awaits

  def __post_init__(self) -> None:
    for key in ("num_tasks", "max_rounds", "step_limit_s"):
      if getattr(self, key) <= 0:
        raise ConfigError(f"{key}={getattr(self, key)} must be above 0")
    for key, known in (("returns", RETURNS), ("split_by", SPLIT_BY)):
      if getattr(self, key) not in known:
        raise ConfigError(
          f"{key}={getattr(self, key)!r} is not one of {', '.join(known)}"
        )
    if self.reward_range and self.reward_range[0] >= self.reward_range[1]:
      raise ConfigError(
        f"reward_range={self.reward_range} must name the lower return first"
      )

  def value(self, rewards: Sequence[float]) -> float:
    """What the policy is paid for these rewards."""
    if not rewards:
      return 0.0
    total = math.fsum(rewards) if self.returns == "sum" else rewards[-1]
    if self.reward_range is None:
      return total
    low, high = self.reward_range
    return min(max((total - low) / (high - low), 0.0), 1.0)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one step of a wrapped object came to."""

  observation: Any
  reward: float
  terminated: bool
  truncated: bool = False


def read_outcome(result: Any) -> Outcome:
  """Reads a tuple of 3, 4 or 5, or an object with observation and done."""
  match result:
    case (observation, reward, terminated, truncated, _):
      return Outcome(
        observation, float(reward), bool(terminated), bool(truncated)
      )
    case (observation, reward, done, info):  # as the old Gym had it
      cut = isinstance(info, Mapping) and bool(info.get("TimeLimit.truncated"))
      return Outcome(observation, float(reward), bool(done) and not cut, cut)
    case (observation, reward, done):
      return Outcome(observation, float(reward), bool(done))
  if hasattr(result, "observation") and hasattr(result, "done"):
    reward = getattr(result, "reward", None)
    return Outcome(
      result.observation,
      0.0 if reward is None else float(reward),
      bool(result.done),
    )
  raise TypeError(
    f"step gave {type(result).__name__}, which is no tuple of 3, 4 or 5 and "
    "has no observation and done; override `outcome` to read it"
  )
