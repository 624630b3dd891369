"""Kills a run of training without notice, and starts it again."""

import collections
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from agentrl_jax.errors import AgentRLError, DeadlineExceeded
from agentrl_jax.metrics import read_metrics

_STEPS = 4
_POLL_S = 0.2
_SAID = 2000  # characters of a process's output that an error repeats
# Of the quickstart, at its smallest.
CHANGES: dict[str, Any] = {
  "name": "killed",
  "tokenizer.vocab_size": 2560,
  "tokenizer.num_texts": 60,
  "model.width": 64,
  "model.num_layers": 1,
  "model.mlp_width": 64,
  "warm_start.num_demonstrations": 64,
  "train.steps": _STEPS,
  "train.row_length": 384,  # kernels for TPUs take blocks of 128
  "group.size": 2,
  "admission.groups_per_step": 2,
  "admission.max_concurrent_groups": 2,
  "queue.max_groups": 2,
  "cross_policy.policy_slots": ("fresh", "every 2"),
  "checkpoint.every": 1,
  "evaluation.num_tasks": 2,
  "evaluation.num_untrained": 2,
  "engine.slots": (4, 2),
  "engine.context": 384,
  "engine.num_slot_sizes": 1,
  "episode.max_turns": 3,
  "episode.max_answer_tokens": 12,
}


class NotContinued(AgentRLError):
  """A run that was killed did not end as one that was not."""


def killed_run(
  root: pathlib.Path, num_devices: int, deadline_s: float
) -> dict[str, Any]:
  """Trains, kills the process after its second update, and trains on.

  The process has all devices, which it must leave to the next one. Raises
  `NotContinued` if the run does not end with each update once.
  """
  ends_at = time.monotonic() + deadline_s
  workdir = root / "runs"
  shutil.rmtree(workdir, ignore_errors=True)
  started = time.monotonic()
  first = _start(root, workdir, num_devices)
  try:
    _wait(first, workdir, 2, ends_at)
    before = _last_update(workdir)
  finally:
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
  killed = time.monotonic()
  second = _start(root, workdir, num_devices)
  try:
    _wait(second, workdir, before + 1, ends_at)
    again = time.monotonic()
    second.wait(max(ends_at - time.monotonic(), _POLL_S))
  except subprocess.TimeoutExpired as error:
    raise DeadlineExceeded(
      f"the run that was started again did not end: {_said(root)}"
    ) from error
  finally:
    if second.poll() is None:
      os.killpg(second.pid, signal.SIGKILL)
      second.wait()
  if second.returncode:
    raise NotContinued(
      f"the run that was started again ended with status {second.returncode}: "
      f"{_said(root)}"
    )
  counts = collections.Counter(
    row.step for row in read_metrics(_metrics(workdir)) if row.stage == "rl"
  )
  if counts != collections.Counter(range(1, _STEPS + 1)):
    raise NotContinued(f"updates by number, of {_STEPS}: {dict(counts)}")
  return {
    "killed_after_update": before,
    "to_first_updates_s": killed - started,
    "from_kill_to_next_update_s": again - killed,
    "updates": _STEPS,
  }


def _start(
  root: pathlib.Path, workdir: pathlib.Path, num_devices: int
) -> subprocess.Popen[bytes]:
  changes = CHANGES | {
    "workdir": workdir,
    "mesh.fsdp": num_devices,
    "train.micro_batch": num_devices,
  }
  with (root / "killed.log").open("wb") as log:
    return subprocess.Popen(
      [
        sys.executable,
        "-m",
        "launch.train",
        "--config=configs/quickstart.py",
        *(f"--config.{key}={value}" for key, value in changes.items()),
      ],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )


def _wait(
  process: subprocess.Popen[bytes],
  workdir: pathlib.Path,
  update: int,
  ends_at: float,
) -> None:
  """Returns when the update is reported, or the run has ended well."""
  while _last_update(workdir) < update:
    if status := process.poll():
      raise NotContinued(
        f"the run ended with status {status} before update {update}: "
        f"{_said(workdir.parent)}"
      )
    if time.monotonic() > ends_at:
      raise DeadlineExceeded(
        f"update {update} of the run did not come: {_said(workdir.parent)}"
      )
    time.sleep(_POLL_S)


def _metrics(workdir: pathlib.Path) -> pathlib.Path:
  return workdir / str(CHANGES["name"]) / "metrics.jsonl"


def _last_update(workdir: pathlib.Path) -> int:
  if not _metrics(workdir).exists():
    return -1
  rows = read_metrics(_metrics(workdir))
  return max((row.step for row in rows if row.stage == "rl"), default=-1)


def _said(root: pathlib.Path) -> str:
  return (root / "killed.log").read_text(errors="replace")[-_SAID:].strip()
