"""SIGINT and SIGTERM as a question that loops ask, instead of a blow.

A preempted machine gets a notice first. A stage asks between two updates,
writes its checkpoint, and leaves by `Interrupted`; a second signal acts at
once.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(SystemExit):  # noqa: N818 - it is how the process ends
  """The run was asked to stop, and has saved what it had."""


class Interrupts:
  """Whether the process was asked to stop."""

  def __init__(self) -> None:
    self.received: signal.Signals | None = None

  def check(self, save: Callable[[], None] = lambda: None) -> None:
    """Calls `save` and raises `Interrupted` if a signal has come."""
    if self.received is not None:
      save()
      raise Interrupted(128 + self.received)


@contextmanager
def listen() -> Iterator[Interrupts]:
  """Catches the first SIGINT or SIGTERM; the second one is not caught."""
  interrupts = Interrupts()
  before: dict[int, Any] = {}

  def note(number: int, frame: object) -> None:
    del frame
    interrupts.received = signal.Signals(number)
    restore()

  def restore() -> None:
    for number, handler in before.items():
      signal.signal(number, handler)

  for number in (signal.SIGINT, signal.SIGTERM):
    before[number] = signal.signal(number, note)
  try:
    yield interrupts
  finally:
    restore()
