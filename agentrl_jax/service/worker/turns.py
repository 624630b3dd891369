"""Turns that are played once, however often they are asked for.

A client whose controller died cannot know whether its answer was played, so it
asks again, through the next controller. With the number of the turn the worker
tells a repeated answer from the next one, and returns the report that it gave.
Invariants:

- a turn is played once, also if it is asked for again while it is played;
- the last report of a session is kept, beyond the session's end, for `KEEP_S`;
- a turn that was refused, as one of an unknown session, leaves no trace.
"""

import asyncio
import collections
import dataclasses
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentrl_jax.service.worker.hosting import SessionRefused

KEEP_S = 120.0  # a report of a session that has ended
MAX_KEPT = 4096  # sessions


@dataclasses.dataclass
class _Turn:
  number: int
  report: asyncio.Future[Any]
  asked_at: float


class PlayedTurns:
  """The last turn of each session; belongs to one event loop."""

  def __init__(self, is_open: Callable[[int], bool]):
    self._is_open = is_open
    self._last: collections.OrderedDict[int, _Turn] = collections.OrderedDict()

  async def play(
    self, session: int, number: int, play: Callable[[], Awaitable[Any]]
  ) -> Any:
    """Returns the report of turn `number`, from 1; plays it if it is new.

    Raises `SessionRefused` for a turn that is neither the last one nor the
    next, and what `play` raises.
    """
    last = self._last.get(session)
    if last is not None and last.number == number:
      return await asyncio.shield(last.report)
    expected = 1 if last is None else last.number + 1
    if number != expected:
      raise SessionRefused(
        f"session {session} has no turn {number}: the next one is {expected}"
      )
    report = asyncio.ensure_future(play())
    report.add_done_callback(_retrieve)
    self._last[session] = _Turn(number, report, time.monotonic())
    self._last.move_to_end(session)
    try:
      # A request that is given up leaves the turn to be played, and asked for.
      return await asyncio.shield(report)
    except BaseException:
      if report.done():  # refused, rather than given up
        self._restore(session, last)
      raise
    finally:
      self._forget()

  def forget(self, session: int) -> None:
    """Drops the last turn of a session that ended, as a new one has its id."""
    self._last.pop(session, None)

  def _restore(self, session: int, last: _Turn | None) -> None:
    if last is None:
      self._last.pop(session, None)
    else:
      self._last[session] = last

  def _forget(self) -> None:
    """Drops what nobody will ask for again; looks at the two oldest."""
    oldest = time.monotonic() - KEEP_S
    for session in list(itertools.islice(self._last, 2)):
      turn = self._last[session]
      if self._is_open(session) or not turn.report.done():
        self._last.move_to_end(session)
      elif turn.asked_at < oldest or len(self._last) > MAX_KEPT:
        del self._last[session]


def _retrieve(report: asyncio.Future[Any]) -> None:
  """Marks a failure as retrieved, whose request may have been given up."""
  if not report.cancelled():
    report.exception()
