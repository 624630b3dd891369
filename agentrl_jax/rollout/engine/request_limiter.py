"""Who may enter the engine now, and who waits outside.

A state machine under one lock; it waits for nothing. Each policy slot lets in
so many requests at a time, the others queue in order. So a policy slot that is
asked a lot takes no room from a policy slot that is asked a little.
"""

import collections
import threading

from agentrl_jax.errors import ConfigError, GeneratorFault, ServerFull
from agentrl_jax.rollout.engine.request import Request


class RequestLimiter:
  """Counts requests in and out of each policy slot."""

  def __init__(self, capacity: tuple[int, ...], max_waiting: int):
    if max_waiting < 0:
      raise ConfigError(f"max_waiting={max_waiting} must be 0 or more")
    self._capacity, self._max_waiting = capacity, max_waiting
    self._inside: list[dict[int, Request]] = [{} for _ in capacity]
    self._waiting: list[collections.OrderedDict[int, Request]] = [
      collections.OrderedDict() for _ in capacity
    ]
    self._lock = threading.Lock()
    self._why_closed: BaseException | None = None

  def enter(self, request: Request) -> bool:
    """Whether the request is let in now; otherwise it queues.

    Raises `ServerFull` if the queue is, and `GeneratorFault` once closed.
    """
    policy_slot = request.spec.policy_slot
    with self._lock:
      if self._why_closed is not None:
        raise GeneratorFault(
          "the engine takes no requests any more: " + repr(self._why_closed)
        ) from self._why_closed
      if len(self._inside[policy_slot]) < self._capacity[policy_slot]:
        self._inside[policy_slot][request.serial] = request
        return True
      if len(self._waiting[policy_slot]) >= self._max_waiting:
        raise ServerFull(
          f"{len(self._waiting[policy_slot])} requests wait for policy slot "
          f"{policy_slot} "
          "already, which is all that may; ask again later, or raise "
          f"max_waiting={self._max_waiting}"
        )
      self._waiting[policy_slot][request.serial] = request
      return False

  def leave(self, request: Request) -> tuple[bool, Request | None]:
    """Lets a request out, and the next one in, which is returned, too.

    Of all who ask, and `close`, one alone is told that the request was inside:
    it is the one to settle the request's future.
    """
    policy_slot = request.spec.policy_slot
    with self._lock:
      if self._inside[policy_slot].pop(request.serial, None) is None:
        return False, None
      if not self._waiting[policy_slot]:
        return True, None
      serial, following = self._waiting[policy_slot].popitem(last=False)
      self._inside[policy_slot][serial] = following
      return True, following

  def withdraw(self, request: Request) -> bool:
    """Takes a request out of the queue; False if it is not in it."""
    with self._lock:
      waiting = self._waiting[request.spec.policy_slot]
      return waiting.pop(request.serial, None) is not None

  def close(self, why: BaseException) -> list[Request]:
    """Lets nobody in any more; everyone who is inside or waits."""
    with self._lock:
      if self._why_closed is None:
        self._why_closed = why
      everyone = [
        request
        for requests in (*self._inside, *self._waiting)
        for request in requests.values()
      ]
      for requests in (*self._inside, *self._waiting):
        requests.clear()
      return everyone

  @property
  def num_inside(self) -> tuple[int, ...]:
    """Requests let in and not yet out, per policy slot."""
    with self._lock:
      return tuple(len(requests) for requests in self._inside)

  @property
  def num_waiting(self) -> tuple[int, ...]:
    """Requests that queue, per policy slot."""
    with self._lock:
      return tuple(len(requests) for requests in self._waiting)
