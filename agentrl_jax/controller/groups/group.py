"""Plays the episodes of a group together, and retries those that break.

An episode that the policy ended is kept, whatever its result. One that broke
for another reason is played again with the same seed, and in the end given up
and counted; it is never scored. An episode that is lost does not cost its
group, and a slow one holds the group up to a deadline only.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax import logs, tracing
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import DropReason, Monitor
from agentrl_jax.controller.player import Player, episodes_of
from agentrl_jax.data.records import (
  EpisodeSpec,
  Group,
  Task,
  Trajectory,
  seed_of,
)
from agentrl_jax.errors import (
  DeadlineExceeded,
  EnvironmentFault,
  GeneratorFault,
  PromptTooLong,
)
from agentrl_jax.keys import Section, key, seconds

_log = logging.getLogger(__name__)

FAULTS = (EnvironmentFault, GeneratorFault, DeadlineExceeded)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupLimits(Section, section="group"):
  """The `group` section of the config."""

  size: int = key(8, "attempts at a task", at_least=1)
  deadline_s: float = seconds(
    3600.0,
    "time after which a group is handed over with the episodes that it has",
  )

  @property
  def min_members(self) -> int:
    """The least number of trajectories that allows relative advantages."""
    return min(2, self.size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetryLimits(Section, section="retry"):
  """The `retry` section of the config."""

  max_retries: int = key(2, "per attempt that a fault ended")
  backoff_s: float = key(
    0.5, "wait before the first retry; doubles with each", at_most=1e9
  )


async def run_group(
  task: Task,
  player: Player,
  limits: GroupLimits,
  retries: RetryLimits,
  monitor: Monitor,
  *,
  group_id: str,
  seed: int,
  timers: GroupTimers | None = None,
) -> Group | None:
  """Waits until every episode has ended, or the deadline has passed.

  `timers` may end the group before its deadline.

  Returns None, and counts why, if fewer than `limits.min_members` trajectories
  are left. Cancelling cancels every episode and leaves no session open. An
  error that is no fault of environment or engine is a bug: it cancels the
  other episodes and is raised. `episode.environments_own` draws the line.
  """
  specs = episodes_of(
    task,
    group_id=group_id,
    seeds=[seed_of(seed, "attempt", n) for n in range(limits.size)],
  )
  ended: dict[int, Trajectory | None] = {}
  timers = timers or GroupTimers()
  clock = asyncio.get_running_loop().time
  started_at = clock()

  async def play(spec: EpisodeSpec) -> None:
    ended[spec.attempt] = await play_with_retries(
      spec, player, retries, monitor
    )

  try:
    running = timers.running(task.name, group_id, limits.deadline_s)
    with tracing.span(f"group {task.name}", _facts(task, group_id)):
      async with running as timer, asyncio.TaskGroup() as members:
        for spec in specs:
          members.create_task(play(spec), name=f"{group_id}-{spec.attempt}")
  except TimeoutError:  # the timer's: a member's comes in an ExceptionGroup
    monitor.cut_off(task, limits.size - len(ended))
  kept = tuple(t for _, t in sorted(ended.items()) if t is not None)
  if len(kept) < limits.min_members:
    monitor.dropped(
      task, DropReason.TOO_LATE if timer.expired() else DropReason.FAULTS
    )
    return None
  length_s = clock() - started_at
  if not timer.expired():
    timers.note_whole(task.name, started_at)
  group = Group(group_id, task, kept, num_masked=limits.size - len(kept))
  monitor.grouped(group, length_s)
  return group


async def play_with_retries(
  spec: EpisodeSpec, player: Player, retries: RetryLimits, monitor: Monitor
) -> Trajectory | None:
  """Plays the episode, again after a fault; None once the retries are spent.

  Every retry has the seed of the first try. A task whose own text is too long
  is given up at once: a retry cannot shorten it.
  """
  for retry in range(retries.max_retries + 1):
    if retry:
      monitor.retried(spec.task)
      await asyncio.sleep(retries.backoff_s * 2 ** (retry - 1))
    started_at = time.monotonic()
    monitor.started(spec.task)
    facts = _episode_facts(spec, retry)
    with logs.about(facts):
      try:
        trajectory = await _traced(player, spec, facts)
      except FAULTS as fault:
        monitor.faulted(spec.task, type(fault).__name__, str(fault))
        cause = fault.__cause__
        is_new = cause is not None and monitor.is_new(spec.task, cause)
        _log.warning(
          "try %d of %s broke: %s",
          retry + 1,
          spec,
          fault,
          exc_info=cause if is_new else None,
        )
        if isinstance(fault, PromptTooLong):
          break
        continue
      if trajectory.status.is_policys_doing:
        monitor.finished(trajectory, time.monotonic() - started_at)
        return trajectory
      status, why = trajectory.status.value, trajectory.fault
      monitor.faulted(spec.task, status.replace(" ", "_"), why)
      _log.warning("try %d of %s ended as %r: %s", retry + 1, spec, status, why)
  monitor.masked(spec.task)
  return None


async def play_all(
  specs: Sequence[EpisodeSpec],
  player: Player,
  retries: RetryLimits,
  monitor: Monitor,
  *,
  concurrency: int,
  on_end: Callable[[Trajectory | None], None],
) -> list[Trajectory | None]:
  """Plays episodes, `concurrency` at a time; returns them in their order.

  Cancelling leaves no session open; a bug cancels the other episodes and is
  raised.
  """
  played: list[Trajectory | None] = [None] * len(specs)
  remaining = iter(enumerate(specs))

  async def work() -> None:
    for place, spec in remaining:  # shared, so each one is taken by one worker
      played[place] = await play_with_retries(spec, player, retries, monitor)
      on_end(played[place])

  async with asyncio.TaskGroup() as workers:
    for n in range(min(concurrency, len(specs))):
      workers.create_task(work(), name=f"episodes-{n}")
  return played


async def _traced(
  player: Player, spec: EpisodeSpec, facts: Mapping[str, str | int]
) -> Trajectory:
  """Plays an episode as a span, whose name is that of its task."""
  facts = {
    **facts,
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.agent.name": spec.task.name,
  }
  with tracing.span(f"invoke_agent {spec.task.name}", facts) as span:
    trajectory = await player.play(spec)
    span.set_attributes(
      {
        "agentrl.status": trajectory.status.value,
        "agentrl.reward": trajectory.reward,
        "agentrl.turns": len(trajectory.turns),
        "agentrl.tokens": trajectory.num_tokens,
      }
    )
    return trajectory


def _episode_facts(spec: EpisodeSpec, retry: int) -> dict[str, str | int]:
  return {
    **_facts(spec.task, spec.group_id),
    "gen_ai.conversation.id": f"{spec.group_id}-{spec.attempt}",
    "agentrl.attempt": spec.attempt,
    "agentrl.retry": retry,
    "agentrl.seed": spec.seed,
  }


def _facts(task: Task, group_id: str) -> dict[str, str | int]:
  return {
    "agentrl.task.name": task.name,
    "agentrl.task.split": task.split,
    "agentrl.task.index": task.index,
    "agentrl.group.id": group_id,
  }
