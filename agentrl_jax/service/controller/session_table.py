"""Table of a controller's sessions, by id.

Ids are random, since who knows a session's id can play it: nobody guesses one,
and a restarted controller gives out none that a worker may still hold.
"""

import collections
import dataclasses
import secrets
from collections.abc import Iterator
from typing import Any

from agentrl_jax.service.controller.registry import Index, Refused, Worker, now

MAX_REMEMBERED = 10_000  # ended sessions
ID_BITS = 53  # which numbers in JSON carry exactly, in any language


@dataclasses.dataclass(eq=False)
class SessionEntry:
  """One session and its worker."""

  id: int
  worker: Worker
  index: Index
  custom_task: Any
  started: float  # all times are the event loop's
  updated: float
  tools: Any = None  # last sent to the client
  is_busy: bool = False  # the worker owes an answer
  is_cancelling: bool = False
  is_cancelling_told: bool = False  # the worker has the request to cancel


class SessionTable:
  """Open sessions, and the ids of recently ended ones."""

  def __init__(self) -> None:
    self._open: dict[int, SessionEntry] = {}
    self._of: dict[Worker, dict[int, SessionEntry]] = {}  # none is empty
    self._ended: collections.OrderedDict[int, float] = collections.OrderedDict()

  def __iter__(self) -> Iterator[SessionEntry]:
    return iter(list(self._open.values()))

  def get(self, id: int) -> SessionEntry:
    """Returns an open session. Raises `Refused` if there is none."""
    if id not in self._open:
      raise Refused(f"session {id} not found: it has ended, or never was")
    return self._open[id]

  def find(self, id: int) -> SessionEntry | None:
    """Returns an open session, or None."""
    return self._open.get(id)

  def of(self, worker: Worker) -> list[SessionEntry]:
    """Returns the open sessions of a worker."""
    return list(self._of.get(worker, {}).values())

  def open(
    self,
    worker: Worker,
    index: Index,
    custom_task: Any = None,
    *,
    id: int | None = None,
  ) -> SessionEntry:
    """Opens a session; with an `id`, one that its worker already has."""
    moment = now()
    session = SessionEntry(
      id=self._new_id() if id is None else id,
      worker=worker,
      index=index,
      custom_task=custom_task,
      started=moment,
      updated=moment,
    )
    self._open[session.id] = session
    self._of.setdefault(worker, {})[session.id] = session
    worker.num_sessions += 1
    return session

  def _new_id(self) -> int:
    while True:
      id = secrets.randbits(ID_BITS)
      if id not in self._open and id not in self._ended:
        return id

  def end(self, session: SessionEntry) -> bool:
    """Ends a session; returns whether it was open."""
    if self._open.pop(session.id, None) is None:
      return False
    worker = session.worker
    worker.num_sessions -= 1
    del self._of[worker][session.id]
    if not self._of[worker]:
      del self._of[worker]
    self._ended[session.id] = now()
    if len(self._ended) > MAX_REMEMBERED:
      self._ended.popitem(last=False)
    return True

  def ended_at(self, id: int) -> float | None:
    """Returns the time of a session's end, while it is remembered."""
    return self._ended.get(id)
