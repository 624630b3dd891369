"""Runs a module as a program in a process of its own."""

import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]


def run(
  module: str, *arguments: str, deadline_s: float, **options: Any
) -> subprocess.CompletedProcess:
  """Runs `python -m module`; returns its exit status and its output."""
  return subprocess.run(
    [sys.executable, "-m", module, *arguments],
    **{"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}} | options,
    capture_output=True,
    text=True,
    timeout=deadline_s,
    check=False,
  )
