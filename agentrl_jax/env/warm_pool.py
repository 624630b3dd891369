"""Pool of objects that are slow to start, started before they are needed.

  pool = WarmPool(start_machine, remove_machine, num_warm=4)
  machine = await pool.take()
  ...
  await pool.close()

Each object is handed out once, and the taker removes it. If none is ready, the
taker starts one and waits no longer than without a pool. Nothing starts before
the first `take`.
"""

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from agentrl_jax.errors import AgentRLError, ConfigError

_log = logging.getLogger(__name__)

T = TypeVar("T")


class WarmPool(Generic[T]):
  """Keeps up to `num_warm` objects ready; used in one event loop."""

  def __init__(
    self,
    start: Callable[[], Awaitable[T]],
    remove: Callable[[T], Awaitable[None]],
    *,
    num_warm: int,
  ):
    if num_warm < 0:
      raise ConfigError(f"num_warm={num_warm} must be 0 or more")
    self._start = start
    self._remove = remove
    self._num_warm = num_warm
    self._ready: collections.deque[T] = collections.deque()
    self._filling: asyncio.Task[None] | None = None
    self._is_closed = False

  async def take(self) -> T:
    """Returns a ready object, or starts a new one and waits for it."""
    if self._is_closed:
      raise ConfigError("this pool is closed: its owner has been closed")
    taken = self._ready.popleft() if self._ready else await self._start()
    self._fill()
    return taken

  async def wait_until_full(self) -> None:
    """Waits until all objects are ready, or the log tells why not."""
    self._fill()
    if self._filling is not None:
      await asyncio.wait([self._filling])

  async def close(self) -> None:
    """Removes the objects that were not taken; `take` then raises."""
    self._is_closed = True
    if self._filling is not None:
      self._filling.cancel()
      await asyncio.wait([self._filling])
    while self._ready:
      await self._remove(self._ready.popleft())

  def _fill(self) -> None:
    is_filling = self._filling is not None and not self._filling.done()
    if not is_filling and not self._is_closed and self._has_room():
      self._filling = asyncio.create_task(self._fill_up(), name="warm-pool")

  def _has_room(self) -> bool:
    return len(self._ready) < self._num_warm

  async def _fill_up(self) -> None:
    """Starts objects one at a time, so that takers do not wait longer."""
    while self._has_room():
      try:
        self._ready.append(await self._start())
      except AgentRLError as error:
        # The next `take` meets the same error, and raises it.
        _log.warning("no object is kept warm: %s", error)
        return
