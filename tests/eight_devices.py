"""Runs a test's program in a process that has eight devices."""

import json
import os
from typing import Any

from tests import programs

DEADLINE_S = 280
DEVICES = "--xla_force_host_platform_device_count=8"


def run(module: str, *arguments: str, deadline_s: float = DEADLINE_S) -> Any:
  """Runs `python -m module`; returns its last line, which is JSON."""
  # Sums are compared to the last digits, and one device that adds number by
  # number, without vectors, is further from eight than these digits.
  flags = os.environ.get("XLA_FLAGS", "").replace("level=0", "level=1")
  done = programs.run(
    module,
    *arguments,
    deadline_s=deadline_s,
    env=os.environ
    | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} {DEVICES}"},
  )
  if done.returncode:
    raise AssertionError(f"{module} failed: {done.stderr[-3000:]}")
  return json.loads(done.stdout.splitlines()[-1])
