"""The attempts at one task, made together and handed over together.

What breaks by our fault is made again with the same seed, then masked; it is
never scored. A failed member never loses its siblings, and a slow one does not
hold them for ever.
"""

import asyncio
import dataclasses
import time

from agentrl_jax.controller import seeds
from agentrl_jax.controller.monitor import Monitor
from agentrl_jax.controller.player import Player, attempts_of
from agentrl_jax.controller.recorder import Attempt
from agentrl_jax.data.trajectory import Group, Task, Trajectory
from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  EnvironmentFault,
  GeneratorFault,
  PromptTooLong,
)

FAULTS = (EnvironmentFault, GeneratorFault, DeadlineExceeded)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupLimits:
  """The `group` section of the config."""

  size: int  # attempts at a task
  max_retries: int = 2  # of an attempt that broke by our fault
  retry_pause_s: float = 0.5  # before the first; doubles with each
  deadline_s: float = 3600.0  # then it is handed over as it is

  def __post_init__(self) -> None:
    if self.size < 1 or self.max_retries < 0 or self.deadline_s <= 0:
      raise ConfigError(
        f"{self} is not playable; group.size must be at least 1,"
        " group.max_retries at least 0 and group.deadline_s above 0"
      )

  @property
  def min_members(self) -> int:
    """Fewer cannot be judged against each other."""
    return min(2, self.size)


async def run_group(
  task: Task,
  player: Player,
  limits: GroupLimits,
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
    ended[attempt.number] = await make_attempt(attempt, player, limits, monitor)

  try:
    async with asyncio.timeout(limits.deadline_s) as timer:
      async with asyncio.TaskGroup() as members:
        for attempt in attempts:
          members.create_task(
            make(attempt), name=f"{group_id}-{attempt.number}"
          )
  except TimeoutError:
    if not timer.expired():
      raise
    monitor.cut_off(task, limits.size - len(ended))
  kept = tuple(t for _, t in sorted(ended.items()) if t is not None)
  if len(kept) < limits.min_members:
    monitor.dropped(task, "too_late" if timer.expired() else "faults")
    return None
  group = Group(group_id, task, kept, num_masked=limits.size - len(kept))
  monitor.grouped(group)
  return group


async def make_attempt(
  attempt: Attempt, player: Player, limits: GroupLimits, monitor: Monitor
) -> Trajectory | None:
  """Plays, again after a fault of ours; None once the retries are spent.

  Every retry has the seed of the first try. A task whose text alone is too long
  is given up at once, for it will not shrink.
  """
  for retry in range(limits.max_retries + 1):
    if retry:
      monitor.retried(attempt.task)
      await asyncio.sleep(limits.retry_pause_s * 2 ** (retry - 1))
    begun = time.monotonic()
    monitor.started(attempt.task)
    try:
      trajectory = await player.play(attempt)
    except PromptTooLong:
      monitor.faulted(attempt.task, "PromptTooLong")
      break
    except FAULTS as fault:
      monitor.faulted(attempt.task, type(fault).__name__)
      continue
    if trajectory.status.is_policys_doing:
      monitor.finished(trajectory, time.monotonic() - begun)
      return trajectory
    monitor.faulted(attempt.task, trajectory.status.value.replace(" ", "_"))
  monitor.masked(attempt.task)
  return None
