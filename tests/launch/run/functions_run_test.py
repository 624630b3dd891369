"""Trains on arithmetic and on its twin of functions: the same run, to the bit.

Only clocks differ: metrics of time, and what is counted per second.
"""

import json
import pathlib
import re
import tempfile

import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.data.record_file import read_groups
from agentrl_jax.env.loading import load_environment
from launch.config.settings import read_settings
from tests import programs
from tests.launch.processes.learners import ledger_of, metrics_of, state_of
from tests.launch.run import functions_run

DEADLINE_S = 900
# The engine's steps depend on when requests come.
CLOCK = re.compile(r"^seconds/|_s(/|$)|^engine/steps$")


def run(folder, written_as):
  done = programs.run(
    "launch.train",
    f"--config=tests/launch/run/functions_run.py:{written_as}",
    f"--config.workdir={folder / written_as}",
    f"--config.compile_cache={folder / 'compiled'}",
    deadline_s=DEADLINE_S,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return folder / written_as / "sums"


def episodes_of(root, version):
  """Everything of the episodes that an update was trained on."""
  groups = read_groups(root / "trajectories" / f"{version:06d}.jsonl.gz")
  return [
    (
      each.task,
      each.attempt,
      each.seed,
      each.status,
      each.reward,
      each.transcript,
      [
        (
          turn.observation.tolist(),
          turn.sampled.tolist(),
          turn.behavior_logprob.tolist(),
        )
        for turn in each.turns
      ],
    )
    for group in groups
    for each in group.trajectories
  ]


@pytest.mark.parametrize("written_as", functions_run.TARGETS)
def test_nothing_of_a_run_depends_on_timing(written_as):
  settings = read_settings(functions_run.get_config(written_as))
  assert settings.queue.order == "started"
  assert settings.admission.max_staleness == 0
  environment = settings.environments["arithmetic"]
  load_environment(environment.target, environment.options)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(2 * DEADLINE_S)
class SameRunTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    cls.roots = [run(folder, each) for each in functions_run.TARGETS]
    cls.steps = functions_run.get_config().train.steps

  def test_metrics(self):
    expected, found = [
      [
        {k: v for k, v in row.items() if not CLOCK.search(k)}
        for row in metrics_of(root)
      ]
      for root in self.roots
    ]
    self.assertLen(expected, self.steps)
    np.testing.assert_equal(found, expected)  # for which NaN is NaN
    self.assertGreater(len(expected[0]), 60)
    rewards = [row["reward/mean"] for row in expected]
    self.assertTrue(any(0 < reward < 1 for reward in rewards), rewards)

  def test_episodes(self):
    expected, found = [
      [episodes_of(root, version) for version in range(self.steps)]
      for root in self.roots
    ]
    self.assertEqual(found, expected)
    expected, found = map(ledger_of, self.roots)
    self.assertEqual(found, expected)

  def test_params(self):
    expected, found = [state_of(root, self.steps) for root in self.roots]
    self.assertEqual(found.keys(), expected.keys())
    for name, leaf in expected.items():
      np.testing.assert_array_equal(found[name], leaf, err_msg=name)

  def test_evaluations(self):
    expected, found = [
      [
        each["tasks"]["arithmetic"]
        for each in json.loads((root / "summary.json").read_text())[
          "evaluations"
        ]
      ]
      for root in self.roots
    ]
    self.assertEqual(found, expected)
