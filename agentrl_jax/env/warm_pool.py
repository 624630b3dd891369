"""Things that take a while to start, started before they are needed.

  pool = WarmPool(start_machine, remove_machine, num_warm=4)
  machine = await pool.take()
  ...
  await pool.close()

Each is handed out once, and whoever takes it removes it. When none is ready the
taker starts one and waits no longer than without a pool. Nothing runs until the
first one has been taken.
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
  """Keeps up to `num_warm` things ready; used in one event loop."""

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

  @property
  def num_ready(self) -> int:
    """How many could be taken without waiting."""
    return len(self._ready)

  async def take(self) -> T:
    """One that is ready, or else a new one; waits for it to start."""
    if self._is_closed:
      raise ConfigError("this pool is closed: its owner has been closed")
    taken = self._ready.popleft() if self._ready else await self._start()
    self._fill()
    return taken

  async def wait_until_full(self) -> None:
    """Waits until all are ready, or the log says why not."""
    self._fill()
    if self._filling is not None:
      await asyncio.wait([self._filling])

  async def close(self) -> None:
    """Removes those that nobody has taken; none can be taken any more."""
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
    """One after the other: those who wait for one come first."""
    while self._has_room():
      try:
        self._ready.append(await self._start())
      except AgentRLError as error:
        # Whoever takes the next one meets the same error, and is told.
        _log.warning("nothing is kept warm: %s", error)
        return
