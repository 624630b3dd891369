"""Keeps as many groups in flight as admission allows, and queues finished ones.

Invariants:
- the collector and the queue hold the whole state of the pipeline, so that
  `snapshot` takes it in one piece and `restore` continues from it;
- no finished group is lost, and none comes twice; one without a signal may be
  replaced;
- groups that were in flight are issued again first, with the same seeds.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from agentrl_jax.controller.groups.admission import Admission
from agentrl_jax.controller.groups.breaker import RESOLUTION_S, Breakers
from agentrl_jax.controller.groups.group_queue import GroupQueue
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.waiting import LearnerWatch
from agentrl_jax.data.records import Group, Task, seed_of
from agentrl_jax.waits import Condition


class Stream(Protocol):
  """An endless, numbered stream of tasks; `controller.task_source` has one."""

  def __next__(self) -> tuple[int, Task]:
    """Returns the next task and its position; no position comes twice."""

  def shares(self) -> Mapping[str, float]:
    """Returns each environment's share of the tasks; they sum to 1."""

  def state(self) -> dict[str, Any]:
    """Returns the state of the stream, for `restore`."""

  def restore(self, state: dict[str, Any]) -> None:
    """Continues from `state`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectorState:
  """State that a run needs to continue as if it had not stopped."""

  stream: Mapping[str, Any]
  in_flight: tuple[tuple[int, Task], ...]  # started, not finished
  queued: tuple[Group, ...]  # finished, not taken


# Plays a group: maps (task, group id, seed) to it, or to None if it was lost.
RunGroup = Callable[[Task, str, int], Awaitable[Group | None]]


def any_signal(group: Group) -> bool:
  """Returns True if two trajectories of the group have different rewards."""
  return len({t.reward for t in group.trajectories}) > 1


class Collector:
  """Pipeline of one run from tasks to groups. Belongs to one event loop."""

  def __init__(
    self,
    stream: Stream,
    run_group: RunGroup,
    queue: GroupQueue,
    admission: Admission,
    breakers: Breakers,
    *,
    seed: int,
    has_signal: Callable[[Group], bool] = any_signal,
    watch: LearnerWatch | None = None,
    overdue: OverdueGroups | None = None,
  ) -> None:
    """`watch` bounds the waits for the learner; the queue has the same one.

    `overdue` ends groups that alone hold the learner back.

    `has_signal` tells whether a group teaches anything. A group that teaches
    nothing may be replaced by another, as often as `Admission.refill` allows.

    A group that is drawn of a task whose breaker is open is dropped: the
    stream is endless, and others must not wait for it.
    """
    self._stream = stream
    self._run_group = run_group
    self._queue = queue
    self._admission = admission
    self._seed = seed
    self._has_signal = has_signal
    self._watch = watch or LearnerWatch()
    self._overdue = overdue
    self._breakers = breakers
    self._again: list[tuple[int, Task]] = []
    self._in_flight: dict[int, Task] = {}
    self._changes = Condition()
    self._paused = False

  async def run(self) -> None:
    """Plays groups until cancelled.

    - A group that fails by a bug cancels the others, closes the queue and
      raises the failure.
    - Cancelling leaves no task behind, and a state that `snapshot` can take.
    """
    try:
      async with asyncio.TaskGroup() as groups:
        while True:
          await self._admitted()
          position, task = self._draw()
          groups.create_task(
            self._collect(position, task), name=group_id_of(position)
          )
    finally:
      self._queue.close()

  async def take(self, num_groups: int, *, version: int) -> list[Group]:
    """Waits for groups to train `version` on; see `GroupQueue.take`."""
    self.advance(version)
    taking = self._queue.take(num_groups, version=version)
    if self._overdue is None:
      return await taking
    watching = asyncio.create_task(self._overdue.watch(num_groups, version))
    try:
      groups = await taking
    finally:
      # Not awaited: the groups are out of the queue by now, and a deadline that
      # came in between would lose them, and the learner would wait for ever.
      watching.cancel()
    if watching.done():
      watching.result()  # raises what stopped it
    self._overdue.taken()
    return groups

  def advance(self, version: int) -> None:
    """Sets the learner's version, by which more groups may start."""
    self._watch.seen()
    self._admission.advance(version)
    self._changes.notify()

  def see_learner(self) -> None:
    """Starts the deadline of waits for the learner again."""
    self._watch.seen()

  def pause(self) -> None:
    """Starts no more groups; those in flight go on."""
    self._paused = True

  def resume(self) -> None:
    """Starts groups again."""
    self._paused = False
    self._changes.notify()

  def snapshot(self) -> CollectorState:
    """Returns the state; each outstanding group is in flight or queued."""
    return CollectorState(
      stream=dict(self._stream.state()),
      in_flight=tuple(sorted([*self._in_flight.items(), *self._again])),
      queued=self._queue.snapshot(),
    )

  def restore(self, state: CollectorState) -> None:
    """Continues from `state`; before `run`, with an empty queue.

    The admission must have been made with `num_pending=len(state.queued)`.
    """
    self._stream.restore(dict(state.stream))
    self._again = sorted(state.in_flight, reverse=True)
    version = self._admission.version
    started = {group_id_of(n): version for n, _ in state.in_flight}
    started |= {group.id: group.oldest_version for group in state.queued}
    for group_id in sorted(started):
      self._queue.begin(group_id, started[group_id])
    for group in state.queued:
      self._queue.offer(group)

  async def _admitted(self) -> None:
    async with self._watch.wait(
      waiter="the collector",
      holder="permission to start another group",
      look_at=lambda: f"why not: {self._refusal()}",
    ):
      await self._changes.wait_until(lambda: self._refusal() is None)

  def _refusal(self) -> str | None:
    if self._paused:
      return "it is paused"
    return self._admission.refusal() or self._breakers.refusal()

  def _draw(self) -> tuple[int, Task]:
    """Starts the next group whose task may start one; drops those before."""
    self._admission.start()
    while True:
      is_again = bool(self._again)
      position, task = self._again.pop() if is_again else next(self._stream)
      group_id = group_id_of(position)
      if self._breakers.may_start(task.name, is_again=is_again):
        break
      self._breakers.dropped(task)
      if is_again:
        self._queue.give_up(group_id)
    if not is_again:
      self._queue.begin(group_id, self._admission.version)
    self._breakers.started(task.name, group_id)
    self._in_flight[position] = task
    return position, task

  async def _collect(self, position: int, task: Task) -> None:
    group_id = group_id_of(position)
    seed = seed_of(self._seed, "group", position)
    group = await self._run_group(task, group_id, seed)
    del self._in_flight[position]
    if group is None:
      self._queue.give_up(group_id)
      self._breakers.lost(task.name, group_id)
      self._look_again_at_the_next_trial()
      self._admission.lose()
    else:
      self._breakers.finished(task.name, group_id)
      self._look_again_at_the_next_trial()
      await self._hand_over(group)
    self._changes.notify()

  def _look_again_at_the_next_trial(self) -> None:
    trial_at = self._breakers.next_trial_at()
    if trial_at is not None:
      loop = asyncio.get_running_loop()
      loop.call_at(trial_at + RESOLUTION_S, self._changes.notify)

  async def _hand_over(self, group: Group) -> None:
    """Queues a finished group, or lets another take its place."""
    if not self._has_signal(group) and self._admission.refill():
      self._queue.replace(group)
      return
    self._queue.offer(group)
    await self._queue.room(group.id)
    self._admission.end()


def group_id_of(position: int) -> str:
  """Returns an id that sorts as the positions do, up to 10^8 groups."""
  return f"{position:08d}"
