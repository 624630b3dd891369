"""A driver that runs engine steps in one thread, in a repeatable order.

Needs no JetStream. The same requests submitted between the same steps give
bit-identical answers, so that tests and resumed runs can be compared exactly.
With asyncio, `serving` runs the steps in a worker thread, one at a time.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

from agentrl_jax.errors import DeadlineExceeded, GeneratorFault
from agentrl_jax.rollout.drivers.base import Driver
from agentrl_jax.rollout.engine.engine import RolloutEngine
from agentrl_jax.rollout.engine.request import Request


class LocalDriver(Driver):
  """Runs steps when its caller asks for them, or within `serving`."""

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    super().__init__(engine, max_waiting=max_waiting)
    self._loop: asyncio.AbstractEventLoop | None = None
    self._has_work = asyncio.Event()
    self._stepping = threading.Lock()

  def step(self) -> bool:
    """Runs one step and settles its answers; returns False if there is no work.

    An error of the engine fails every request, and is raised here too.
    """
    with self._stepping:
      if self.engine.is_idle:
        return False
      try:
        result = self.engine.step()
        self._settle(self.engine.read(result), result.cancelled)
      except BaseException as error:
        self._fail(error)
        raise
      return True

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Runs no step in the context, so its requests all reach the next step."""
    with self._stepping:
      yield

  def run_until_idle(self, max_steps: int = 1_000_000) -> int:
    """Answers all requests; returns the number of steps."""
    for num_steps in range(max_steps):
      if not self.step():
        return num_steps
    raise DeadlineExceeded(
      f"the engine is not idle after max_steps={max_steps}; its stats() tell "
      "which slots stay active"
    )

  @contextlib.asynccontextmanager
  async def serving(self) -> AsyncIterator["LocalDriver"]:
    """Runs steps in a worker thread while there is work.

    Leaving the context waits for the step that runs, and no longer.
    """
    self._loop = asyncio.get_running_loop()
    self._has_work.set()
    serve = asyncio.create_task(self._serve(), name="serve the engine")
    try:
      yield self
    finally:
      self._loop = None
      self._has_work.set()
      await serve

  def close(self) -> None:
    """Fails requests without an answer; there is no thread to stop."""
    self._fail(GeneratorFault("the driver was closed"))

  async def _serve(self) -> None:
    while self._loop is not None:
      await self._has_work.wait()
      self._has_work.clear()
      while self._loop is not None:
        step = asyncio.ensure_future(asyncio.to_thread(self.step))
        await asyncio.wait([step])
        if step.exception() is not None:
          return  # it has failed every request, and closed the engine
        if not step.result():
          break

  def _admit(self, request: Request) -> None:
    self.engine.admit(request)
    self._wake()

  def _wake(self) -> None:
    if (loop := self._loop) is not None:
      loop.call_soon_threadsafe(self._has_work.set)
