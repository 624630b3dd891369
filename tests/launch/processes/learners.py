"""Starts real learner processes of a tiny run, for tests that kill them.

Each is a process of its own that joins the others through `jax.distributed`. A
server forks them that has imported everything, so a start costs no imports.
"""

import json
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time

import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from agentrl_jax.errors import AgentRLError
from launch.reports.metrics_file import read_metrics
from tests.clocks import wait_until
from tests.conftest import QUICK
from tests.service.processes import free_port

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["launch.train", "tests.launch.tiny"])
DEADLINE_S = 600.0  # a busy machine takes its time


class Learners:
  """The processes of one start of a run."""

  def __init__(
    self, workdir: pathlib.Path, changes=None, *, num_processes=2, num_devices=2
  ):
    workdir.mkdir(parents=True, exist_ok=True)
    self.root = workdir / "tiny"
    logs = tempfile.mkdtemp(prefix="start_", dir=workdir)
    self.logs = [
      pathlib.Path(logs) / f"process_{n}.log" for n in range(num_processes)
    ]
    port = free_port()
    self.processes = []
    for index, log in enumerate(self.logs):
      environment = {
        "JAX_PLATFORMS": "cpu",
        # They compute for moments, whatever suite they are part of.
        "XLA_FLAGS": " ".join(
          [*QUICK, f"--xla_force_host_platform_device_count={num_devices}"]
        ),
        "AGENTRL_COORDINATOR": f"127.0.0.1:{port}",
        "AGENTRL_NUM_PROCESSES": str(num_processes),
        "AGENTRL_PROCESS_ID": str(index),
      }
      process = _FORK.Process(
        target=_learn, args=(str(workdir), changes or {}, environment, str(log))
      )
      process.start()
      self.processes.append(process)

  def wait_for_update(self, number: int, then_s: float = 0.0) -> None:
    """Returns when the ledger names so many updates, and a moment later."""

    def has_come():
      return len(ledger_of(self.root)) >= number

    wait_until(
      lambda: has_come() or not self.are_alive(),
      lambda: f"update {number}: {self.said()}",
      DEADLINE_S,
    )
    if not has_come():
      raise AssertionError(f"no update {number} came: {self.said()}")
    time.sleep(then_s)

  def are_alive(self) -> bool:
    return all(p.is_alive() for p in self.processes)

  def send(self, number: signal.Signals, which) -> None:
    for index in which:
      if self.processes[index].is_alive():
        os.kill(self.processes[index].pid, number)

  def end(self) -> list[int]:
    """Waits for all: their exit statuses."""
    for process in self.processes:
      process.join(DEADLINE_S)
      if process.is_alive():
        process.kill()
        raise AssertionError(f"{process.name} did not end: {self.said()}")
    return [process.exitcode for process in self.processes]

  def said(self) -> str:
    return "\n".join(
      f"--- {log.name}\n{log.read_text()[-4000:]}"
      for log in self.logs
      if log.exists()
    )


def metrics_of(root: pathlib.Path) -> list[dict[str, float]]:
  """The metrics of each update of a run's reinforcement learning."""
  rows = read_metrics(root / "metrics.jsonl")
  return [row.values for row in rows if row.stage == "rl"]


def ledger_of(root: pathlib.Path) -> list[dict]:
  """The updates that the run's own account names, whole lines only."""
  path = root / "trained_groups.jsonl"
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  return [json.loads(line) for line in lines if line.endswith("\n")]


def position_of(root: pathlib.Path, step: int) -> dict:
  """The position that the checkpoint of a step holds beside the state."""
  path = root / "rl" / str(step) / "about" / "metadata"
  return json.loads(path.read_text())["position"]


def state_of(root: pathlib.Path, step: int) -> dict[str, np.ndarray]:
  """Every array of a checkpoint, whole, on the host."""
  path = epath.Path(root.resolve() / "rl" / str(step) / "state")
  with ocp.PyTreeCheckpointer() as checkpointer:
    leaves = checkpointer.metadata(path).item_metadata.tree
    as_numpy = {
      name: ocp.RestoreArgs(restore_type=np.ndarray) for name in leaves
    }
    return checkpointer.restore(path, restore_args=as_numpy)


def _learn(workdir, changes, environment, log) -> None:
  """One learner process; what it says goes to a file."""
  from launch.run import training
  from tests.launch import tiny

  file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  for stream in (1, 2):
    os.dup2(file, stream)
  os.environ.update(environment)
  config = tiny.get_config()
  config.workdir = workdir
  config.update_from_flattened_dict(changes)
  try:
    training.train(config)
  except AgentRLError as error:
    sys.exit(f"{type(error).__name__}: {error}")
