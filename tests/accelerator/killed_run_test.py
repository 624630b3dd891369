"""A run of training that is killed leaves its devices to the next one."""

import signal
import subprocess
import sys
import time

import pytest

from launch.reports.metrics_file import read_metrics
from tests.programs import ROOT

pytestmark = [pytest.mark.accelerator, pytest.mark.slow]

STEPS = 4
# The quickstart, at its smallest; kernels for TPUs take rows of 128.
CHANGES = {
  "name": "killed",
  "tokenizer.vocab_size": 2560,
  "tokenizer.num_texts": 60,
  "model.width": 64,
  "model.num_layers": 1,
  "model.mlp_width": 64,
  "warm_start.num_demonstrations": 64,
  "train.steps": STEPS,
  "train.row_length": 384,
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


def num_devices():
  """Counts them elsewhere: this process takes none."""
  line = "import jax; print(jax.device_count())"
  return int(subprocess.check_output([sys.executable, "-c", line]))


def start(workdir, number):
  changes = CHANGES | {
    "workdir": workdir,
    "mesh.fsdp": number,
    "train.micro_batch": number,
  }
  return subprocess.Popen(
    [
      *(sys.executable, "-m", "launch.train"),
      "--config=configs/quickstart.py",
      *(f"--config.{key}={value}" for key, value in changes.items()),
    ],
    cwd=ROOT,
    stdin=subprocess.DEVNULL,
  )


def updates(workdir):
  path = workdir / "killed" / "metrics.jsonl"
  rows = read_metrics(path) if path.exists() else []
  return [row.step for row in rows if row.stage == "rl" and row.step > 0]


@pytest.mark.timeout(900)
def test_a_killed_run_makes_each_update_once(tmp_path, record_property):
  number = num_devices()
  first = start(tmp_path, number)
  while len(updates(tmp_path)) < 2:
    assert first.poll() is None, "the run ended before its second update"
    time.sleep(0.2)
  first.send_signal(signal.SIGKILL)
  first.wait()
  killed = time.monotonic()
  assert start(tmp_path, number).wait() == 0
  record_property("after_kill_s", time.monotonic() - killed)
  assert sorted(updates(tmp_path)) == list(range(1, STEPS + 1))
