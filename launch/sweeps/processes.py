"""The processes of a sweep's cells: started on some cores, measured, ended."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from launch.reports.facts import ROOT

LARGE_PAGES = "glibc.malloc.hugetlb=1"  # madvise, where the kernel has that
_MOST_END_S = 120.0  # for a cell that is told to save and end


@dataclasses.dataclass
class CellProcess:
  """A running cell; its output goes to a file."""

  process: "subprocess.Popen[bytes]"
  cores: tuple[int, ...]
  begun_at: float  # by time.monotonic

  @classmethod
  def start(
    cls, arguments: Sequence[str], log: pathlib.Path, cores: Sequence[int]
  ) -> "CellProcess":
    """Starts `launch.train` in a process group of its own, on these cores."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
      process = subprocess.Popen(
        [sys.executable, "-m", "launch.train", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the sweep to pass on
        env=_environment(),
      )
    # Before it counts them, for the sizes of its pools of threads.
    os.sched_setaffinity(process.pid, cores)
    return cls(process, tuple(cores), time.monotonic())

  @property
  def status(self) -> int | None:
    """The exit status, None while it runs."""
    return self.process.poll()

  def memory_gib(self) -> float:
    """Returns the resident memory of the process and those below it."""
    return sum(_resident(pid) for pid in _family(self.process.pid)) / 2**30

  def ask_to_end(self) -> None:
    """Lets it save and end."""
    if self.status is None:
      self.process.send_signal(signal.SIGTERM)

  def end(self) -> None:
    """Waits until it has ended, and kills it if that takes too long."""
    try:
      self.process.wait(_MOST_END_S)
    except subprocess.TimeoutExpired:
      os.killpg(self.process.pid, signal.SIGKILL)
      self.process.wait()


def _environment() -> dict[str, str]:
  """Returns the environment of a cell.

  `launch` and `configs` are found in it, and its memory is of large pages: XLA
  on CPUs allocates and frees large buffers with every program. With small pages
  the kernel took 26 % of a five-task cell's processor time, with large ones
  12 %. A glibc before 2.35 ignores the word.
  """
  before = os.environ.get("PYTHONPATH", "")
  path = os.pathsep.join(filter(None, (str(ROOT), before)))
  return {"GLIBC_TUNABLES": LARGE_PAGES, **os.environ, "PYTHONPATH": path}


def _family(pid: int) -> list[int]:
  """Lists a process and all below it."""
  found = [pid]
  for parent in found:
    path = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
    try:
      found += [int(word) for word in path.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
      continue
  return found


def _resident(pid: int) -> int:
  """Returns a process's resident bytes, 0 if it has ended."""
  try:
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
  except (FileNotFoundError, ProcessLookupError):
    return 0
  return int(pages) * os.sysconf("SC_PAGE_SIZE")
