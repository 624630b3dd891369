"""Runs a server's command within bounds; it ends with the run.

  python -I bounded_process.py MAX_LINE COMMAND ARGUMENT...

Stands between the run and a process that is not ours. Invariants:

- the command, and all that it starts, ends once standard input does, which the
  run's end closes, however it ends;
- with MAX_LINE above 0, lines of JSON objects of at most MAX_LINE bytes are
  passed on to standard output, and 64 times as many bytes in all; more ends the
  command. Other lines, and with MAX_LINE 0 all, are kept as errors are;
- of standard error, the last bytes are kept and written at the end.

Imports nothing of this framework, so that it starts at once.
"""

import collections
import contextlib
import functools
import os
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
_LAST_S = 0.5  # for the status of a command whose output has ended


class _Command:
  """The process, and the last that it said."""

  def __init__(self, argv: list[str], max_line: int):
    self.max_line = max_line
    self._said: collections.deque[bytes] = collections.deque(maxlen=200)
    self.process = subprocess.Popen(
      argv,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE if max_line else subprocess.STDOUT,
      start_new_session=True,
    )

  def say(self, line: bytes) -> None:
    """Keeps a line for the end."""
    self._said.append(line[:_PIECE])

  def said(self) -> bytes:
    """Returns the last bytes that were kept."""
    return b"".join(self._said)[-KEPT_BYTES:]

  def keep(self, stream: IO[bytes]) -> None:
    """Keeps a stream's lines until it ends."""
    while line := stream.readline(_PIECE):
      self.say(line)

  def pass_input_on(self) -> None:
    """Copies standard input until it ends, then ends the command."""
    assert self.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
      while data := os.read(0, 1 << 16):
        self.process.stdin.write(data)
        self.process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.close()
    self.leave()

  def leave(self) -> None:
    """Lets the command end by itself, asks it to, then ends it."""
    for limit_s, how in ((0.7, signal.SIGTERM), (0.5, signal.SIGKILL)):
      with contextlib.suppress(subprocess.TimeoutExpired):
        self.process.wait(limit_s)
        break
      self.end(how)

  def watch(self, parent: int) -> None:
    """Ends the command after the run, whose input it may not read."""
    while os.getppid() == parent:
      time.sleep(1.0)
    self.leave()

  def pass_output_on(self, stream: IO[bytes]) -> None:
    """Copies lines to standard output, within the bounds."""
    left = MAX_LINES * self.max_line
    while line := stream.readline(self.max_line + 1):
      left -= len(line)
      if len(line) > self.max_line or left < 0:
        self.say(b"\nit wrote more than %d bytes\n" % self.max_line)
        return
      if not line.lstrip().startswith(b"{"):
        self.say(line)
        continue
      sys.stdout.buffer.write(line)
      sys.stdout.buffer.flush()

  def end(self, how: signal.Signals) -> None:
    """Signals the command and all that it started."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, how)


def main(arguments: list[str]) -> int:
  """Runs the command; returns its status."""
  parent = os.getppid()
  command = _Command(arguments[1:], int(arguments[0]))
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
  assert command.process.stdout is not None
  works: list[Callable[[], None]] = [
    command.pass_input_on,
    functools.partial(command.watch, parent),
  ]
  if command.process.stderr is not None:
    works.append(functools.partial(command.keep, command.process.stderr))
  for work in works:
    threading.Thread(target=work, daemon=True).start()
  try:
    copy = command.pass_output_on if command.max_line else command.keep
    with contextlib.suppress(BrokenPipeError):
      copy(command.process.stdout)
  finally:
    with contextlib.suppress(subprocess.TimeoutExpired):
      command.process.wait(_LAST_S)
    command.end(signal.SIGKILL)
    with contextlib.suppress(OSError):
      os.write(2, command.said())
  return command.process.wait()


if __name__ == "__main__":
  os._exit(main(sys.argv[1:]))  # a thread may wait for input for ever
