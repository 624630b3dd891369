"""Drives the engine: which requests are inside, which thread runs its steps.

Drivers differ only in the threads that call `RolloutEngine.step` and `read`.
`LocalDriver` runs steps in one thread, in a repeatable order, and needs no
JetStream: the same requests submitted between the same steps give bit-identical
answers, so that tests and resumed runs can be compared exactly.
`EngineGenerator` is a driver's side towards asyncio.
"""

import abc
import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import (
  AsyncGenerator,
  AsyncIterator,
  Iterable,
  Iterator,
  Sequence,
)

import numpy as np

from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  ListenerFault,
  ServerFull,
)
from agentrl_jax.rollout.api import (
  Completion,
  Listener,
  Request,
  SamplingParams,
)
from agentrl_jax.rollout.engine.engine import RolloutEngine
from agentrl_jax.rollout.engine.grammar_compiler import (
  MAX_WAITING,
  GrammarCompiler,
)

# Requests inside the engine per slot. Those without a slot wait inside, so that
# a freed slot gets the next one at once.
_INSIDE_PER_SLOT = 2
_IDLE_POLL_S = 0.01


class Driver(abc.ABC):
  """Queues, cancels and fails requests, until it is closed.

  `submit` may be called from any thread.
  """

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    self.engine = engine
    capacity = tuple(_INSIDE_PER_SLOT * n for n in engine.config.slots)
    self.max_inside = sum(capacity)
    self._limiter = RequestLimiter(capacity, max_waiting)

  def submit(
    self,
    prompt: Sequence[int] | np.ndarray,
    sampling: SamplingParams,
    listener: Listener | None = None,
  ) -> "concurrent.futures.Future[Completion]":
    """Queues a request; returns the future of its answer without waiting.

    Cancelling the future frees what the request holds. `listener` is called
    with the answer's tokens as they are read. Raises `PromptTooLong` and
    `ServerFull` before the request is queued.
    """
    request = self.engine.check(prompt, sampling)
    if listener is not None:
      request.listener = functools.partial(self._notify, request, listener)
    request.future.add_done_callback(
      functools.partial(self._release_cancelled, request)
    )
    if self._limiter.enter(request):
      self._admit(request)
    return request.future

  @property
  def num_waiting(self) -> tuple[int, ...]:
    """Requests that wait outside the engine, per policy slot."""
    return self._limiter.num_waiting

  @property
  def num_inside(self) -> tuple[int, ...]:
    """Requests inside the engine, per policy slot."""
    return self._limiter.num_inside

  def wait_until_idle(self, deadline_s: float) -> None:
    """Waits until the engine has dropped or answered all requests."""
    ends_at = time.monotonic() + deadline_s
    while not self.engine.is_idle:
      if time.monotonic() > ends_at:
        raise DeadlineExceeded(
          f"the engine has requests {deadline_s:g} s after the last was sent: "
          f"{self.num_inside} inside per policy slot; look at: its steps"
        )
      time.sleep(_IDLE_POLL_S)

  def require_running(self) -> None:
    """Raises `GeneratorFault` with the cause if no more requests are taken."""
    self._limiter.require_open()

  @abc.abstractmethod
  def close(self) -> None:
    """Stops the driver; requests without an answer fail."""

  @abc.abstractmethod
  def _admit(self, request: Request) -> None:
    """Passes a request on to the engine."""

  @abc.abstractmethod
  def _wake(self) -> None:
    """Ensures that another engine step runs."""

  def _release_cancelled(
    self, request: Request, future: "concurrent.futures.Future[Completion]"
  ) -> None:
    if future.cancelled() and not self._limiter.withdraw(request):
      self._cancel_inside(request)

  def _cancel_inside(self, request: Request) -> None:
    self.engine.cancel(request)
    self._wake()

  def _settle(
    self,
    answered: Iterable[tuple[Request, Completion]],
    cancelled: Iterable[Request],
  ) -> None:
    """Settles the futures of a step's requests, and lets the next ones enter.

    Requests that `_fail` has settled meanwhile are skipped.
    """
    for request, answer in answered:
      if not self._leave(request):
        continue
      if request.fault is not None:
        _fail_request(request, request.fault)
      elif request.future.set_running_or_notify_cancel():
        request.future.set_result(answer)
    for request in cancelled:
      if self._leave(request) and request.fault is not None:
        _fail_request(request, request.fault)

  def _notify(
    self, request: Request, listener: Listener, chunk: Completion
  ) -> None:
    """Calls a listener; its exception fails its own request only."""
    if request.fault is not None:
      return
    try:
      listener(chunk)
    except Exception as error:  # noqa: BLE001 - the request fails with it
      request.fault = ListenerFault(f"its listener stopped: {error!r}")
      request.fault.__cause__ = error
      self._cancel_inside(request)

  def _leave(self, request: Request) -> bool:
    """Returns whether the caller has to settle the request's future."""
    was_inside, following = self._limiter.leave(request)
    if following is not None:
      self._admit(following)
    return was_inside

  def _fail(self, cause: BaseException) -> None:
    """Fails every request with `cause`, and refuses all further ones."""
    self.engine.close()
    for request in self._limiter.close(cause):
      fault = GeneratorFault(f"the engine stopped: {cause!r}")
      fault.__cause__ = cause
      _fail_request(request, fault)


def _fail_request(request: Request, fault: GeneratorFault) -> None:
  if request.future.set_running_or_notify_cancel():
    request.future.set_exception(fault)


class RequestLimiter:
  """Limits the requests inside the engine; the others wait in a queue.

  - Each policy slot has a capacity and a first-in-first-out queue of its own,
    so a busy policy slot takes no room from the others.
  - A request is inside, or waits, or neither.
  - All methods may be called from any thread, and none of them blocks.
  """

  def __init__(self, capacity: tuple[int, ...], max_waiting: int):
    if max_waiting < 0:
      raise ConfigError(f"max_waiting={max_waiting} must be 0 or more")
    self._capacity, self._max_waiting = capacity, max_waiting
    self._inside: list[dict[int, Request]] = [{} for _ in capacity]
    self._waiting: list[collections.OrderedDict[int, Request]] = [
      collections.OrderedDict() for _ in capacity
    ]
    self._lock = threading.Lock()
    self._close_reason: BaseException | None = None

  def enter(self, request: Request) -> bool:
    """Returns whether the request may enter now; otherwise it is queued.

    Raises `ServerFull` if the queue is full, and `GeneratorFault` once closed.
    """
    policy_slot = request.sampling.policy_slot
    with self._lock:
      self.require_open()
      inside, waiting = self._inside[policy_slot], self._waiting[policy_slot]
      if len(inside) < self._capacity[policy_slot]:
        inside[request.serial] = request
        return True
      if len(waiting) >= self._max_waiting:
        raise ServerFull(
          f"{len(waiting)} requests wait for policy slot {policy_slot}, and no "
          "more may wait; try again later, or raise "
          f"max_waiting={self._max_waiting}"
        )
      waiting[request.serial] = request
      return False

  def require_open(self) -> None:
    """Raises `GeneratorFault` once closed."""
    if self._close_reason is not None:
      raise GeneratorFault(
        f"the engine accepts no more requests: {self._close_reason!r}"
      ) from self._close_reason

  def leave(self, request: Request) -> tuple[bool, Request | None]:
    """Removes a request; returns whether it was inside, and the next to enter.

    For each request only one call, of `leave` or of `close`, reports it: that
    caller has to settle the request's future.
    """
    policy_slot = request.sampling.policy_slot
    with self._lock:
      inside, waiting = self._inside[policy_slot], self._waiting[policy_slot]
      if inside.pop(request.serial, None) is None:
        return False, None
      if not waiting:
        return True, None
      serial, following = waiting.popitem(last=False)
      inside[serial] = following
      return True, following

  def withdraw(self, request: Request) -> bool:
    """Removes a request from the queue; returns False if it does not wait."""
    with self._lock:
      waiting = self._waiting[request.sampling.policy_slot]
      return waiting.pop(request.serial, None) is not None

  def close(self, reason: BaseException) -> list[Request]:
    """Refuses all further requests; returns those that are inside or wait."""
    with self._lock:
      if self._close_reason is None:
        self._close_reason = reason
      everything = (*self._inside, *self._waiting)
      requests = [r for by_serial in everything for r in by_serial.values()]
      for by_serial in everything:
        by_serial.clear()
      return requests

  @property
  def num_inside(self) -> tuple[int, ...]:
    """Requests inside, per policy slot."""
    with self._lock:
      return tuple(map(len, self._inside))

  @property
  def num_waiting(self) -> tuple[int, ...]:
    """Requests in the queue, per policy slot."""
    with self._lock:
      return tuple(map(len, self._waiting))


class LocalDriver(Driver):
  """Runs steps when its caller asks for them, or within `serving`.

  `serving` runs them in a worker thread, one at a time.
  """

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


class EngineGenerator:
  """Implements `rollout.api.StreamingGenerator` on a driver in this process."""

  def __init__(
    self,
    driver: Driver,
    *,
    deadline_s: float,
    max_grammars: int | None = MAX_WAITING,
  ):
    """`max_grammars` may wait to be compiled, so that no client locks out
    others; None where all requests are a run's own.
    """
    self._driver, self._deadline_s = driver, deadline_s
    self._compiler = GrammarCompiler(driver.engine.grammars, max_grammars)

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that are served side by side."""
    return self._driver.engine.config.num_policy_slots

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Waits for the answer; cancelling frees the slot that decodes it."""
    await self._compile(sampling)
    future = asyncio.wrap_future(self._driver.submit(prompt, sampling))
    try:
      async with asyncio.timeout(self._deadline_s):
        return await future
    except TimeoutError as error:
      raise self._deadline_exceeded(sampling) from error

  async def stream(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> AsyncGenerator[Completion, None]:
    """Yields the chunks of the answer as they are read from the engine.

    Closing it frees the slot. A slow reader does not slow the engine: its
    chunks wait here, bounded by `sampling.max_tokens`.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Completion | None] = asyncio.Queue()

    def put(chunk: Completion | None) -> None:
      with contextlib.suppress(RuntimeError):  # the reader's loop is closed
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    await self._compile(sampling)
    future = self._driver.submit(prompt, sampling, put)
    future.add_done_callback(lambda _: put(None))
    deadline = loop.time() + self._deadline_s
    try:
      while True:
        async with asyncio.timeout_at(deadline):
          chunk = await chunks.get()
        if chunk is None:
          break
        yield chunk
      future.result(0)  # raises the error that ended the answer
    except TimeoutError as error:
      raise self._deadline_exceeded(sampling) from error
    finally:
      future.cancel()

  async def _compile(self, sampling: SamplingParams) -> None:
    """Compiles the grammar here, since `submit` would block the event loop."""
    if sampling.grammar:
      await self._compiler.prepare(sampling.grammar)

  def _deadline_exceeded(self, sampling: SamplingParams) -> DeadlineExceeded:
    return DeadlineExceeded(
      f"no answer of {sampling.max_tokens} tokens came from policy slot "
      f"{sampling.policy_slot} in {self._deadline_s} s; requests per policy "
      f"slot: {self._driver.num_inside} inside the engine, "
      f"{self._driver.num_waiting} waiting"
    )
