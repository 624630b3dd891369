"""Runs the custom objective of docs/losses.md."""

import importlib
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest

from agentrl_jax.train.custom_trial import try_advantage, try_loss
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics

ROOT = pathlib.Path(__file__).parents[3]
FILES = ("my_lab/losses.py", "my_lab/config.py")
SMALL = {
  "tokenizer.vocab_size": 2560,
  "tokenizer.num_texts": 60,
  "model.width": 32,
  "model.num_layers": 1,
  "model.mlp_width": 48,
  "warm_start.num_demonstrations": 96,
  "train.steps": 2,
  "train.micro_batch": 2,
  "group.size": 2,
  "admission.groups_per_step": 2,
  "admission.max_concurrent_groups": 2,
  "queue.max_groups": 2,
  "cross_policy.policy_slots": ("fresh", "every 2"),
  "checkpoint.every": 2,
  "evaluation.num_tasks": 2,
  "evaluation.num_untrained": 2,
  "engine.num_slot_sizes": 1,
  "engine.slots": (4, 2),
  "episode.max_turns": 2,
  "episode.max_answer_tokens": 8,
  # Whatever an untrained policy scores: that there is a group to train on.
  "advantage.keep_settings": {"low": -9.0, "high": 9.0},
}


def write_files(folder: pathlib.Path) -> None:
  """The page's files, as a reader would copy them."""
  page = (ROOT / "docs/losses.md").read_text()
  for name in FILES:
    (text,) = re.findall(
      rf"```python\n# {re.escape(name)}\n(.*?)```", page, re.DOTALL
    )
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


class PageTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write_files(self.folder)

  def read_settings(self):
    sys.path.insert(0, str(self.folder))
    self.addCleanup(sys.path.remove, str(self.folder))
    importlib.invalidate_caches()
    return read_settings(importlib.import_module("my_lab.config").get_config())

  def test_its_functions_fit_their_roles(self):
    settings = self.read_settings()
    self.assertEqual(settings.loss.surrogate, "my_lab.losses:bounded")
    try_loss(settings.loss)
    try_advantage(settings.advantage)

  @pytest.mark.full
  @pytest.mark.timeout(900)
  def test_its_command_trains(self):
    flags = [f"--config.{key}={value}" for key, value in SMALL.items()]
    done = subprocess.run(
      [
        sys.executable,
        "-m",
        "launch.train",
        "--config=my_lab/config.py",
        *flags,
      ],
      cwd=self.folder,
      env={
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
      },
      capture_output=True,
      text=True,
      timeout=800,
      check=False,
    )
    self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])
    rows = [
      row.values
      for row in read_metrics(self.folder / "runs/my_lab/metrics.jsonl")
      if row.stage == "rl" and "loss/bounded" in row.values
    ]
    self.assertNotEmpty(rows)
    for row in rows:
      self.assertAlmostEqual(row["policy/token_weight"], 0.2, delta=0.1)
