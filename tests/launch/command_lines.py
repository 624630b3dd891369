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
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

ROOT = pathlib.Path(__file__).parents[2]
DEADLINE_S = 250


def outcomes(
  lines: Sequence[Sequence[str]], folder: pathlib.Path = ROOT
) -> list[tuple[int, str]]:
  """The exit status of each command line in a folder, and all that it said."""
  done = subprocess.run(
    [sys.executable, "-m", "tests.launch.command_lines", json.dumps(lines)],
    cwd=folder,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
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
      _end_with(line[0])
    _, status = os.waitpid(child, 0)
    file.seek(0)
    return os.waitstatus_to_exitcode(status), file.read()


def _end_with(module: str) -> NoReturn:
  """Runs a module and ends as the interpreter would, but for its clean-up."""
  code: object = 0
  try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  except SystemExit as end:
    code = end.code
  except BaseException:  # noqa: BLE001 - printed, as the interpreter does
    traceback.print_exc()
    code = 1
  if isinstance(code, str):
    sys.stderr.write(f"{code}\n")
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(int(code or 0))


def main() -> None:
  import launch.run.reinforcement  # noqa: F401, PLC0415 - of several commands
  import launch.serving.service  # noqa: F401, PLC0415

  warnings.simplefilter("ignore")  # of forking with threads: none is needed
  found = [_run(line) for line in json.loads(sys.argv[1])]
  sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
  main()
