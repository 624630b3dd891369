"""Reconciles the session table with the sessions that workers hold.

A session's place is given back when its worker confirms its end: by its last
reply, by a notice, or by a list of sessions without it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.controller.capacity import CapacityQueue
from agentrl_jax.service.controller.registry import (
  Health,
  Index,
  Registry,
  Worker,
  now,
)
from agentrl_jax.service.controller.session_table import (
  SessionEntry,
  SessionTable,
)
from agentrl_jax.service.protocol.link import WorkerRefusal

_log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class SessionReconciler:
  """Ends sessions, and detects those that have ended at their workers."""

  def __init__(
    self,
    registry: Registry,
    table: SessionTable,
    places: CapacityQueue,
    spawn: Spawn,
    *,
    ask_s: float,
  ):
    self._registry = registry
    self._table = table
    self._places = places
    self._spawn = spawn
    self._ask_s = ask_s

  async def sync(self, worker: Worker) -> None:
    """Compares a worker's sessions with the table.

    - A session that the worker no longer has is ended.
    - A session that the table does not have is taken over, as after a restart.
    - A session that was ended, and that the worker still has, is cancelled
      again.
    """
    began = now()
    try:
      body = await worker.link.ask(
        "GET", "get_sessions", None, deadline_s=self._ask_s
      )
      held = {int(id): _index(index) for id, index in body.items()}
    except (EnvironmentFault, AttributeError, TypeError, ValueError) as error:
      _log.warning("%s does not list its sessions: %s", worker, error)
      self.put_in_coma(worker, "it gets no sessions until it lists its own")
      return
    if worker.health is Health.DEAD:
      return
    if worker.health is not Health.ALIVE:
      _log.info("%s is alive, with %d places", worker, worker.capacity)
    worker.health, worker.last_visit = Health.ALIVE, now()
    for session in self._table.of(worker):
      is_awaited = session.is_busy and not session.is_cancelling
      if session.id not in held and session.updated < began and not is_awaited:
        _log.warning("%s no longer holds session %d", worker, session.id)
        self.end(session)
    for id, index in held.items():
      self._reconcile(worker, id, index, began)
    self._places.offer(worker.task)

  def sync_all(self, spread_s: float) -> None:
    """Runs `sync` for every worker, spread over about `spread_s`."""

    async def later(worker: Worker) -> None:
      await asyncio.sleep(random.uniform(0, spread_s))
      await self.sync(worker)

    for worker in self._registry.workers():
      self._spawn(later(worker))

  def drop(self, session: SessionEntry) -> None:
    """Cancels a session at its worker, without waiting for it."""
    if not session.is_cancelling:
      session.is_cancelling = True
      session.updated = now()
      self._spawn(self._free(session))

  def end_all(self, worker: Worker) -> None:
    """Ends the sessions of a worker that was removed."""
    for session in self._table.of(worker):
      self.end(session)

  def end(self, session: SessionEntry) -> None:
    """Ends a session, and gives its place to a waiting request."""
    if self._table.end(session):
      self._places.offer(session.worker.task)

  def put_in_coma(self, worker: Worker, reason: str) -> None:
    """Sends a worker no sessions until it has answered again."""
    if worker.health is Health.ALIVE:
      _log.warning("%s is in coma: %s", worker, reason)
      worker.health = Health.COMA

  async def _free(self, session: SessionEntry) -> None:
    """Cancels a session with a notice of its end, or else without one."""
    session.is_cancelling_told = True
    try:
      await self._tell_to_free(session, "cancel_with_notice")
      return  # the notice ends the session
    except EnvironmentFault as fault:
      _log.info("session %d is cancelled without notice: %s", session.id, fault)
    try:
      await self._tell_to_free(session, "cancel")
    except WorkerRefusal:
      pass  # there is no such session
    except EnvironmentFault as fault:
      _log.warning("session %d may not be free: %s", session.id, fault)
      session.is_cancelling_told = False
      return  # the next `sync` finds out
    self.end(session)

  async def _tell_to_free(self, session: SessionEntry, endpoint: str) -> None:
    await session.worker.link.ask(
      "POST", endpoint, {"session_id": session.id}, deadline_s=self._ask_s
    )

  def _reconcile(
    self, worker: Worker, id: int, index: Index, began: float
  ) -> None:
    session = self._table.find(id)
    ended_at = self._table.ended_at(id)
    if session is not None and session.worker is worker:
      if session.is_cancelling and not session.is_cancelling_told:
        self._spawn(self._free(session))
    elif session is None and ended_at is None:
      self._table.open(worker, index, id=id)
      _log.info("session %d of %s is taken over", id, worker)
    elif session is not None or (ended_at is not None and ended_at < began):
      _log.warning("%s still holds session %d, told to free it", worker, id)
      self._spawn(self._free_stray(worker, id))

  async def _free_stray(self, worker: Worker, id: int) -> None:
    try:
      await worker.link.ask(
        "POST", "cancel", {"session_id": id}, deadline_s=self._ask_s
      )
    except EnvironmentFault as fault:
      _log.warning("session %d is left to expire: %s", id, fault)


def _index(value: Any) -> Index:
  """Returns the index that a worker lists; a text where it is none."""
  return value if type(value) in (int, str) else f"{value!r:.80}"
