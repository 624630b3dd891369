"""The sessions that a controller knows, by id.

Ids start at the time of day, in milliseconds: a controller that is started
again gives out none that a worker may still hold.
"""

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

from agentrl_jax.controller.service.registry import Index, Refused, Worker

MAX_REMEMBERED = 10_000  # ended sessions


@dataclasses.dataclass(eq=False)
class SessionEntry:
  """One attempt, and who plays it."""

  id: int
  worker: Worker
  index: Index
  custom_task: Any
  started: float  # all times are time.monotonic's
  updated: float
  tools: Any = None  # that the client was told of last
  is_busy: bool = False  # the worker owes an answer
  is_cancelling: bool = False
  is_cancelling_told: bool = False  # the worker knows


class SessionTable:
  """What is open, and what has ended of late."""

  def __init__(self) -> None:
    self._ids = itertools.count(int(time.time() * 1000))
    self._open: dict[int, SessionEntry] = {}
    self._ended: collections.OrderedDict[int, float] = collections.OrderedDict()

  def __iter__(self) -> Iterator[SessionEntry]:
    return iter(list(self._open.values()))

  def get(self, id: int) -> SessionEntry:
    """The session, or `Refused`."""
    if id not in self._open:
      raise Refused(f"session {id} not found: it has ended, or never was")
    return self._open[id]

  def find(self, id: int) -> SessionEntry | None:
    """The session, if it is open."""
    return self._open.get(id)

  def of(self, worker: Worker) -> list[SessionEntry]:
    """The sessions that a worker plays."""
    return [s for s in self._open.values() if s.worker is worker]

  def open(
    self,
    worker: Worker,
    index: Index,
    custom_task: Any = None,
    *,
    id: int | None = None,
  ) -> SessionEntry:
    """A new session, which takes a place; with an `id`, one of before."""
    now = time.monotonic()
    session = SessionEntry(
      id=next(self._ids) if id is None else id,
      worker=worker,
      index=index,
      custom_task=custom_task,
      started=now,
      updated=now,
    )
    self._open[session.id] = session
    worker.num_sessions += 1
    return session

  def end(self, session: SessionEntry) -> bool:
    """Gives its place back; whether it was open."""
    if self._open.pop(session.id, None) is None:
      return False
    session.worker.num_sessions -= 1
    self._ended[session.id] = time.monotonic()
    if len(self._ended) > MAX_REMEMBERED:
      self._ended.popitem(last=False)
    return True

  def ended_at(self, id: int) -> float | None:
    """When a session ended, if that is not long ago."""
    return self._ended.get(id)
