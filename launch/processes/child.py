"""Calls functions in a child process, whose death is an error and no end.

For code that may end its process: a compiler that aborts, that hangs, or that
the kernel kills for its memory.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any, TypeVar

from agentrl_jax.errors import AgentRLError

T = TypeVar("T")

_SERVE = "import sys; from launch.processes import child; child.serve({})"
# A line of glog that ends a process: F1126 18:07:18.289613 1068 file.cc:316] …
_FATAL = re.compile(r"F\d{4} [\d:.]+ +\d+ (\S+)\] (.*)")
_FRAME = re.compile(r"\s*(@ +0x|\*\*\*|https?://|$)")
_LEAVING_S = 10.0
_TELLS = 300  # characters of a line that an error repeats


class ChildDied(AgentRLError):
  """The child ended in a call; says by what, and what it said last."""


class Child:
  """A child process that calls one function at a time.

  - It is a new interpreter: no thread, lock or library of this process is in
    it. It is started by the first call, and again by the next after a death.
  - Functions, arguments and results are pickled; what a function raises is
    raised here.
  - What a call writes to its stdout and stderr is written to this process's
    stderr once it returns. Of a call that died only the last line is told.
  - It ends with this process, and a call that is interrupted ends it.
  """

  def __init__(self) -> None:
    self._process: subprocess.Popen[bytes] | None = None
    self._connection: Connection | None = None
    self._said: IO[bytes]  # by the process

  def call(
    self, function: Callable[..., T], *arguments: Any, deadline_s: float
  ) -> T:
    """Returns what the function returns there.

    Raises `ChildDied` if the process ends, or if `deadline_s` pass.
    """
    if self._process is None:
      self._start()
    assert self._process is not None
    assert self._connection is not None
    self._said.seek(0)
    self._said.truncate()
    try:
      self._connection.send((function, arguments))
      if not wait([self._connection], timeout=deadline_s):
        how = f"did not end in {deadline_s:g} s, and was killed"
        raise ChildDied(how + self._last_line())
      is_error, value = self._connection.recv()
    except (EOFError, OSError) as error:
      why = _ended_by(_status(self._process)) + self._last_line()
      self.close()
      raise ChildDied(why) from error
    except BaseException:
      self.close()
      raise
    sys.stderr.write(self._read())
    if is_error:
      raise value
    result: T = value
    return result

  def close(self) -> None:
    """Ends the process; the next call starts another."""
    if self._process is not None:
      self._end()
    self._process = self._connection = None

  def _start(self) -> None:
    self._connection, theirs = Pipe()
    self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `_end` closes it
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    process = subprocess.Popen(
      [sys.executable, "-c", _SERVE.format(theirs.fileno())],
      env=os.environ | {"PYTHONPATH": path},
      pass_fds=[theirs.fileno()],
      stdin=subprocess.DEVNULL,
      stdout=self._said,
      stderr=self._said,
    )
    theirs.close()
    self._process = process
    self._end = weakref.finalize(
      self, _end, process, self._connection, self._said
    )

  def _read(self) -> str:
    self._said.seek(0)
    return self._said.read().decode(errors="replace")

  def _last_line(self) -> str:
    """Returns the line in which a library says why it ends, after a colon."""
    text = self._read()
    if fatal := _FATAL.findall(text):
      place, message = fatal[-1]
      return f": {message.strip()} ({place})"[:_TELLS]
    lines = [line for line in text.splitlines() if not _FRAME.match(line)]
    return f": {lines[-1].strip()}"[:_TELLS] if lines else ""


def _end(
  process: subprocess.Popen[bytes], connection: Connection, said: IO[bytes]
) -> None:
  process.kill()
  process.wait()
  connection.close()
  said.close()


def _status(process: subprocess.Popen[bytes]) -> int:
  """Returns the exit status of a process that has left its connection."""
  try:
    return process.wait(_LEAVING_S)
  except subprocess.TimeoutExpired:
    process.terminate()
    return process.wait(_LEAVING_S)


def _ended_by(status: int) -> str:
  if status < 0:
    how = f"was ended by {signal.Signals(-status).name}"
  else:
    how = f"ended with status {status}"
  if status == -signal.SIGKILL:
    how += ", as the kernel does where memory is short"
  return how


def serve(descriptor: int) -> None:
  """Answers calls until the other side is gone; runs in the child."""
  connection = Connection(descriptor)
  while True:
    try:
      function, arguments = connection.recv()
    except EOFError:
      return
    try:
      answer = (False, function(*arguments))
    except Exception as error:  # noqa: BLE001 - raised where it was called
      error.add_note(f"in a child process:\n{traceback.format_exc()}")
      answer = (True, error)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(answer)
