"""Drives the engine from one thread, step by step, always in the same order.

Needs no JetStream. The same requests submitted between the same steps give the
same answers bit for bit, so tests and resumed runs can be compared exactly.
Under asyncio, `serving` takes the steps in a worker thread, one at a time.
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
  """The caller takes the steps."""

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    super().__init__(engine, max_waiting=max_waiting)
    self._loop: asyncio.AbstractEventLoop | None = None
    self._work = asyncio.Event()
    self._stepping = threading.Lock()

  def step(self) -> bool:
    """Takes one step and hands out its answers; False if there was no work.

    An error of the engine fails every request, and is raised here too.
    """
    with self._stepping:
      return self._step()

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """No step is taken within: what is submitted is there for the next."""
    with self._stepping:
      yield

  def _step(self) -> bool:
    if self.engine.is_idle:
      return False
    try:
      result = self.engine.step()
      self._settle(self.engine.read(result), result.cancelled)
    except BaseException as error:
      self._fail(error)
      raise
    return True

  def run_until_idle(self, max_steps: int = 1_000_000) -> int:
    """Answers everything that was asked; how many steps it took."""
    for num_steps in range(max_steps):
      if not self.step():
        return num_steps
    raise DeadlineExceeded(
      f"the engine is not idle after max_steps={max_steps}; its stats() tell "
      "which slots stay active"
    )

  @contextlib.asynccontextmanager
  async def serving(self) -> AsyncIterator["LocalDriver"]:
    """Takes steps in a worker thread while there is work.

    Leaving waits for the step that is being taken, no longer.
    """
    self._loop = asyncio.get_running_loop()
    self._work.set()
    serve = asyncio.create_task(self._serve(), name="serve the engine")
    try:
      yield self
    finally:
      self._loop = None
      self._work.set()
      await serve

  def close(self) -> None:
    """Fails what is not answered; there is no thread to end."""
    self._fail(GeneratorFault("the driver was closed"))

  async def _serve(self) -> None:
    while self._loop is not None:
      await self._work.wait()
      self._work.clear()
      while self._loop is not None:
        step = asyncio.ensure_future(asyncio.to_thread(self.step))
        await asyncio.wait([step])
        if step.exception() is not None:
          return  # every request has failed with it, and so will later ones
        if not step.result():
          break

  def _admit(self, request: Request) -> None:
    self.engine.admit(request)
    self._wake()

  def _wake(self) -> None:
    if (loop := self._loop) is not None:
      loop.call_soon_threadsafe(self._work.set)
