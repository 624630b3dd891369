"""Runs a test's program in a process that has eight devices."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
DEADLINE_S = 280
DEVICES = "--xla_force_host_platform_device_count=8"


def run(module: str, *arguments: str, deadline_s: float = DEADLINE_S) -> Any:
  """What `python -m module` prints last, a line of JSON."""
  # Sums are compared to the last digits, and one device that adds number by
  # number, without vectors, is further from eight than these digits.
  flags = os.environ.get("XLA_FLAGS", "").replace("level=0", "level=1")
  done = subprocess.run(
    [sys.executable, "-m", module, *arguments],
    cwd=ROOT,
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": f"{flags} {DEVICES}",
    },
    capture_output=True,
    text=True,
    timeout=deadline_s,
    check=False,
  )
  if done.returncode:
    raise AssertionError(f"{module} failed: {done.stderr[-3000:]}")
  return json.loads(done.stdout.splitlines()[-1])
