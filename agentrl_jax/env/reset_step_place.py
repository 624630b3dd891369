"""Where the code of a wrapped object runs: here, or in a thread of its own.

Code that blocks would hold up every other session. A thread of its own keeps it
apart, gives it a deadline, and suits objects that want to be used from the
thread that made them. Such a thread never keeps the process alive.
"""

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from agentrl_jax.errors import EnvironmentFault

_log = logging.getLogger(__name__)

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Place(Protocol):
  """Runs functions one after another; `close` runs the last one."""

  async def run(self, function: Callable[[], Any]) -> Any:
    """What the function returns; where that is awaitable, what it gives."""
    ...

  async def close(self, function: Callable[[], Any]) -> None:
    """Runs it once nothing else does; a cancellation does not stop it."""
    ...


class Here:
  """The event loop's own thread: for code that returns at once, or awaits."""

  def __init__(self, limit_s: float):
    self._limit_s = limit_s  # on what is awaited

  async def run(self, function: Callable[[], Any]) -> Any:
    """Calls it. Raises `EnvironmentFault` if what it awaits takes too long."""
    return await _awaited(function(), self._limit_s)

  async def close(self, function: Callable[[], Any]) -> None:
    """Calls it."""
    await self.run(function)


class OwnThread:
  """A thread that ends with `close`, or with the process."""

  def __init__(self, limit_s: float):
    self._limit_s = limit_s  # on one function
    self._loop = asyncio.get_running_loop()
    self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    self._is_stuck = False
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._thread.start()

  async def run(self, function: Callable[[], Any]) -> Any:
    """Waits for the function; `EnvironmentFault` if it takes too long.

    A function that does is left to itself: nothing can stop it.
    """
    return await _awaited(await self._wait_for(function), self._limit_s)

  async def close(self, function: Callable[[], Any]) -> None:
    """Waits for the end of the thread, unless it is stuck already."""
    ending = self._submit(function)
    self._jobs.put(None)  # before any wait, which may be cancelled
    if self._is_stuck:
      _log.warning("a wrapped object is stuck; it is closed when it returns")
      ending.cancel()
      return
    await _awaited(await _in_time(ending, self._limit_s), self._limit_s)
    self._thread.join()

  async def _wait_for(self, function: Callable[[], Any]) -> Any:
    try:
      return await _in_time(self._submit(function), self._limit_s)
    except EnvironmentFault:
      self._is_stuck = True
      raise

  def _submit(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = self._loop.create_future()
    self._jobs.put((function, future))
    return future

  def _work(self) -> None:
    while (job := self._jobs.get()) is not None:
      function, future = job
      report: tuple[Callable[[Any], None], Any]
      try:
        report = future.set_result, function()
      except StopIteration as error:  # which no future takes
        report = future.set_exception, RuntimeError(repr(error))
      except BaseException as error:  # noqa: BLE001 - raised where awaited
        report = future.set_exception, error
      try:
        self._loop.call_soon_threadsafe(_tell, future, *report)
      except RuntimeError:  # the loop is closed, and nobody waits
        return
      del job, function, future, report  # or the next wait keeps them alive


def _tell(
  future: "asyncio.Future[Any]", say: Callable[[Any], None], what: Any
) -> None:
  if not future.done():  # who waited may have left
    say(what)


async def _awaited(value: Any, limit_s: float) -> Any:
  if inspect.isawaitable(value):
    return await _in_time(value, limit_s)
  return value


async def _in_time(awaitable: Any, limit_s: float) -> Any:
  try:
    async with asyncio.timeout(limit_s) as timer:
      return await awaitable
  except TimeoutError as error:
    if not timer.expired():
      raise
    raise EnvironmentFault(
      f"the wrapped object has not returned within {limit_s:g} s; see what it "
      "waits for, or raise step_limit_s"
    ) from error
