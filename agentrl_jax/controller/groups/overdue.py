"""Ends groups that hold the learner back, so that one hang costs no step."""

import asyncio
import collections
import contextlib
import math
import statistics

from agentrl_jax.controller.groups.group_queue import GroupQueue, few
from agentrl_jax.controller.groups.timers import GroupTimers

_STEPS = 5  # the learner's latest, of which a step's length is the median


class OverdueGroups:
  """Ends groups that hold the learner back.

  `max_age` bounds the age of every group, by waiting for those that would
  become too old. So one episode that hangs would stop the learner until its
  group's deadline. A group that is ended before is handed over with the
  episodes that have ended, or is lost if they are too few.

  - Where as many others have finished as the learner takes, it waits for
    `patience` steps. The length of a step is measured without these waits, so
    that waits do not allow longer ones.
  - Where a few are missing, or no step has been measured, it waits for
    `patience` steps and until the group is a straggler: where groups that hang
    use up what admission allows, others cannot finish.
  - However long a step lasts, and however long all groups take, none is ended
    for that.
  """

  def __init__(
    self, queue: GroupQueue, timers: GroupTimers, *, patience: float
  ) -> None:
    """`patience` is in steps of the learner, from one batch to the next."""
    self._queue, self._timers, self._patience = queue, timers, patience
    self._steps_s: collections.deque[float] = collections.deque(maxlen=_STEPS)
    self._taken_at: float | None = None
    self._held_s = 0.0  # in this step so far
    self._held_at: float | None = None  # since when a group holds it now
    self._waited_since: dict[str, float] = {}
    self._ended: set[str] = set()
    self._num_lacking = 0  # of those ended in this step, while a few lacked

  async def watch(self, num_groups: int, version: int) -> None:
    """Ends groups that hold the take of `num_groups`, until cancelled."""
    while True:
      until_s = self._look(num_groups, version)
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(until_s):
          await self._queue.changed()

  def taken(self) -> None:
    """Notes that the learner has got its groups."""
    now = asyncio.get_running_loop().time()
    self._count_held(now, is_held=False)
    if self._taken_at is not None:
      self._steps_s.append(now - self._taken_at - self._held_s)
    self._taken_at, self._held_s, self._num_lacking = now, 0.0, 0
    self._waited_since.clear()

  def _look(self, num_groups: int, version: int) -> float | None:
    """Ends what is overdue; returns the seconds until more may be."""
    held = self._queue.held_by(num_groups, version)
    waited = held or self._queue.lacked_by(num_groups)
    now = asyncio.get_running_loop().time()
    self._count_held(now, is_held=bool(held))
    self._ended &= set(waited)
    self._waited_since = {
      group: self._waited_since.get(group, now)
      for group in waited
      if group not in self._ended
    }
    patience_s, is_enough = 0.0, False
    if self._steps_s:
      patience_s = self._patience * statistics.median(self._steps_s)
      is_enough = bool(held)
    due_at = {
      group: max(
        since + patience_s,
        0.0 if is_enough else self._timers.straggles_at(group),
      )
      for group, since in self._waited_since.items()
    }
    due = [group for group, at in due_at.items() if at <= now]
    if not held:  # no more than lack at first, for in an outage all straggle
      due = due[: few(num_groups) - self._num_lacking]
      self._num_lacking += len(due)
    for group in due:
      self._ended.add(group)
      self._timers.end(group)
    later = [at for at in due_at.values() if now < at < math.inf]
    return min(later) - now if later else None

  def _count_held(self, now: float, *, is_held: bool) -> None:
    if self._held_at is not None:
      self._held_s += now - self._held_at
    self._held_at = now if is_held else None
