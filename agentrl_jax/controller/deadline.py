"""Waits that end, and say who kept whom waiting.

A pipeline that hangs in silence is the worst of its failures. So nothing in the
controller waits but inside `deadline`, and its error is the diagnosis.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from agentrl_jax.errors import DeadlineExceeded


@contextlib.asynccontextmanager
async def deadline(
  seconds: float, *, waiter: str, holder: str, look_at: str | Callable[[], str]
) -> AsyncIterator[None]:
  """Cancels its body after `seconds` and raises `DeadlineExceeded` instead.

  A `TimeoutError` that the body raises of its own passes through untouched, and
  so does a cancellation from outside. `look_at` may be a function, asked when
  the time is up.
  """
  try:
    async with asyncio.timeout(seconds) as timer:
      yield
  except TimeoutError as timeout:
    if not timer.expired():
      raise
    where = look_at if isinstance(look_at, str) else look_at()
    raise DeadlineExceeded(
      f"{waiter} waited {seconds:g} s for {holder}, and no longer than that is"
      f" allowed; look at: {where}"
    ) from timeout
