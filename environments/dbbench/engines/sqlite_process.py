"""Runs statements on SQLite in processes that the kernel ends.

Parsing, planning and sorting cannot be interrupted, so statements that may take
long run in a fork of a small process that has imported all they need: with a
copy of the database, within limits of time and memory. What ends a fork is the
statement's fault, never the machine's; a process that cannot be forked is.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
import weakref
from collections.abc import MutableMapping, Sequence
from typing import Any, NoReturn

from agentrl_jax.errors import EnvironmentFault
from environments.dbbench.engines import base
from environments.dbbench.engines.sqlite_connection import Connection
from environments.dbbench.mysql.syntax import TooComplex
from environments.dbbench.problem import Table

MAX_FORKS = 16  # at the same time
MEMORY_BYTES = 256 << 20  # that a fork may take, half of it in SQLite
START_S = 120.0  # for a fork to begin; the imports take seconds when busy
GRACE_S = 10.0  # for the kernel to enforce the limit itself
OUT_OF_MEMORY = (
  "1041 (HY000): Out of memory; check if mysqld or some other process uses all "
  "available memory"
)
LOST = "2013 (HY000): Lost connection to MySQL server during query"
FAILURES = frozenset({base.TIMED_OUT, OUT_OF_MEMORY, LOST})  # of a fork
_CHUNK = 1 << 16
_PROGRAM = f"from {__name__} import main; main()"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A statement to run, or tables to hash, in a database of so many pages."""

  limit_s: float
  max_pages: int
  max_result_chars: int
  sql: str = ""
  tables: Sequence[tuple[str, Sequence[str]]] = ()  # names and columns


class SQLiteProcess:
  """The process that is forked, started by the first job."""

  def __init__(self) -> None:
    # By event loop, as a run has several, one after the other.
    self._free: MutableMapping[Any, asyncio.Semaphore] = (
      weakref.WeakKeyDictionary()
    )
    self._control: socket.socket | None = None
    self._finalizer: Any = None

  async def run(self, job: Job, database: bytes) -> tuple[str, bytes]:
    """Returns the reply and the database after the job.

    Cancellation ends the job. Raises `EnvironmentFault` if the machine cannot
    fork a process.
    """
    loop = asyncio.get_running_loop()
    async with self._free.setdefault(loop, asyncio.Semaphore(MAX_FORKS)):
      ours, its = socket.socketpair()
      with ours, its:
        ours.setblocking(False)
        control = self._fork(its)
        its.close()
        try:
          return await _converse(ours, job, database)
        except EnvironmentFault:
          if self._control is control:
            self.close()  # the next job starts another
          raise

  def close(self) -> None:
    """Ends the process."""
    if self._finalizer is not None:
      self._finalizer()
    self._control = self._finalizer = None

  def _fork(self, its: socket.socket) -> socket.socket:
    for _ in range(2):  # the process may have died since the last job
      try:
        control = self._control or self._start()
        socket.send_fds(control, [b"."], [its.fileno()])
        return control
      except OSError as error:
        failure = error
        self.close()
    raise EnvironmentFault(
      f"the process that runs long SQL statements does not start: {failure}; "
      "look at the host's memory and its limits of processes and open files"
    )

  def _start(self) -> socket.socket:
    control, its = socket.socketpair()
    path = [os.path.abspath(folder) for folder in sys.path]
    with its, contextlib.ExitStack() as failed:
      failed.callback(control.close)
      process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(its.fileno())],
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,  # Ctrl-C must reach the owner only
      )
      failed.pop_all()
    control.settimeout(START_S)
    self._control = control
    self._finalizer = weakref.finalize(self, _end, process, control)
    return control


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
  control.close()
  process.kill()
  process.wait()


async def _converse(
  end: socket.socket, job: Job, database: bytes
) -> tuple[str, bytes]:
  """Sends a job to a fork and waits for its answer, or for its end."""
  loop = asyncio.get_running_loop()
  pid = 0
  try:
    pid = await _begin(end)
    begun = loop.time()
    with contextlib.suppress(TimeoutError, OSError):
      async with asyncio.timeout(job.limit_s + GRACE_S):
        head = json.dumps(dataclasses.asdict(job)).encode()
        await loop.sock_sendall(end, head + b"\n" + database)
        end.shutdown(socket.SHUT_WR)
        answer = await _received(end)
        pid = 0  # it has ended, or is about to
        reply, newline, after = answer.partition(b"\n")
        if newline:
          return json.loads(reply), after or database
    is_late = loop.time() - begun >= job.limit_s
    return base.TIMED_OUT if is_late else LOST, database
  finally:
    if pid:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def _begin(end: socket.socket) -> int:
  """Returns the id of the fork, which is the first that it sends."""
  try:
    async with asyncio.timeout(START_S):
      line = await asyncio.get_running_loop().sock_recv(end, _CHUNK)
  except (TimeoutError, OSError) as error:
    raise EnvironmentFault(
      "the process that runs long SQL statements has not forked for "
      f"{START_S:g} s; look at the host's load"
    ) from error
  if not line:
    raise EnvironmentFault(
      "the process that runs long SQL statements has ended; look at the host's "
      "memory and its limit of processes"
    )
  return int(line)


async def _received(end: socket.socket) -> bytes:
  parts = []
  while part := await asyncio.get_running_loop().sock_recv(end, _CHUNK):
    parts.append(part)
  return b"".join(parts)


def serve(control: socket.socket) -> None:
  """Forks for each socket that it gets, until the owner has closed."""
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets the forks
  size = _address_space()
  while True:
    _, fds, _, _ = socket.recv_fds(control, 1, 1)
    if not fds:
      return
    with socket.socket(fileno=fds[0]) as end:
      if not os.fork():
        control.close()
        _work_and_exit(end, size)


def _work_and_exit(end: socket.socket, size: int) -> NoReturn:
  try:
    _work(end, size)
  except OSError:
    pass  # the owner has gone
  except BaseException:  # noqa: BLE001 - a fork must not return to the loop
    traceback.print_exc()
  os._exit(0)


def _work(end: socket.socket, size: int) -> None:
  """Does one job; the kernel ends this process at the limits."""
  end.sendall(str(os.getpid()).encode())
  request = b"".join(iter(lambda: end.recv(_CHUNK), b""))
  head, _, database = request.partition(b"\n")
  job = Job(**json.loads(head))
  # The request is in memory in parts, as a whole and without its head.
  _limit(job.limit_s, size + 3 * len(request) + MEMORY_BYTES)
  reply, after = _answer(job, database)
  end.sendall(json.dumps(reply).encode() + b"\n" + after)


def _address_space() -> int:
  with open("/proc/self/statm") as status:
    return int(status.read().split()[0]) * resource.getpagesize()


def _limit(limit_s: float, num_bytes: int) -> None:
  os.nice(5)  # the loops of environments go first
  signal.signal(signal.SIGALRM, signal.SIG_DFL)
  signal.setitimer(signal.ITIMER_REAL, limit_s)
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  hard = resource.getrlimit(resource.RLIMIT_AS)[1]
  if hard == resource.RLIM_INFINITY or num_bytes < hard:
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def _answer(job: Job, database: bytes) -> tuple[str, bytes]:
  """Returns the reply, and the database if it is another one."""
  connection = Connection(max_result_chars=job.max_result_chars)
  connection.load(database, job.max_pages)
  connection.limit_memory(MEMORY_BYTES // 2)
  try:
    if job.tables:
      tables = [Table(name, tuple(c), ()) for name, c in job.tables]
      return connection.hash_of(tables), b""
    reply = connection.answer(job.sql)
    after = connection.dump()
  except (MemoryError, TooComplex):
    return OUT_OF_MEMORY, b""
  return reply, b"" if after == database else after


def main() -> None:
  """Runs in the process, whose only argument is the number of its socket."""
  serve(socket.socket(fileno=int(sys.argv[1])))
