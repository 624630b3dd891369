"""Two variants of one environment, side by side in one run.

They share a class, and so the class's own name. All that a run keeps by task is
kept by the name that each has in the config.
"""

import json
import pathlib
import tempfile

import pytest
from absl.testing import absltest

from agentrl_jax.data.record_file import read_groups
from launch.config.settings import read_environments
from launch.reports.metrics_file import read_metrics
from launch.serve_environments import commands
from tests import programs
from tests.launch.run import variants

NAMES = {"easy", "hard"}
DEADLINE_S = 600


def run(module, *flags):
  config = "--config=tests/launch/run/variants.py"
  return programs.run(module, config, *flags, deadline_s=DEADLINE_S)


class WorkersTest(absltest.TestCase):
  def test_variants_are_two_tasks_at_a_controller(self):
    environments = read_environments(variants.get_config())
    made = commands(*environments, sorted(NAMES), "grpc://c:1", 1)
    for name, command in zip(sorted(NAMES), made, strict=True):
      self.assertIn(f"--name={name}", command)


class EvaluateTest(absltest.TestCase):
  @pytest.mark.slow
  def test_each_expert_makes_its_own_mistakes(self):
    with tempfile.TemporaryDirectory() as folder:
      output = pathlib.Path(folder) / "scores.json"
      done = run(
        "launch.evaluate",
        "--policy=imperfect",
        "--tasks=easy/test,hard/train",
        "--config.evaluation.num_tasks=40",
        f"--output={output}",
      )
      self.assertEqual(done.returncode, 0, done.stderr[-2000:])
      scores = json.loads(output.read_text())["tasks"]
    self.assertEqual(scores["easy"]["success"], 1.0)
    self.assertLess(scores["hard"]["success"], 0.8)


@pytest.mark.full
@pytest.mark.timeout(900)
class TrainTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.done = run("launch.train", f"--config.workdir={folder}")
    cls.root = pathlib.Path(folder) / "variants"

  def test_ends_well(self):
    self.assertEqual(self.done.returncode, 0, self.done.stderr[-3000:])

  def test_metrics_are_of_each(self):
    rows = read_metrics(self.root / "metrics.jsonl")
    values = [row.values for row in rows if row.stage == "rl"]
    self.assertLen(values, 2)
    for name in NAMES:
      for prefix in ("success", "rollout/finished"):
        key = f"{prefix}/{name}"
        self.assertTrue(any(key in v for v in values), key)
    self.assertFalse([k for v in values for k in v if k.endswith("/dbbench")])

  def test_groups_are_of_each(self):
    played = [
      group.task.name
      for version in range(2)
      for group in read_groups(
        self.root / "trajectories" / f"{version:06d}.jsonl.gz"
      )
    ]
    self.assertEqual(set(played), NAMES)

  def test_evaluations_and_report_have_a_row_for_each(self):
    summary = json.loads((self.root / "summary.json").read_text())
    self.assertEqual({e["mode"] for e in summary["evaluations"]}, {"greedy"})
    for evaluation in summary["evaluations"]:
      self.assertEqual(set(evaluation["tasks"]), NAMES)
      if evaluation["stage"] == "expert":
        for score in evaluation["tasks"].values():
          self.assertEqual(score["success"], 1.0)
    report = (self.root / "report.html").read_text()
    for name in NAMES:
      self.assertIn(f">{name}<", report)
