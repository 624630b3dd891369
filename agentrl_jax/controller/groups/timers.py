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
class _Whole:
  """Groups that were played to their own end."""

  num: int = 0
  latest_s: collections.deque[float] = dataclasses.field(
    default_factory=lambda: collections.deque(maxlen=_LATEST)
  )


@dataclasses.dataclass
class _Lengths:
  """Lengths of a task's groups.

  Those that started before the first one ended are cold: they may have waited
  for programs to compile, or for containers to start.
  """

  num_running: int = 0
  warm_at: float = math.inf  # when the first group ended
  every: _Whole = dataclasses.field(default_factory=_Whole)
  warm: _Whole = dataclasses.field(default_factory=_Whole)


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
    """Notes that a group has come to its own end, played since then."""
    lengths, now = self._lengths[task], asyncio.get_running_loop().time()
    lengths.warm_at = min(lengths.warm_at, now)
    is_warm = since >= lengths.warm_at
    for whole in (lengths.every, lengths.warm) if is_warm else (lengths.every,):
      whole.num += 1
      whole.latest_s.append(now - since)

  def straggles_at(self, group_id: str) -> float:
    """Returns the loop's time from which a group counts as a straggler.

    It is then overlong. Infinity while less than three quarters of the task's
    groups have been played to their end: if nearly all are slow, none
    straggles. As `spark.speculation`, which compares tasks of a job. A cold
    group is compared with cold ones too: where admission lets no other start
    before it ends, nothing else will ever be there to compare with.
    """
    running = self._running.get(group_id)
    if running is None:
      return math.inf
    lengths = self._lengths[running.task]
    is_warm = running.since >= lengths.warm_at
    whole = lengths.warm if is_warm else lengths.every
    if whole.num < 3 * lengths.num_running:
      return math.inf
    return _overlong_at(running.since, whole)

  def overlong_at(self, group_id: str) -> float:
    """Returns the loop's time from which a group is overlong.

    It has then been played three times as long as the longest of the latest
    warm groups of its task that were played to their end; infinity until three
    were.
    """
    running = self._running.get(group_id)
    if running is None:
      return math.inf
    return _overlong_at(running.since, self._lengths[running.task].warm)


def _overlong_at(since: float, others: _Whole) -> float:
  if others.num < _LEAST:
    return math.inf
  return since + OVERLONG * max(others.latest_s)
