"""An event loop on a virtual clock: nothing waits, and everything is in order.

Code that waits by its event loop (`asyncio.sleep`, `asyncio.timeout`) runs
unchanged; an hour of waiting costs what its callbacks cost. One thread, no
sockets: a simulation of the controller's policies with the controller's code.
"""

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
  """Puts its clock forward to the next timer instead of waiting for it."""

  def __init__(self) -> None:
    self._now_s = 0.0
    super().__init__(_Selector(self))
    self.slow_callback_duration = float("inf")  # by this clock, all are

  def time(self) -> float:
    """Returns virtual seconds since the loop was made."""
    return self._now_s

  def forward(self, seconds: float) -> None:
    """Puts the clock forward, just beyond: a timer fires after its time."""
    self._now_s = math.nextafter(self._now_s + seconds, math.inf)


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
  """Finds what is ready now, and lets time pass if nothing is."""

  def __init__(self, loop: VirtualTimeLoop) -> None:
    super().__init__()
    self._loop = loop

  def select(
    self, timeout: float | None = None
  ) -> list[tuple[selectors.SelectorKey, int]]:
    ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
    if ready:
      return ready
    if timeout is None:
      raise RuntimeError(
        "all tasks of the simulation wait for each other: no timer is set, so "
        "nothing will ever happen"
      )
    if timeout > 0:
      self._loop.forward(timeout)
    return ready


def run(simulation: Coroutine[Any, Any, T]) -> T:
  """Runs a coroutine to its end in virtual time."""
  with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
    # Not by `Runner.run`, which formats the whole result to restore SIGINT.
    return runner.get_loop().run_until_complete(simulation)
