"""Runs the controller's event loop in a thread, with blocking calls into it.

The learner runs in the main thread and waits in blocking calls; environments
and requests run in one asyncio loop, in a thread of its own. This is their only
interface. A failure of the loop is raised in the learner's next call.
"""

import asyncio
import concurrent.futures
import contextlib
import math
import threading
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn, Self, TypeVar

from agentrl_jax.controller.groups.collector import Collector, CollectorState
from agentrl_jax.controller.waiting import deadline
from agentrl_jax.data.records import Group
from agentrl_jax.errors import DeadlineExceeded, QueueClosed

T = TypeVar("T")

CALL_S = 60.0  # for calls that only read or change state
STOP_S = 300.0  # for cancelled tasks to clean up
GRACE_S = 30.0  # beyond a deadline that the loop itself enforces
PULSE_S = 60.0  # between two looks at a loop whose work bounds itself


class ControllerThread:
  """Runs a collector, if given one, and coroutines that are handed to it.

    with ControllerThread(collector) as controller:
      groups = controller.take(8, version=0, timeout_s=600)

  The methods are for one thread, the learner's.
  """

  def __init__(self, collector: Collector | None = None) -> None:
    self._collector = collector
    self._loop: asyncio.AbstractEventLoop | None = None
    self._main_task: asyncio.Task[None] | None = None
    self._lock = threading.Lock()  # held to submit work, or to end submission
    self._is_open = False
    self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
    self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
    # A daemon, so that a learner that fails elsewhere can exit.
    self._thread = threading.Thread(
      target=self._serve, name="controller", daemon=True
    )

  def __enter__(self) -> Self:
    self.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    self.stop()

  def start(self) -> None:
    """Starts the loop, and the collector in it."""
    self._thread.start()
    self._outcome(self._started, CALL_S, "the controller's loop to start")

  @property
  def loop(self) -> asyncio.AbstractEventLoop:
    """The event loop, for callers in other loops."""
    if self._loop is None:
      self._raise_end()
    return self._loop

  def run(
    self,
    work: Coroutine[Any, Any, T],
    timeout_s: float,
    *,
    holder: str = "",
    look_at: str = "what that waits for",
  ) -> T:
    """Runs `work` in the loop, and returns or raises as it does.

    After `timeout_s` it is cancelled, and `DeadlineExceeded` is raised, which
    names the `holder` and tells what to `look_at`. With `math.inf` the work has
    deadlines of its own, and the loop must only go on.
    """
    return self._run(work, timeout_s, holder or repr(work), look_at)

  @contextlib.contextmanager
  def entered(
    self, context: contextlib.AbstractAsyncContextManager[T], timeout_s: float
  ) -> Iterator[T]:
    """Holds an asynchronous context open in the loop.

    To enter it and to leave it may each take `timeout_s`.
    """
    value = self.run(context.__aenter__(), timeout_s)
    try:
      yield value
    finally:
      self.run(context.__aexit__(None, None, None), timeout_s)

  def take(
    self, num_groups: int, version: int, timeout_s: float
  ) -> list[Group]:
    """Waits for groups to train `version` on; see `Collector.take`."""
    collector = self._collecting()
    return self._run(
      collector.take(num_groups, version=version),
      timeout_s,
      holder=f"{num_groups} groups to train version {version} on",
      look_at="rollout/finished and rollout/faults of each task, and the"
      " rollout engine; an episode may be longer than this wait",
    )

  def take_within(
    self, num_groups: int, version: int, wait_s: float
  ) -> list[Group] | None:
    """Like `take`; returns None if not all groups have come after `wait_s`.

    Groups are taken together or stay in the queue, so none is lost.
    """
    collector = self._collecting()

    async def take() -> list[Group] | None:
      try:
        async with asyncio.timeout(wait_s):
          return await collector.take(num_groups, version=version)
      except TimeoutError:
        return None

    return self.run(take(), wait_s + CALL_S)

  def submit(
    self, work: Coroutine[Any, Any, T]
  ) -> "concurrent.futures.Future[T]":
    """Starts `work` in the loop and returns its future at once.

    Cancelling the future cancels the work, and so does the end of the loop.
    """
    with self._lock:
      if self._is_open and self._loop is not None:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
    work.close()
    self._raise_end()

  def show_life(self) -> None:
    """Tells the collector that the learner is at work."""
    self.call(self._collecting().see_learner)

  def set_version(self, version: int) -> None:
    """Sets the learner's version, for admission."""
    collector = self._collecting()
    self.call(lambda: collector.advance(version))

  def snapshot(self) -> CollectorState:
    """Returns the collector's state."""
    return self.call(self._collecting().snapshot)

  def pause(self) -> None:
    """Starts no more groups; those in flight go on."""
    self.call(self._collecting().pause)

  def resume(self) -> None:
    """Starts groups again."""
    self.call(self._collecting().resume)

  def call(self, function: Callable[[], T]) -> T:
    """Calls `function` in the loop, between two steps of everything else."""

    async def called() -> T:
      return function()

    return self._run(called(), CALL_S, "a plain call", "what blocks the loop")

  def stop(self) -> None:
    """Cancels all tasks of the loop, and waits for its end.

    Raises the failure of the loop, if there was one. Stopping twice is allowed.
    """
    loop, self._loop = self._loop, None
    if loop is None or self._main_task is None:
      return
    with contextlib.suppress(RuntimeError):  # the loop has closed by itself
      loop.call_soon_threadsafe(self._main_task.cancel)
    self._thread.join(STOP_S)
    if self._thread.is_alive():
      raise DeadlineExceeded(
        f"stop() waited {STOP_S:g} s for the controller's loop to end; look at:"
        " sessions that do not close when they are cancelled"
      )
    self._ended.result()

  def _collecting(self) -> Collector:
    if self._collector is None:
      raise RuntimeError(
        "this ControllerThread was made without a collector; it only runs what"
        " run() is given"
      )
    return self._collector

  def _run(
    self,
    work: Coroutine[Any, Any, T],
    timeout_s: float,
    holder: str,
    look_at: str,
  ) -> T:
    async def bounded() -> T:
      async with deadline(
        timeout_s, waiter="the learner", holder=holder, look_at=look_at
      ):
        return await work

    submitted: concurrent.futures.Future[T] | None = None
    with self._lock:
      if self._is_open and self._loop is not None:
        submitted = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
    try:
      if submitted is None:
        self._raise_end()
      return self._outcome(submitted, timeout_s + GRACE_S, holder)
    finally:
      if submitted is None or self._ended.done():
        work.close()  # the loop has ended, maybe before it began with this

  def _outcome(
    self, submitted: concurrent.futures.Future[T], wait_s: float, holder: str
  ) -> T:
    """Waits for `submitted`; raises why the loop ended if that came first."""
    either: list[concurrent.futures.Future[Any]] = [submitted, self._ended]

    def done_within(seconds: float) -> set[concurrent.futures.Future[Any]]:
      return concurrent.futures.wait(
        either, timeout=seconds, return_when=concurrent.futures.FIRST_COMPLETED
      ).done

    if math.isinf(wait_s):
      while not (done := done_within(PULSE_S)):
        self._require_life(submitted, holder)
    elif not (done := done_within(wait_s)):
      submitted.cancel()
      raise DeadlineExceeded(
        f"the learner waited {wait_s:g} s for {holder}, and the controller's"
        " loop did not even say that it is late; look at: what blocks it"
      )
    if submitted not in done or _loop_ended(submitted):
      self._raise_end()
    return submitted.result()

  def _require_life(
    self, work: concurrent.futures.Future[Any], holder: str
  ) -> None:
    """Cancels the work and raises `DeadlineExceeded` if the loop is blocked."""

    async def nothing() -> None:
      pass

    try:
      self._run(
        nothing(), CALL_S, f"a sign of life of {holder}", "what blocks the loop"
      )
    except DeadlineExceeded:
      work.cancel()
      raise

  def _raise_end(self) -> NoReturn:
    """Raises the reason why the loop has ended or is ending."""
    if self._thread.is_alive():
      concurrent.futures.wait({self._ended}, timeout=STOP_S)
    if self._ended.done():
      self._ended.result()
    raise QueueClosed(
      "the controller is not running; call start() first, and nothing after "
      "stop()"
    )

  def _serve(self) -> None:
    try:
      asyncio.run(self._main())
    except asyncio.CancelledError:
      self._ended.set_result(None)  # stop() was called
    except BaseException as failure:  # noqa: BLE001 - raised in the learner
      self._ended.set_exception(failure)
    else:
      self._ended.set_result(None)

  async def _main(self) -> None:
    self._loop = asyncio.get_running_loop()
    self._main_task = asyncio.current_task()
    self._is_open = True
    self._started.set_result(None)
    try:
      if self._collector is None:
        await self._loop.create_future()  # until it is cancelled
      else:
        await self._collector.run()
    finally:
      with self._lock:
        self._is_open = False
      await asyncio.sleep(0)  # submitted calls become tasks and are cancelled


def _loop_ended(submitted: concurrent.futures.Future[T]) -> bool:
  """Returns True if a call failed because the loop is ending."""
  return submitted.cancelled() or isinstance(submitted.exception(), QueueClosed)
