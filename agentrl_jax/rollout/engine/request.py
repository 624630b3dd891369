"""Requests of the engine, and the limit on how many are inside at once."""

import collections
import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable

import numpy as np

from agentrl_jax.data.grammar import GrammarState
from agentrl_jax.errors import ConfigError, GeneratorFault, ServerFull
from agentrl_jax.rollout.api import Answer, SamplingSpec

# Called with the tokens sampled since the last call, for the last time before
# the future is done. It runs in the thread that reads the engine's results, so
# it must not wait; an exception that it raises fails its request.
Listener = Callable[[Answer], None]


@dataclasses.dataclass(eq=False)
class Request:
  """A prompt, how to answer it, and the future of the answer.

  Cancelling the future cancels the request.
  """

  prompt: np.ndarray  # int32 [T]
  spec: SamplingSpec
  serial: int  # unique among the requests of an engine
  future: "concurrent.futures.Future[Answer]" = dataclasses.field(
    default_factory=concurrent.futures.Future
  )
  arrived_at: float = dataclasses.field(default_factory=time.monotonic)
  num_reused: int = 0  # prompt tokens whose keys and values were cached
  listener: Listener | None = None
  num_streamed: int = 0  # sampled tokens that the listener has received
  grammar_state: GrammarState | None = None  # None: no grammar
  # Raised by the request's listener or grammar. The code that sets it also
  # cancels the request, which then leaves the engine and fails with this fault.
  fault: GeneratorFault | None = None

  @property
  def prefill_length(self) -> int:
    """Prompt tokens to prefill: all but the last.

    The first decode step computes the last one.
    """
    return len(self.prompt) - 1

  @property
  def max_length(self) -> int:
    """The longest that prompt and answer can get, in tokens."""
    return len(self.prompt) + self.spec.max_tokens


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
    policy_slot = request.spec.policy_slot
    with self._lock:
      if self._close_reason is not None:
        raise GeneratorFault(
          f"the engine accepts no more requests: {self._close_reason!r}"
        ) from self._close_reason
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

  def leave(self, request: Request) -> tuple[bool, Request | None]:
    """Removes a request; returns whether it was inside, and the next to enter.

    For each request only one call, of `leave` or of `close`, reports it: that
    caller has to settle the request's future.
    """
    policy_slot = request.spec.policy_slot
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
      waiting = self._waiting[request.spec.policy_slot]
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
