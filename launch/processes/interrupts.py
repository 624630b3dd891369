"""Defers SIGINT and SIGTERM until the training loop polls for them.

A preempted machine gets a notice first. A stage polls between two updates,
writes its checkpoint, and ends with `Interrupted`. Whichever learner process
got the signal, process 0 decides after which update all of them stop, so that
they write one checkpoint together. Where there is nothing to write, a signal
acts at once. The process that got it says so at once, since an update is long.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from launch.processes.group import Processes


class Interrupted(SystemExit):  # noqa: N818 - it is how the process ends
  """Ends a run that was asked to stop, after its state was saved.

  `kept` describes what was saved; "" where there was nothing to save.
  """

  def __init__(self, number: int, kept: str = "") -> None:
    super().__init__(128 + number)
    self.signal, self.kept = signal.Signals(number), kept


class Interrupts:
  """Records whether the run was asked to stop."""

  def __init__(
    self, processes: Processes, grace_s: float, newest: Callable[[], str]
  ) -> None:
    self.received: signal.Signals | None = None
    self._processes, self._grace_s = processes, grace_s
    self._newest, self._at_once = newest, False
    self._timer = threading.Timer(grace_s, self._give_up)
    self._timer.daemon = True

  def check(self, save: Callable[[], str]) -> None:
    """Calls `save` and raises `Interrupted` if a signal has come.

    `save` returns a description of what it has saved, for people. All processes
    call this at the same points, and do the same.
    """
    number = self._processes.share_json(
      int(self.received or 0), what="whether to stop"
    )
    if number:
      raise Interrupted(number, save())

  @contextmanager
  def at_once(self) -> Iterator[None]:
    """Within, a signal raises `Interrupted` in the main thread at once."""
    self._at_once = True
    try:
      if self.received is not None:
        raise Interrupted(self.received)
      yield
    finally:
      self._at_once = False

  def note(self, number: signal.Signals) -> None:
    """Records a signal, and starts the grace period."""
    if self.received is not None:
      return
    self.received = number
    self._timer.start()
    self._processes.forward(number)
    if self._at_once and self._processes.leads:
      raise Interrupted(number)
    again = "; ctrl-C again ends it now" if number == signal.SIGINT else ""
    # Not sys.stderr: the main thread may be in the middle of writing to it.
    os.write(
      2, f"\n{number.name}: stopping after this update{again}\n".encode()
    )

  def close(self) -> None:
    """Ends the grace period: everything was saved in time."""
    self._timer.cancel()

  def _give_up(self) -> None:
    name = self.received.name if self.received else "the signal"
    _say(
      f"{name} came {self._grace_s:g} s ago, and the checkpoint is not "
      f"complete: this process ends now; kept: {self._newest()}. If the "
      "machine is given longer, raise --config.checkpoint.grace_s"
    )
    os._exit(1)


def _say(sentence: str) -> None:
  # Not sys.stderr: the main thread may be in the middle of writing to it.
  os.write(2, f"\n{sentence}\n".encode())


@contextmanager
def listen(
  processes: Processes, grace_s: float, newest: Callable[[], str]
) -> Iterator[Interrupts]:
  """Catches SIGINT and SIGTERM; a second SIGINT raises `KeyboardInterrupt`.

  Also in a process that ignored SIGINT, as a shell's background job does.
  `newest` describes the newest checkpoint, for people.
  """
  interrupts = Interrupts(processes, grace_s, newest)
  before: dict[int, Any] = {}

  def note(number: int, frame: object) -> None:
    del frame
    signal.signal(signal.SIGINT, end)
    interrupts.note(signal.Signals(number))

  def end(number: int, frame: object) -> None:
    _say(f"ended at once; kept: {newest()}")
    signal.default_int_handler(number, None)

  for caught in (signal.SIGINT, signal.SIGTERM):
    before[caught] = signal.signal(caught, note)
  try:
    yield interrupts
  finally:
    interrupts.close()
    for number, handler in before.items():
      signal.signal(number, handler)
