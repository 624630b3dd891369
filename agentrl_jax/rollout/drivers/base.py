"""Base class of engine drivers: queueing, cancellation, failure of requests.

Drivers differ only in the threads that call `RolloutEngine.step` and `read`.
"""

import abc
import concurrent.futures
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from agentrl_jax.errors import GeneratorFault, ListenerFault
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.engine.engine import RolloutEngine
from agentrl_jax.rollout.engine.request import (
  Listener,
  Request,
  RequestLimiter,
)

# Requests inside the engine per slot. Those without a slot wait inside, so that
# a freed slot gets the next one at once.
_INSIDE_PER_SLOT = 2


class Driver(abc.ABC):
  """Answers requests until it is closed; `submit` may be called anywhere."""

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    self.engine = engine
    capacity = tuple(_INSIDE_PER_SLOT * n for n in engine.config.slots)
    self.max_inside = sum(capacity)
    self._limiter = RequestLimiter(capacity, max_waiting)

  def submit(
    self,
    prompt: Sequence[int] | np.ndarray,
    spec: SamplingSpec,
    listener: Listener | None = None,
  ) -> "concurrent.futures.Future[Answer]":
    """Queues a request; returns the future of its answer without waiting.

    Cancelling the future frees what the request holds. `listener` is called
    with the answer's tokens as they are read. Raises `PromptTooLong` and
    `ServerFull` before the request is queued.
    """
    request = self.engine.check(prompt, spec)
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
    self, request: Request, future: "concurrent.futures.Future[Answer]"
  ) -> None:
    if future.cancelled() and not self._limiter.withdraw(request):
      self._cancel_inside(request)

  def _cancel_inside(self, request: Request) -> None:
    self.engine.cancel(request)
    self._wake()

  def _settle(
    self,
    answered: Iterable[tuple[Request, Answer]],
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
    self, request: Request, listener: Listener, chunk: Answer
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
