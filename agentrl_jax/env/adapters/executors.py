"""Executors of code that is not ours: in the event loop, or in a thread.

Every wait has a deadline, and lateness is an `EnvironmentFault`. A function
that runs in the loop cannot be interrupted unless it awaits: code that blocks
belongs into a thread.
"""

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from agentrl_jax.errors import AgentRLError, EnvironmentFault

_log = logging.getLogger(__name__)

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class LoopExecutor:
  """Runs functions in the event loop: they must return at once, or await."""

  def __init__(self, limit_s: float):
    self._limit_s = limit_s  # timeout of an awaitable

  async def run(self, function: Callable[[], Any]) -> Any:
    """Calls the function; raises a fault after `limit_s`."""
    return await _awaited(function(), self._limit_s)

  async def close(self, function: Callable[[], Any]) -> None:
    """Calls the function."""
    await self.run(function)


class ThreadExecutor:
  """Runs functions in a thread of its own, until `close`."""

  def __init__(self, limit_s: float):
    self._limit_s = limit_s  # timeout of one function
    self._loop = asyncio.get_running_loop()
    self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    self._is_stuck = False
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._thread.start()

  async def run(self, function: Callable[[], Any]) -> Any:
    """Waits for the function; a fault after `limit_s`.

    A function that takes too long goes on, since a thread cannot be stopped.
    """
    return await _awaited(await self._wait_for(function), self._limit_s)

  async def close(self, function: Callable[[], Any]) -> None:
    """Waits for the end of the thread, unless it is stuck already."""
    ending = self._submit(function)
    self._jobs.put(None)  # before any wait, which may be cancelled
    if self._is_stuck:
      _log.warning(
        "a wrapped object or function is stuck; it is closed when it returns"
      )
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
      except StopIteration as error:  # futures refuse StopIteration
        report = future.set_exception, RuntimeError(repr(error))
      except BaseException as error:  # noqa: BLE001 - raised where awaited
        report = future.set_exception, error
      try:
        self._loop.call_soon_threadsafe(_tell, future, *report)
      except RuntimeError:  # the loop is closed: there is no caller
        return
      del job, function, future, report  # the next wait would keep them alive


Executor = LoopExecutor | ThreadExecutor


def executor_of(*, blocking: bool, limit_s: float) -> Executor:
  """Makes an executor; `blocking` code gets a thread of its own."""
  return ThreadExecutor(limit_s) if blocking else LoopExecutor(limit_s)


def _tell(
  future: "asyncio.Future[Any]", report: Callable[[Any], None], value: Any
) -> None:
  if not future.done():  # a cancelled caller needs no result
    report(value)


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
      f"the wrapped object or function has not returned within {limit_s:g} s; "
      "see what it waits for, or raise step_limit_s"
    ) from error


@contextlib.contextmanager
def faults(name: str) -> Iterator[None]:
  """Turns any exception of foreign code into an `EnvironmentFault`."""
  try:
    yield
  except AgentRLError:
    raise
  except (Exception, SystemExit) as error:  # noqa: BLE001 - not our code
    raise EnvironmentFault(
      f"{name}: {type(error).__name__}: {error}"
    ) from error
