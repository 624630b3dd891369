"""Waits with a deadline, whose error says who waited for whom.

Nothing in the controller waits outside `deadline` or `LearnerWatch.wait`: a
pipeline that hangs without a message could not be diagnosed.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

from agentrl_jax.errors import ConfigError, DeadlineExceeded


@contextlib.asynccontextmanager
async def deadline(
  seconds: float, *, waiter: str, holder: str, look_at: str | Callable[[], str]
) -> AsyncIterator[Callable[[], None]]:
  """Cancels its body after `seconds` and raises `DeadlineExceeded` instead.

  Gives the body a function that starts the time again, for progress. A
  `TimeoutError` that the body itself raises passes through, and so does a
  cancellation from outside. `look_at` may be a function, which is called when
  the time is up.
  """
  try:
    async with asyncio.timeout(seconds) as timer:

      def restart() -> None:
        if not timer.expired():
          timer.reschedule(asyncio.get_running_loop().time() + seconds)

      yield restart
  except TimeoutError as timeout:
    if not timer.expired():
      raise
    hint = look_at if isinstance(look_at, str) else look_at()
    raise DeadlineExceeded(
      f"{waiter} waited {seconds:g} s for {holder}, and no longer than that is"
      f" allowed; look at: {hint}"
    ) from timeout


class LearnerWatch:
  """Bounds waits for the learner by the time since its last call.

  A producer may wait through many steps of the learner, and a step may take
  hours: neither is a fault. So the deadline of every wait starts again with
  each call of the learner. Belongs to one event loop.
  """

  def __init__(self, step_timeout_s: float = math.inf) -> None:
    """Allows `step_timeout_s` seconds between two calls of the learner."""
    if not step_timeout_s > 0:
      raise ConfigError(
        f"train.step_timeout_s={step_timeout_s} must be more than 0: it is "
        "the longest that one step of the learner may take, in seconds"
      )
    self._step_timeout_s = step_timeout_s
    self._waits: set[asyncio.Timeout] = set()

  def seen(self) -> None:
    """Starts the deadline of every wait again: the learner has called."""
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
    call of the learner. A `TimeoutError` of the body passes through, and so
    does a cancellation.
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
        f"{waiter} waited for {holder}, and the learner has made no call in "
        f"train.step_timeout_s={self._step_timeout_s:g} s; look at: "
        f"{look_at()}; the learner's own stack, or raise the key if a step "
        "takes longer than that"
      ) from timeout

  def _when(self) -> float | None:
    if math.isinf(self._step_timeout_s):
      return None
    return asyncio.get_running_loop().time() + self._step_timeout_s
