"""Scores of experts on tasks that are named on the command line."""

import json
import pathlib
import tempfile

import pytest
from absl.testing import absltest

from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import Arithmetic
from launch.evaluate import choose_tasks
from tests import programs
from tests.environments.dbbench.data import dev_rows

DEADLINE_S = 200


def _evaluate(*flags):
  return programs.run("launch.evaluate", *flags, deadline_s=DEADLINE_S)


def _scores(test, *flags):
  """Runs the command; returns its scores by task."""
  folder = test.enterContext(tempfile.TemporaryDirectory())
  output = pathlib.Path(folder) / "scores.json"
  done = _evaluate(*flags, f"--output={output}")
  test.assertEqual(done.returncode, 0, done.stderr[-2000:])
  return json.loads(output.read_text())["tasks"]


class ChooseTasksTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.environments = {"arithmetic": Arithmetic()}

  def _choose(self, wanted):
    return choose_tasks(self.environments, wanted, num_tasks=5, seed=0)

  def test_test_split_unless_told(self):
    tasks = self._choose(None)
    self.assertLen(tasks, 5)
    self.assertEqual({t.split for t in tasks}, {"test"})
    self.assertEqual(
      {t.split for t in self._choose(["arithmetic/train"])}, {"train"}
    )

  def test_words_that_name_nothing(self):
    for word in ("arithmetic", "chess/test"):
      with self.assertRaisesRegex(ConfigError, "as in arithmetic/test"):
        self._choose([word])


class EvaluateTest(absltest.TestCase):
  @pytest.mark.slow
  def test_expert_solves_agentbenchs_own_tasks(self):
    data = dev_rows().parents[2]
    tasks = _scores(
      self,
      f"--config=configs/agentbench.py:{data}",
      "--config.evaluation.num_tasks=60",
      "--policy=expert",
      "--tasks=dbbench/dev,webshop/test",
    )
    for name in ("dbbench", "webshop"):
      self.assertEqual(tasks[name]["n"], 60)
      self.assertEqual(tasks[name]["success"], 1.0)

  @pytest.mark.slow
  def test_an_erring_expert_errs(self):
    tasks = _scores(
      self,
      "--config=configs/quickstart.py",
      "--config.evaluation.num_tasks=40",
      "--policy=imperfect",
    )
    for name in ("dbbench", "webshop"):
      self.assertBetween(tasks[name]["success"], 0.1, 0.8)

  @pytest.mark.slow
  def test_scripted_policies_are_played_and_told_of(self):
    names = '--config.tasks.names=("arithmetic",)'
    config = "--config=configs/every_environment.py"
    few = "--config.evaluation.num_tasks=40"
    done = _evaluate(config, names, few, "--policy=scripted")
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    self.assertRegex(done.stdout, r"\| arithmetic constant +\| 40 ")
    self.assertIn("arithmetic copy_numbers wins 100.0 % of", done.stdout)
    self.assertNotIn("constant wins", done.stdout)

  @pytest.mark.slow
  def test_a_checkpoint_needs_its_run(self):
    done = _evaluate("--config=configs/quickstart.py", "--policy=rl")
    self.assertEqual(done.returncode, 1)
    self.assertIn("needs --run=", done.stderr)
    self.assertNotIn("Traceback", done.stderr)
