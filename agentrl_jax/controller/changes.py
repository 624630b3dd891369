"""Telling waiters that something has changed, from code that does not wait.

`asyncio.Condition` must be awaited to notify. The controller's state changes in
plain functions, so that a snapshot never sees half a change; this is the little
that they need to wake who waits.
"""

import asyncio
from collections.abc import Callable


class Condition:
  """Belongs to one event loop; neither method may be called from elsewhere."""

  def __init__(self) -> None:
    self._waiters: set[asyncio.Future[None]] = set()

  def notify(self) -> None:
    """Has every waiter look again."""
    for waiter in self._waiters:
      if not waiter.done():
        waiter.set_result(None)

  async def wait_until(self, holds: Callable[[], bool]) -> None:
    """Waits until `holds()`; it does at the moment this returns."""
    while not holds():
      waiter = asyncio.get_running_loop().create_future()
      self._waiters.add(waiter)
      try:
        await waiter
      finally:
        self._waiters.discard(waiter)
