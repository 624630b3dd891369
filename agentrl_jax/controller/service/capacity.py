"""Queues requests for a place at a worker.

Every task has its own queue, first come, first served: a task that is short of
workers holds up no other. A place is given together with a session in it, in
one step, so that no place is lost or given twice.
"""

import asyncio
import collections
from collections.abc import Callable

from agentrl_jax.controller.service.registry import (
  Refused,
  Registry,
  Worker,
  now,
)
from agentrl_jax.controller.service.session_table import (
  SessionEntry,
  SessionTable,
)

OpenIn = Callable[[Worker], SessionEntry]


class NoCapacity(Refused):
  """No worker of the task has had a free place in time."""


class CapacityQueue:
  """Requests for places, in one queue per task."""

  def __init__(self, registry: Registry, table: SessionTable):
    self._registry = registry
    self._table = table
    self._queues: dict[str, collections.deque[_Waiting]] = {}

  def num_waiting(self, task: str) -> int:
    """Requests that wait for a place."""
    return len(self._queues.get(task, ()))

  async def take(
    self, task: str, open_in: OpenIn, *, wait_s: float, first: bool = False
  ) -> SessionEntry:
    """Waits for a place and opens a session in it; `first` skips the queue.

    Raises `NoCapacity` after `wait_s`. Cancelling gives the place back.
    """
    queue = self._queues.setdefault(task, collections.deque())
    waiting = _Waiting(open_in)
    queue.appendleft(waiting) if first else queue.append(waiting)
    self.offer(task)
    try:
      async with asyncio.timeout(wait_s):
        return await asyncio.shield(waiting.session)
    except BaseException as error:
      self._leave(task, waiting)
      if not isinstance(error, TimeoutError):
        raise
      raise NoCapacity(
        f"no workers available for task {task}: within {wait_s:g} s none that "
        "is alive had a free place"
      ) from error

  def offer(self, task: str) -> None:
    """Gives free places to waiting requests; call it when one may be free."""
    queue = self._queues.get(task, ())
    while queue:
      worker = self._registry.pick(task, now())
      if worker is None:
        return
      waiting = queue.popleft()
      waiting.session.set_result(waiting.open_in(worker))
    self._queues.pop(task, None)

  def _leave(self, task: str, waiting: "_Waiting") -> None:
    if waiting.session.done():
      self._table.end(waiting.session.result())
      self.offer(task)
    else:
      self._queues[task].remove(waiting)
      waiting.session.cancel()


class _Waiting:
  def __init__(self, open_in: OpenIn):
    self.open_in = open_in
    self.session: asyncio.Future[SessionEntry] = (
      asyncio.get_running_loop().create_future()
    )
