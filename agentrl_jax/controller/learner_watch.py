"""The controller's waits for the learner, which works in a thread of its own.

A producer may wait through many steps of the learner, and a step may take
hours: neither is a fault. What is bounded is the time without any call from the
learner, so the deadline of every wait starts again with each call.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

from agentrl_jax.errors import ConfigError, DeadlineExceeded


class LearnerWatch:
  """Time since the learner's last call; belongs to one event loop."""

  def __init__(self, step_timeout_s: float = math.inf) -> None:
    """`step_timeout_s` seconds may pass between two calls of the learner."""
    if not step_timeout_s > 0:
      raise ConfigError(
        f"train.step_timeout_s={step_timeout_s} must be more than 0: it is "
        "the longest that one step of the learner may take, in seconds"
      )
    self._step_timeout_s = step_timeout_s
    self._waits: set[asyncio.Timeout] = set()

  def seen(self) -> None:
    """The learner has called: all waits for it start again."""
    when = self._when()
    for timer in self._waits:
      if not timer.expired():
        timer.reschedule(when)

  @contextlib.asynccontextmanager
  async def wait(
    self, *, waiter: str, holder: str, look_at: Callable[[], str]
  ) -> AsyncIterator[None]:
    """Bounds its body, which waits for the learner.

    Raises `DeadlineExceeded` after `train.step_timeout_s` seconds without a
    call from the learner. A `TimeoutError` of the body passes through, as does
    a cancellation.
    """
    timer = asyncio.timeout_at(self._when())
    try:
      async with timer:
        self._waits.add(timer)
        try:
          yield
        finally:
          self._waits.discard(timer)
    except TimeoutError as timeout:
      if not timer.expired():
        raise
      raise DeadlineExceeded(
        f"{waiter} waited for {holder}, and the learner has called for nothing "
        f"in train.step_timeout_s={self._step_timeout_s:g} s; look at: "
        f"{look_at()}; the learner's own stack, or raise the key if a step "
        "takes longer than that"
      ) from timeout

  def _when(self) -> float | None:
    if math.isinf(self._step_timeout_s):
      return None
    return asyncio.get_running_loop().time() + self._step_timeout_s
