"""Queues requests for a place at a worker.

Every task has its own queue, first come, first served: a task that is short of
workers holds up no other. A place is given together with a session in it, in
one step, so that no place is lost or given twice.
"""

import asyncio
import collections
from collections.abc import Callable

from agentrl_jax.service.controller.registry import (
  Refused,
  Registry,
  Worker,
  now,
)
from agentrl_jax.service.controller.session_table import (
  SessionEntry,
  SessionTable,
)

OpenIn = Callable[[Worker], SessionEntry]


MAX_WAITING = 20_000  # requests for places of one task


class NoCapacity(Refused):
  """No worker of the task has had a free place in time."""


class Overloaded(NoCapacity):
  """As many requests wait for the task as may."""


class CapacityQueue:
  """Requests for places, in one queue per task."""

  def __init__(
    self,
    registry: Registry,
    table: SessionTable,
    *,
    max_waiting: int = MAX_WAITING,
  ):
    self._registry = registry
    self._table = table
    self._max_waiting = max_waiting
    self._queues: dict[str, collections.deque[_Waiting]] = {}

  def num_waiting(self, task: str) -> int:
    """Requests that wait for a place."""
    return len(self._queues.get(task, ()))

  async def take(
    self, task: str, open_in: OpenIn, *, wait_s: float, first: bool = False
  ) -> SessionEntry:
    """Waits for a place and opens a session in it; `first` skips the queue.

    Raises `NoCapacity` after `wait_s`, and `Overloaded` at once if too many
    wait already. Cancelling gives the place back.
    """
    if not first and self.num_waiting(task) >= self._max_waiting:
      raise Overloaded(
        f"no workers available for task {task}: {self._max_waiting} requests "
        "wait for a place, which is the most (--max-waiting); try again later, "
        "or start more workers"
      )
    queue = self._queues.setdefault(task, collections.deque())
    waiting = _Waiting(open_in)
    queue.appendleft(waiting) if first else queue.append(waiting)
    self.offer(task)
    try:
      async with asyncio.timeout(wait_s):
        return await asyncio.shield(waiting.session)
    except BaseException as error:
      place = self._leave(task, waiting)
      if not isinstance(error, TimeoutError):
        raise
      raise NoCapacity(
        f"no workers available for task {task}: within {wait_s:g} s none that "
        f"is alive had a free place; {place} requests were before this one"
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

  def _leave(self, task: str, waiting: "_Waiting") -> int:
    """Takes a request out of the line; returns its place, from 0."""
    if waiting.session.done():
      self._table.end(waiting.session.result())
      self.offer(task)
      return 0
    queue = self._queues[task]
    place = queue.index(waiting)
    del queue[place]
    waiting.session.cancel()
    return place


class _Waiting:
  def __init__(self, open_in: OpenIn):
    self.open_in = open_in
    self.session: asyncio.Future[SessionEntry] = (
      asyncio.get_running_loop().create_future()
    )
