"""What drives the engine, as seen by whoever has a question for it.

Everything the drivers share: checking and queueing requests, handing out
answers, cancellation, and what happens to requests when the engine breaks.
What differs is only who calls `RolloutEngine.step` and `read`, and where.
"""

import abc
import concurrent.futures
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from agentrl_jax.errors import GeneratorFault, ListenerFault
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.engine.engine import RolloutEngine
from agentrl_jax.rollout.engine.request import Listener, Request
from agentrl_jax.rollout.engine.request_limiter import RequestLimiter

# Requests let into the engine per slot. Those without a slot wait inside, where
# a slot that gets free finds them at once.
ADMITTED_PER_SLOT = 2


class Driver(abc.ABC):
  """Answers requests until it is closed. `submit` may be called anywhere."""

  def __init__(self, engine: RolloutEngine, *, max_waiting: int = 4096):
    self.engine = engine
    capacity = tuple(ADMITTED_PER_SLOT * n for n in engine.config.slots)
    self.max_inside = sum(capacity)
    self._gate = RequestLimiter(capacity, max_waiting)

  def submit(
    self,
    prompt: Sequence[int] | np.ndarray,
    spec: SamplingSpec,
    listener: Listener | None = None,
  ) -> "concurrent.futures.Future[Answer]":
    """Asks for an answer; cancelling the future gives up what it holds.

    `listener` hears of the answer's tokens as they are read.
    Raises `PromptTooLong` and `ServerFull` before anything is queued. Waits
    for nothing.
    """
    request = self.engine.check(prompt, spec)
    if listener is not None:
      request.listener = functools.partial(self._tell, request, listener)
    request.future.add_done_callback(
      functools.partial(self._release_cancelled, request)
    )
    if self._gate.enter(request):
      self._admit(request)
    return request.future

  @property
  def num_waiting(self) -> tuple[int, ...]:
    """Requests that queue outside the engine, per policy slot."""
    return self._gate.num_waiting

  @property
  def num_inside(self) -> tuple[int, ...]:
    """Requests in the engine, per policy slot."""
    return self._gate.num_inside

  @abc.abstractmethod
  def close(self) -> None:
    """Ends it; requests that are not answered by now fail."""

  @abc.abstractmethod
  def _admit(self, request: Request) -> None:
    """Hands a request to the engine."""

  @abc.abstractmethod
  def _wake(self) -> None:
    """Makes sure that another step is taken."""

  def _release_cancelled(
    self, request: Request, future: "concurrent.futures.Future[Answer]"
  ) -> None:
    if future.cancelled() and not self._gate.withdraw(request):
      self.engine.cancel(request)
      self._wake()

  def _settle(
    self,
    answered: Iterable[tuple[Request, Answer]],
    cancelled: Iterable[Request],
  ) -> None:
    """Hands out what a step brought, and lets the next requests in.

    Requests that `_fail` has settled meanwhile are left alone.
    """
    for request, answer in answered:
      if not self._let_out(request):
        continue
      if request.broke is not None:
        _fail_one(request, request.broke)
      elif request.future.set_running_or_notify_cancel():
        request.future.set_result(answer)
    for request in cancelled:
      if self._let_out(request) and request.broke is not None:
        _fail_one(request, request.broke)

  def _tell(self, request: Request, listener: Listener, piece: Answer) -> None:
    """Whoever listens breaks nothing but their own request."""
    if request.broke is not None:
      return
    try:
      listener(piece)
    except Exception as error:  # noqa: BLE001 - the request fails with it
      request.broke = ListenerFault(f"its listener stopped: {error!r}")
      request.broke.__cause__ = error
      self.engine.cancel(request)
      self._wake()

  def _let_out(self, request: Request) -> bool:
    """Whether its future is for the caller to settle."""
    was_inside, following = self._gate.leave(request)
    if following is not None:
      self._admit(following)
    return was_inside

  def _fail(self, cause: BaseException) -> None:
    """Fails every request with `cause`; no other is taken."""
    self.engine.close()
    for request in self._gate.close(cause):
      _fail_one(request, _stopped(cause))


def _stopped(cause: BaseException) -> GeneratorFault:
  fault = GeneratorFault(f"the engine stopped: {cause!r}")
  fault.__cause__ = cause
  return fault


def _fail_one(request: Request, fault: GeneratorFault) -> None:
  if request.future.set_running_or_notify_cancel():
    request.future.set_exception(fault)
