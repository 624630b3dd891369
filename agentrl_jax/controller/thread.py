"""The learner's blocking door to the controller's event loop.

The learner lives in the main thread and waits in plain calls; environments and
requests live in one asyncio loop, in a thread of its own. They meet here only.
What fails in the loop is raised in the learner's next call.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import types
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Self, TypeVar

from agentrl_jax.controller.collector import Collector, CollectorState
from agentrl_jax.controller.deadline import deadline
from agentrl_jax.data.trajectory import Group
from agentrl_jax.errors import DeadlineExceeded, QueueClosed

T = TypeVar("T")

CALL_S = 60.0  # for calls that only read or change state
STOP_S = 300.0  # for all that is cancelled to clean up
GRACE_S = 30.0  # beyond a deadline that the loop itself keeps


class ControllerThread:
  """Runs a collector, if given one, and what else it is asked to.

    with ControllerThread(collector) as controller:
      groups = controller.take(8, version=0, timeout_s=600)

  The methods are for one thread, the learner's.
  """

  def __init__(self, collector: Collector | None = None) -> None:
    self._collector = collector
    self._loop: asyncio.AbstractEventLoop | None = None
    self._main_task: asyncio.Task[None] | None = None
    self._door = threading.Lock()  # to come in, or to shut it for good
    self._is_open = False
    self._begun: concurrent.futures.Future[None] = concurrent.futures.Future()
    self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
    # A daemon, so that a learner that dies of something else can exit.
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
    """Starts the loop and, in it, the collector."""
    self._thread.start()
    self._outcome(self._begun, CALL_S, "the controller's loop to start")

  @property
  def loop(self) -> asyncio.AbstractEventLoop:
    """The loop itself, for those who hand it calls from other loops."""
    if self._loop is None:
      self._raise_end()
    return self._loop

  def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Runs `work` in the loop and waits for what it returns or raises.

    It is cancelled, and `DeadlineExceeded` raised, after `timeout_s`.
    """
    return self._run(work, timeout_s, repr(work), "what that waits for")

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
    """The same, or None if they are not all there after `wait_s`.

    None is lost in between: groups are taken together or stay in the queue.
    """
    collector = self._collecting()

    async def take() -> list[Group] | None:
      try:
        async with asyncio.timeout(wait_s):
          return await collector.take(num_groups, version=version)
      except TimeoutError:
        return None

    return self.run(take(), wait_s + CALL_S)

  def set_version(self, version: int) -> None:
    """Tells admission how far the learner is."""
    collector = self._collecting()
    self.call(lambda: collector.advance(version))

  def snapshot(self) -> CollectorState:
    """The collector's state, in one piece."""
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
    """Cancels all that runs in the loop, and waits until it has ended.

    Raises what failed in the loop. Stopping twice does nothing.
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
    with self._door:
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
    """What became of `submitted`, or of the loop if that ended before."""
    either: list[concurrent.futures.Future[Any]] = [submitted, self._ended]
    done, _ = concurrent.futures.wait(
      either,
      timeout=wait_s,
      return_when=concurrent.futures.FIRST_COMPLETED,
    )
    if not done:
      submitted.cancel()
      raise DeadlineExceeded(
        f"the learner waited {wait_s:g} s for {holder}, and the controller's"
        " loop did not even say that it is late; look at: what blocks it"
      )
    if submitted not in done or _was_cut_off(submitted):
      self._raise_end()
    return submitted.result()

  def _raise_end(self) -> NoReturn:
    """Raises why the loop ended or is about to."""
    if self._thread.is_alive():
      concurrent.futures.wait({self._ended}, timeout=STOP_S)
    if self._ended.done():
      self._ended.result()
    raise QueueClosed(
      "the controller is not running; call start() first, and none after stop()"
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
    self._begun.set_result(None)
    try:
      if self._collector is None:
        await self._loop.create_future()  # until it is cancelled
      else:
        await self._collector.run()
    finally:
      with self._door:
        self._is_open = False
      await asyncio.sleep(0)  # who has come in becomes a task, to be cancelled


def _was_cut_off(submitted: concurrent.futures.Future[T]) -> bool:
  """Whether it failed because the loop is ending."""
  return submitted.cancelled() or isinstance(submitted.exception(), QueueClosed)
