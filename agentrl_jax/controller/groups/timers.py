"""Times of the groups that are played: their deadlines, and stragglers."""

import asyncio
import collections
import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator

_LATEST = 64  # groups of a task whose lengths are remembered
_LEAST = 3  # of them, to compare with
OVERLONG = 3  # times as long as others, and a group may hang


@dataclasses.dataclass
class _Lengths:
  num_running: int = 0
  num_whole: int = 0  # played to their own end
  warm_at: float | None = None  # when the first group ended
  latest_s: collections.deque[float] = dataclasses.field(
    default_factory=lambda: collections.deque(maxlen=_LATEST)
  )


@dataclasses.dataclass(frozen=True)
class _Running:
  timer: asyncio.Timeout
  task: str
  since: float


class GroupTimers:
  """Deadlines of the groups that are played; belongs to one event loop."""

  def __init__(self) -> None:
    self._running: dict[str, _Running] = {}
    self._lengths: dict[str, _Lengths] = collections.defaultdict(_Lengths)

  @contextlib.asynccontextmanager
  async def running(
    self, task: str, group_id: str, deadline_s: float
  ) -> AsyncIterator[asyncio.Timeout]:
    """Cancels its body at the deadline, or at `end`, as `asyncio.timeout`."""
    lengths, now = self._lengths[task], asyncio.get_running_loop().time()
    async with asyncio.timeout(deadline_s) as timer:
      self._running[group_id] = _Running(timer, task, now)
      lengths.num_running += 1
      try:
        yield timer
      finally:
        del self._running[group_id]
        lengths.num_running -= 1

  def end(self, group_id: str) -> None:
    """Makes now the deadline of a group; does nothing if it is not played."""
    running = self._running.get(group_id)
    if running is not None and not running.timer.expired():
      running.timer.reschedule(asyncio.get_running_loop().time())

  def note_whole(self, task: str, since: float) -> None:
    """Notes that a group has come to its own end, played since then.

    Groups that started before the first one ended do not count: they may have
    waited for programs to compile, or for containers to start.
    """
    lengths, now = self._lengths[task], asyncio.get_running_loop().time()
    if lengths.warm_at is None:
      lengths.warm_at = now
    if since >= lengths.warm_at:
      lengths.num_whole += 1
      lengths.latest_s.append(now - since)

  def straggles_at(self, group_id: str) -> float:
    """Returns the loop's time from which a group counts as a straggler.

    It is then overlong. Infinity while less than three quarters of the task's
    groups have been played to their end: if nearly all are slow, none
    straggles. As `spark.speculation`, which compares tasks of a job.
    """
    running = self._running.get(group_id)
    if running is None:
      return math.inf
    lengths = self._lengths[running.task]
    if lengths.num_whole < 3 * lengths.num_running:
      return math.inf
    return self.overlong_at(group_id)

  def overlong_at(self, group_id: str) -> float:
    """Returns the loop's time from which a group is overlong.

    It has then been played three times as long as the longest of the latest
    groups of its task that were played to their end; infinity until three were.
    """
    running = self._running.get(group_id)
    if running is None:
      return math.inf
    lengths = self._lengths[running.task]
    if lengths.num_whole < _LEAST:
      return math.inf
    return running.since + OVERLONG * max(lengths.latest_s)
