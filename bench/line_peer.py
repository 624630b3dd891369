"""A peer in its own process and virtual environment, one request per line.

The peer's script gets a folder and a number of threads. It reads its inputs
from the folder, leaves its results there for comparison, and prints its
version. It then answers every line with the seconds that the work took, by wall
clock and by processor time.
"""

import os
import pathlib
import subprocess
from collections.abc import Mapping

from bench.timing import Times

Pythons = Mapping[str, pathlib.Path]  # interpreters of peers' environments

SCRIPTS = pathlib.Path(__file__).parent / "peers"
DEADLINE_S = 120


def peak_gib(process: int | str = "self") -> float:
  """Returns the most memory that a process has held, in GiB."""
  lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
  peak = next(line for line in lines if line.startswith("VmHWM:"))
  return int(peak.split()[1]) / 2**20


class PeerFailed(RuntimeError):
  """The peer's process ended where an answer was expected."""


class LinePeer:
  """A running peer; `close` ends its process."""

  def __init__(self, python: pathlib.Path, script: str, folder: pathlib.Path):
    self._name = script
    self._process = subprocess.Popen(
      [
        str(python),
        str(SCRIPTS / script),
        str(folder),
        str(len(os.sched_getaffinity(0))),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      # Spinning threads would slow whoever runs next.
      env=os.environ
      | {
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "JAX_PLATFORMS": "cpu",
      },
    )
    self.version = self._answer()

  def ask(self, what: str) -> Times:
    """Requests the named work once; returns its seconds."""
    self._process.stdin.write(what + "\n")
    self._process.stdin.flush()
    wall, cpu = map(float, self._answer().split())
    return Times(wall, cpu)

  def peak_gib(self) -> float:
    """Returns the most memory that the running peer has held, in GiB."""
    return peak_gib(self._process.pid)

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait(DEADLINE_S)

  def _answer(self) -> str:
    line = self._process.stdout.readline().strip()
    if not line:
      raise PeerFailed(
        f"bench/peers/{self._name} ended with {self._process.wait(DEADLINE_S)} "
        "before it answered; what it said is above"
      )
    return line
