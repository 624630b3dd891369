"""Runs a test's program in several processes, joined by `jax.distributed`."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.service.processes import free_port

ROOT = pathlib.Path(__file__).parents[1]
DEADLINE_S = 280


def run(
  module: str,
  *arguments: str,
  num_processes: int = 2,
  num_devices: int = 4,
  deadline_s: float = DEADLINE_S,
) -> Any:
  """Runs `python -m module`; returns the last line of process 0, as JSON.

  The program joins the others by `launch.processes.group.joined`.
  """
  address = f"127.0.0.1:{free_port()}"
  with tempfile.TemporaryDirectory() as folder:
    outputs = [pathlib.Path(folder) / str(n) for n in range(num_processes)]
    running = []
    for index, output in enumerate(outputs):
      with output.open("w") as file:
        running.append(
          subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ
            | _environment(address, num_processes, index)
            | {"XLA_FLAGS": _flags(num_devices)},
            stdout=file,
            stderr=subprocess.STDOUT,
          )
        )
    until = time.monotonic() + deadline_s
    try:
      for process in running:
        process.wait(max(until - time.monotonic(), 1))
    finally:
      for process in running:
        process.kill()
        process.wait()
    said = [output.read_text() for output in outputs]
  if any(process.returncode for process in running):
    ends = "\n---\n".join(text[-3000:] for text in said)
    raise AssertionError(
      f"{module} ended with {[p.returncode for p in running]}: {ends}"
    )
  return json.loads(said[0].splitlines()[-1])


def _environment(address: str, count: int, index: int) -> dict[str, str]:
  return {
    "JAX_PLATFORMS": "cpu",
    "AGENTRL_COORDINATOR": address,
    "AGENTRL_NUM_PROCESSES": str(count),
    "AGENTRL_PROCESS_ID": str(index),
  }


def _flags(num_devices: int) -> str:
  flags = os.environ.get("XLA_FLAGS", "")
  return f"{flags} --xla_force_host_platform_device_count={num_devices}"
