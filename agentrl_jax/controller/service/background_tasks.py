"""What a controller does beside answering: in tasks that end with it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)


class BackgroundTasks:
  """Tasks that nobody waits for; made by `performing`."""

  def __init__(self) -> None:
    self.running: set[asyncio.Task[None]] = set()

  def begin(self, work: Coroutine[Any, Any, None]) -> None:
    """Does something, soon. What fails is logged, and fails alone."""
    task = asyncio.create_task(work)
    self.running.add(task)
    task.add_done_callback(self._finish)

  def repeat(self, act: Callable[[], None], *, period_s: float) -> None:
    """Does something over and over, first after a period."""
    self.begin(_every(period_s, act))

  def _finish(self, task: asyncio.Task[None]) -> None:
    self.running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
      _log.error("a duty of the controller failed", exc_info=error)


@contextlib.asynccontextmanager
async def performing() -> AsyncIterator[BackgroundTasks]:
  """Leaving cancels what is still being done, and waits until it has ended."""
  duties = BackgroundTasks()
  try:
    yield duties
  finally:
    for task in duties.running:
      task.cancel()
    await asyncio.gather(*duties.running, return_exceptions=True)


async def _every(period_s: float, act: Callable[[], None]) -> None:
  while True:
    await asyncio.sleep(period_s)
    act()
