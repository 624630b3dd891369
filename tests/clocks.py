"""Waits for events, and clocks that tests put forward.

No result may depend on how fast the machine is:

- A test that waits for an event uses `until` or, without an event loop,
  `wait_until`. They return as soon as the event is there; their deadline is for
  what hangs, and fails the test.
- A test of a timeout sets a long one, and puts a `Clock` forward. Code without
  an event loop takes its clock as an argument, for which a test gives a
  `StoppedClock`.
"""

import asyncio
import inspect
import time
from collections.abc import Callable

WITHIN_S = 60.0
_PAUSE_S = 0.01  # between two looks at what nothing announces


class Clock:
  """The running loop's clock, which can be put forward: nobody waits."""

  def __init__(self) -> None:
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = float("inf")  # by this clock, all are
    self._true_time, self._ahead_s = loop.time, 0.0
    loop.time = lambda: self._true_time() + self._ahead_s  # type: ignore[method-assign]

  async def forward(self, seconds: float) -> None:
    await turns_of_the_loop()  # what was just begun sets its timers first
    self._ahead_s += seconds
    await turns_of_the_loop()


class StoppedClock:
  """A clock that shows `now_s`, which only a test changes."""

  def __init__(self, now_s: float = 100.0) -> None:
    self.now_s = now_s

  def __call__(self) -> float:
    return self.now_s


async def turns_of_the_loop(n: int = 50) -> None:
  """Lets everything that can run do so; no clock is involved."""
  for _ in range(n):
    await asyncio.sleep(0)


async def until(
  holds: Callable[[], object],
  what: str | Callable[[], str] = "what the test waited for",
  within_s: float = WITHIN_S,
) -> None:
  """Lets everything run until `holds()`, which may return an awaitable."""
  end = time.monotonic() + within_s  # which no `Clock` changes
  num_looks = 0
  while True:
    held = holds()
    if await held if inspect.isawaitable(held) else held:
      return
    _check(end, what, within_s)
    num_looks += 1
    await asyncio.sleep(0 if num_looks < 100 else _PAUSE_S)


def wait_until(
  holds: Callable[[], object],
  what: str | Callable[[], str] = "what the test waited for",
  within_s: float = WITHIN_S,
) -> None:
  """Blocks until `holds()`."""
  end = time.monotonic() + within_s
  while not holds():
    _check(end, what, within_s)
    time.sleep(_PAUSE_S)


def _check(end: float, what: str | Callable[[], str], within_s: float) -> None:
  if time.monotonic() > end:
    said = what() if callable(what) else what
    raise AssertionError(f"not within {within_s:g} s: {said}")
