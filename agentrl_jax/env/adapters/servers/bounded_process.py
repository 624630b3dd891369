"""Runs a server's command within bounds; it ends with the run.

  python -I bounded_process.py MAX_LINE LAST COMMAND ARGUMENT...

Stands between the run and a process that is not ours. Invariants:

- the command, and all that it starts, ends once standard input does, which the
  run's end closes, however it ends; then the command LAST runs, if not "";
- with MAX_LINE above 0, lines of JSON objects of at most MAX_LINE bytes are
  passed on to standard output, and 64 times as many bytes in all; more ends the
  command. Other lines, and with MAX_LINE 0 all, are kept as errors are;
- of standard error, the last bytes are kept and written at the end.

Imports nothing of this framework, so that it starts at once.
"""

import collections
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

MAX_LINES = 64  # of MAX_LINE bytes, in all
KEPT_BYTES = 4000  # of what the command says besides
_PIECE = 1000  # bytes of one line that are kept
_STATUS_S = 0.5  # for the status of a command whose output has ended
_LAST_S = 8.0


class _Command:
  """The process, and the last pieces of what it said."""

  def __init__(self, argv: list[str], max_line: int):
    self.said: collections.deque[bytes] = collections.deque(maxlen=200)
    self._max_line = max_line
    self.process = subprocess.Popen(
      argv,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE if max_line else subprocess.STDOUT,
      start_new_session=True,
    )

  def keep(self, stream: IO[bytes] | None) -> None:
    """Keeps what a stream says until it ends."""
    while stream is not None and (piece := stream.readline(_PIECE)):
      self.said.append(piece)

  def pass_input_on(self) -> None:
    """Copies standard input until it ends, then ends the command."""
    assert self.process.stdin is not None
    with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
      while data := os.read(0, 1 << 16):
        stdin.write(data)
        stdin.flush()
    self.leave()

  def watch(self, parent: int) -> None:
    """Ends the command after the run, whose input it may not read."""
    while os.getppid() == parent:
      time.sleep(1.0)
    self.leave()

  def leave(self) -> None:
    """Lets the command end by itself, asks it to, then ends it."""
    for limit_s, how in ((0.7, signal.SIGTERM), (0.5, signal.SIGKILL)):
      with contextlib.suppress(subprocess.TimeoutExpired):
        self.process.wait(limit_s)
        break
      self.end(how)

  def pass_output_on(self, stream: IO[bytes]) -> None:
    """Copies lines to standard output, within the bounds."""
    left = MAX_LINES * self._max_line
    while line := stream.readline(self._max_line + 1):
      left -= len(line)
      if len(line) > self._max_line or left < 0:
        self.said.append(b"\nit wrote more than %d bytes\n" % self._max_line)
        return
      if line.lstrip().startswith(b"{"):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
      else:
        self.said.append(line[:_PIECE])

  def end(self, how: signal.Signals) -> None:
    """Signals the command and all that it started."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, how)


def _started(work: Callable[[], None]) -> threading.Thread:
  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  return thread


def main(max_line: int, last: str, argv: list[str]) -> int:
  """Runs the command; returns its status."""
  parent = os.getppid()
  command = _Command(argv, max_line)
  process = command.process
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
  assert process.stdout is not None
  keeping = _started(lambda: command.keep(process.stderr))
  _started(command.pass_input_on)
  _started(lambda: command.watch(parent))
  try:
    with contextlib.suppress(BrokenPipeError):
      (command.pass_output_on if max_line else command.keep)(process.stdout)
  finally:
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_STATUS_S)
    command.end(signal.SIGKILL)
    keeping.join(_STATUS_S)  # who left its group may still hold the stream
    with contextlib.suppress(OSError):
      os.write(2, b"".join(command.said)[-KEPT_BYTES:])
    if last:
      with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(shlex.split(last), capture_output=True, timeout=_LAST_S)
  return process.wait()


if __name__ == "__main__":
  # A thread may wait for input for ever.
  os._exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
