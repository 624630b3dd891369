"""Waiting: for a change of state, and between retries.

Every loop that asks again takes its pauses from `Backoff`:
`service/controller/client`, `service/docker/pool`,
`service/remote/environment`.
"""

import asyncio
import time
from collections.abc import Callable


class Condition:
  """Lets coroutines wait for a change of state that plain functions make.

  `asyncio.Condition` must be awaited to notify, so it cannot be used by state
  that changes in plain functions, where a snapshot never sees half a change.
  Belongs to one event loop; no method may be called from another thread.
  """

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


class Backoff:
  """Pauses between retries of one loop, which double up to a longest one.

  The caller sleeps, blocking or not:

    backoff = Backoff(0.05, 1.0)
    while True:
      try:
        return await ask()
      except Refused:
        if not backoff.fits(ends_at):
          raise
      await asyncio.sleep(backoff.next_s())
  """

  def __init__(self, first_s: float, longest_s: float):
    self._pause_s, self._longest_s = first_s, longest_s

  def fits(self, ends_at: float) -> bool:
    """Returns whether the next pause ends by this reading of `monotonic`."""
    return time.monotonic() + self._pause_s <= ends_at

  def next_s(self) -> float:
    """Returns the next pause; the one after it is twice as long."""
    pause_s = self._pause_s
    self._pause_s = min(2 * pause_s, self._longest_s)
    return pause_s
