"""Starts no groups of a task whose environment has died or hangs.

The groups of such a task would take the places of all others: a group that
hangs holds its place until a deadline, and one that fails at once is followed
by the next. So the task's breaker opens: its groups are dropped, and one at a
time is played to see whether the environment is back, at growing intervals.

A task that has not finished any group has no length to compare with. Until then
it has no more places than its share.
"""

import asyncio
import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Mapping

from agentrl_jax.controller.groups.timers import OVERLONG, GroupTimers
from agentrl_jax.controller.metrics import DropReason, Monitor
from agentrl_jax.data.records import Task

_log = logging.getLogger(__name__)

RESOLUTION_S = 0.01  # by which timers may be early, and more
_LOST = 3  # groups in a row that open a breaker
_ALIVE = 2  # groups of other tasks, which show that not everything stands still
_MAX_BACKOFF_S = 60.0
_TRIAL = 10  # a trial group may be played as many times as long as its back-off


@dataclasses.dataclass
class _Playing:
  number: int  # in order of starting
  since: float  # the loop's time
  # Lengths of groups of other tasks that started later and have finished: the
  # `_ALIVE` shortest, in seconds. After an outage of everything all are long.
  later_s: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Breaker:
  # In order of starting.
  playing: dict[str, _Playing] = dataclasses.field(default_factory=dict)
  outlived: int = 0  # groups before this number: one has finished since
  num_lost: int = 0  # groups in a row
  has_finished: bool = False
  is_open: bool = False
  backoff_s: float = 0.0
  next_trial_at: float = -math.inf
  trial: str | None = None  # id of the group
  look: asyncio.TimerHandle | None = None  # for groups that hang

  @property
  def not_outlived(self) -> list[tuple[str, _Playing]]:
    """Groups started since the task's last finish, in order of starting."""
    return list(
      itertools.takewhile(
        lambda item: item[1].number >= self.outlived,
        reversed(self.playing.items()),
      )
    )[::-1]


class Breakers:
  """The breaker of each task. Belongs to one event loop."""

  def __init__(
    self,
    shares: Callable[[], Mapping[str, float]],
    timers: GroupTimers,
    monitor: Monitor,
    *,
    num_places: int | None = None,
    backoff_s: float = 1.0,
  ) -> None:
    """All breakers are closed.

    Args:
      shares: Returns each task's share of the groups; they sum to 1.
      timers: Those of the groups that are played.
      monitor: Counts opened breakers.
      num_places: Groups that may be in flight. A task that has not finished any
        has its share of them; None for no limit.
      backoff_s: From opening to the first trial; doubles with every trial that
        fails, up to a minute.
    """
    self._shares, self._timers, self._monitor = shares, timers, monitor
    self._num_places, self._backoff_s = num_places, backoff_s
    self._breakers = {name: _Breaker() for name in shares()}
    self._num_started = 0
    self._ended: set[str] = set()

  def may_start(self, task: str, *, is_again: bool = False) -> bool:
    """Returns True if a group of the task may start now.

    One that starts again, in a run that resumes, had its place before.
    """
    breaker = self._breakers[task]
    if breaker.is_open:
      return breaker.trial is None and self._now() >= breaker.next_trial_at
    if is_again or breaker.has_finished or self._num_places is None:
      return True
    places = math.ceil(self._num_places * self._shares()[task])
    return len(breaker.playing) < places

  def refusal(self) -> str | None:
    """Returns the reason why no task may start a group; None if one may."""
    if any(map(self.may_start, self._breakers)):
      return None
    return "; ".join(
      f"{name}: {self._state(breaker)}"
      for name, breaker in self._breakers.items()
    )

  def next_trial_at(self) -> float | None:
    """Returns the loop's time of the next trial; None if none is due later."""
    now = self._now()
    later = [
      breaker.next_trial_at
      for breaker in self._breakers.values()
      if breaker.is_open and breaker.trial is None
      if breaker.next_trial_at > now
    ]
    return min(later, default=None)

  def started(self, task: str, group_id: str) -> None:
    """Notes a group that starts; `finished` or `lost` must follow."""
    breaker = self._breakers[task]
    breaker.playing[group_id] = _Playing(self._num_started, self._now())
    self._num_started += 1
    if breaker.is_open:
      breaker.trial = group_id

  def finished(self, task: str, group_id: str) -> None:
    """Notes a group with enough episodes."""
    if group_id in self._ended:
      self.lost(task, group_id)
      return
    breaker = self._breakers[task]
    ended = breaker.playing.pop(group_id)
    length_s = self._now() - ended.since
    if breaker.is_open:
      _log.warning("groups of %s finish again, so others start", task)
      self._monitor.breaker(task, is_open=False)
    breaker.is_open, breaker.trial, breaker.backoff_s = False, None, 0.0
    breaker.num_lost, breaker.has_finished = 0, True
    breaker.outlived = self._num_started
    for name, other in self._breakers.items():
      if name != task:
        for _, playing in other.not_outlived:
          if playing.number < ended.number:
            playing.later_s = sorted([*playing.later_s, length_s])[:_ALIVE]
        self._end_hanging(name, other)

  def lost(self, task: str, group_id: str) -> None:
    """Notes a group that was lost to faults or a deadline."""
    breaker = self._breakers[task]
    del breaker.playing[group_id]
    breaker.num_lost += 1
    if group_id in self._ended:
      self._ended.discard(group_id)
    elif breaker.num_lost >= _LOST and not breaker.is_open:
      self._open(task, f"its last {breaker.num_lost} groups were lost")
    if breaker.trial == group_id:
      breaker.trial = None
      self._back_off(breaker)

  def dropped(self, task: Task) -> None:
    """Counts a group that was drawn and will not be played."""
    is_open = self._breakers[task.name].is_open
    self._monitor.dropped(
      task, DropReason.BREAKER_OPEN if is_open else DropReason.NO_PLACE
    )

  def _end_hanging(self, task: str, breaker: _Breaker) -> None:
    """Ends the groups of a task that does not finish any while others do.

    Looks again when the next of them may be due: the others may soon have no
    place to go on.
    """
    due_at = {
      group: self._hangs_at(breaker, group)
      for group, playing in breaker.not_outlived
      if len(playing.later_s) == _ALIVE and group not in self._ended
    }
    now = self._now()
    due = [group for group, at in due_at.items() if at <= now]
    if due and not breaker.is_open:
      self._open(task, f"none finishes, and {len(due)} hang")
    for group in due:
      self._ended.add(group)
      self._timers.end(group)
    later = [at for at in due_at.values() if now < at < math.inf]
    if later and breaker.look is None:

      def look() -> None:
        breaker.look = None
        self._end_hanging(task, breaker)

      loop = asyncio.get_running_loop()
      breaker.look = loop.call_at(min(later) + RESOLUTION_S, look)

  def _hangs_at(self, breaker: _Breaker, group: str) -> float:
    """Returns the loop's time from which a group is taken to hang."""
    playing = breaker.playing[group]
    allowed_s = OVERLONG * playing.later_s[-1]
    if group == breaker.trial:
      allowed_s = max(allowed_s, _TRIAL * breaker.backoff_s)
    return max(self._timers.overlong_at(group), playing.since + allowed_s)

  def _open(self, task: str, why: str) -> None:
    breaker = self._breakers[task]
    breaker.is_open = True
    self._back_off(breaker)
    self._monitor.breaker(task, is_open=True)
    _log.warning(
      "no groups of %s start: %s. Its environment is tried again in %g s, one"
      " group at a time; look at its faults in faults.jsonl and at its workers."
      " Faults so far: %s",
      task,
      why,
      breaker.backoff_s,
      self._monitor.latest_faults() or "none",
    )

  def _back_off(self, breaker: _Breaker) -> None:
    doubled_s = 2 * breaker.backoff_s or self._backoff_s
    breaker.backoff_s = min(doubled_s, _MAX_BACKOFF_S)
    breaker.next_trial_at = self._now() + breaker.backoff_s

  def _state(self, breaker: _Breaker) -> str:
    if not breaker.is_open:
      return "it has its share of places, and no group of it has finished yet"
    if breaker.trial is not None:
      return "its groups were lost or hang, and one is played as a trial"
    left_s = max(0.0, breaker.next_trial_at - self._now())
    return f"its groups were lost or hang; tried again in {left_s:.0f} s"

  def _now(self) -> float:
    return asyncio.get_running_loop().time()
