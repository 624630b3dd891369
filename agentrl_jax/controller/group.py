"""The attempts at one task, made together and handed over together.

A failed member never loses its siblings, and a slow one does not hold them for
ever. What a failure is, `attempt` decides.
"""

import asyncio
import dataclasses

from agentrl_jax.controller.attempt import RetryLimits, play_with_retries
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player, attempts_of
from agentrl_jax.controller.recorder import Attempt
from agentrl_jax.data import seeds
from agentrl_jax.data.trajectory import Group, Task, Trajectory
from agentrl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupLimits:
  """The `group` section of the config."""

  size: int  # attempts at a task
  deadline_s: float = 3600.0  # then it is handed over as it is

  def __post_init__(self) -> None:
    if self.size < 1 or self.deadline_s <= 0:
      raise ConfigError(
        f"group.size is {self.size} and group.deadline_s {self.deadline_s};"
        " the size must be at least 1 and the deadline above 0"
      )

  @property
  def min_members(self) -> int:
    """Fewer cannot be judged against each other."""
    return min(2, self.size)


async def run_group(
  task: Task,
  player: Player,
  limits: GroupLimits,
  retries: RetryLimits,
  monitor: Monitor,
  *,
  group_id: str,
  seed: int,
) -> Group | None:
  """Waits until every attempt ended, or the deadline passed.

  Returns None, and counts why, if fewer than two members are left. Cancelling
  cancels every attempt and leaves no session open. An error that is no fault of
  environment or engine is a bug: it cancels the rest and is raised.
  """
  attempts = attempts_of(
    task,
    group_id=group_id,
    seeds=[seeds.seed_of(seed, "attempt", n) for n in range(limits.size)],
  )
  ended: dict[int, Trajectory | None] = {}

  async def make(attempt: Attempt) -> None:
    ended[attempt.number] = await play_with_retries(
      attempt, player, retries, monitor
    )

  try:
    async with asyncio.timeout(limits.deadline_s) as timer:
      async with asyncio.TaskGroup() as members:
        for attempt in attempts:
          members.create_task(
            make(attempt), name=f"{group_id}-{attempt.number}"
          )
  except TimeoutError:  # the timer's: a member's comes in an ExceptionGroup
    monitor.cut_off(task, limits.size - len(ended))
  kept = tuple(t for _, t in sorted(ended.items()) if t is not None)
  if len(kept) < limits.min_members:
    monitor.dropped(task, "too_late" if timer.expired() else "faults")
    return None
  group = Group(group_id, task, kept, num_masked=limits.size - len(kept))
  monitor.grouped(group)
  return group
