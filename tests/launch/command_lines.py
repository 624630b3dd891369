"""Runs commands of `launch` with many command lines, each in its own process.

  python -m tests.launch.command_lines '[["launch.train", "--config=..."], ...]'

Prints, as JSON, the exit status and the output of each. What takes seconds to
import is imported once, and every command is forked from there, before jax has
started anything; it runs as `python -m` runs it.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[2]
DEADLINE_S = 250


def outcomes(lines: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
  """The exit status of each command line, and all that it said."""
  done = subprocess.run(
    [sys.executable, "-m", "tests.launch.command_lines", json.dumps(lines)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=DEADLINE_S,
    check=True,
  )
  return [(status, said) for status, said in json.loads(done.stdout)]


def _run(line: Sequence[str]) -> tuple[int, str]:
  with tempfile.TemporaryFile("w+") as file:
    child = os.fork()
    if not child:
      os.dup2(file.fileno(), 1)
      os.dup2(file.fileno(), 2)
      sys.argv = list(line)
      # Ends the process itself, as the interpreter would.
      runpy.run_module(line[0], run_name="__main__", alter_sys=True)
      sys.exit(0)
    _, status = os.waitpid(child, 0)
    file.seek(0)
    return os.waitstatus_to_exitcode(status), file.read()


def main() -> None:
  import launch.run.reinforcement  # noqa: F401, PLC0415 - of several commands
  import launch.serving.service  # noqa: F401, PLC0415

  warnings.simplefilter("ignore")  # of forking with threads: none is needed
  found = [_run(line) for line in json.loads(sys.argv[1])]
  sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
  main()
