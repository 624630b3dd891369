"""Lets coroutines wait for a change of state that plain functions make.

`asyncio.Condition` must be awaited to notify, so it cannot be used by state
that changes in plain functions, where a snapshot never sees half a change.
"""

import asyncio
from collections.abc import Callable


class Condition:
  """Belongs to one event loop; no method may be called from another thread."""

  def __init__(self) -> None:
    self._waiters: set[asyncio.Future[None]] = set()

  def notify(self) -> None:
    """Makes every waiter check its predicate again."""
    for waiter in self._waiters:
      if not waiter.done():
        waiter.set_result(None)

  async def wait_until(self, predicate: Callable[[], bool]) -> None:
    """Waits until `predicate()` is true, and returns while it still is."""
    while not predicate():
      waiter = asyncio.get_running_loop().create_future()
      self._waiters.add(waiter)
      try:
        await waiter
      finally:
        self._waiters.discard(waiter)
