"""Scores of experts on tasks that are named on the command line."""

import json
import pathlib
import tempfile
import types
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import Arithmetic
from launch import evaluate
from launch.config.settings import read_settings
from launch.evaluate import choose_tasks
from tests import programs
from tests.controller.player_test import Untaught
from tests.environments.dbbench.data import dev_rows
from tests.launch import tiny

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

  def test_a_split_that_is_named_twice_is_played_once(self):
    twice = self._choose(["arithmetic/test", "arithmetic/test"])
    self.assertEqual(twice, self._choose(None))

  def test_a_config_without_tasks(self):
    with self.assertRaisesRegex(ConfigError, "tasks.names is empty"):
      evaluate.choose_tasks({}, None, num_tasks=1, seed=0)

  def test_words_that_name_nothing(self):
    for word in ("arithmetic", "chess/test"):
      with self.assertRaisesRegex(ConfigError, "as in arithmetic/test"):
        self._choose([word])


class ExpertsTest(absltest.TestCase):
  def test_an_environment_without_one_is_refused_or_left_out(self):
    settings = read_settings(tiny.get_config())
    environments = {"arithmetic": Untaught()}
    tasks = [Task("arithmetic", "test", 0)]
    with self.assertRaisesRegex(ConfigError, "arithmetic has no expert; leave"):
      evaluate.require_experts(environments, tasks)
    with mock.patch.object(evaluate, "score", return_value={"arithmetic": 1}):
      scores = evaluate.score_scripted(settings, environments, tasks, None)
    self.assertNotIn("arithmetic expert", scores)
    self.assertIn("arithmetic constant", scores)


class SeveralSplitsTest(absltest.TestCase):
  FLAGS = (
    "--config=configs/every_environment.py",
    "--tasks=arithmetic/test,arithmetic/train,webshop/test",
    "--config.evaluation.num_tasks=6",
    "--policy=expert",
  )

  @pytest.mark.slow
  def test_splits_of_one_environment_are_never_pooled(self):
    rows = ["arithmetic/test", "arithmetic/train", "webshop"]
    scores = _scores(self, *self.FLAGS)
    self.assertCountEqual(scores, rows)
    self.assertEqual({score["n"] for score in scores.values()}, {6})
    passed = _scores(
      self, *self.FLAGS, "--samples=2", "--policy=imperfect", "--nogreedy"
    )
    self.assertCountEqual(passed, rows)
    self.assertEqual({each["tasks"] for each in passed.values()}, {6})


class SamplesTest(absltest.TestCase):
  ARITHMETIC = (
    "--config=configs/every_environment.py",
    "--tasks=arithmetic/test",
    "--config.evaluation.num_tasks=12",
    "--config.environments.arithmetic.mistakes={'wrong_sum': 0.4}",
    "--policy=imperfect",
  )

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.output = pathlib.Path(folder) / "scores.json"

  def run_to(self, output, *flags):
    return _evaluate(*self.ARITHMETIC, f"--output={output}", *flags)

  @pytest.mark.slow
  def test_what_is_missing_is_played_and_the_scores_are_the_same(self):
    done = self.run_to(self.output, "--samples=8")
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    whole = json.loads(self.output.read_text())["tasks"]["arithmetic"]
    self.assertEqual(list(whole["pass_at"]), ["1", "2", "4", "8"])
    self.assertBetween(whole["pass_at"]["1"]["mean"], 0.35, 0.85)
    self.assertGreater(whole["pass_at"]["8"]["mean"], 0.9)
    log = self.output.with_suffix(".attempts.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    self.assertLen(lines, 1 + 12 * 8)
    log.write_text("".join(lines[:40]) + lines[40][:20])
    self.assertEqual(self.run_to(self.output, "--samples=8").returncode, 0)
    again = json.loads(self.output.read_text())["tasks"]["arithmetic"]
    self.assertEqual(again, whole)
    self.assertCountEqual(log.read_text().splitlines(keepends=True), lines)
    # More attempts go on from those; another evaluation does not.
    self.assertEqual(self.run_to(self.output, "--samples=9").returncode, 0)
    self.assertLen(log.read_text().splitlines(), 1 + 12 * 9)
    other = self.run_to(self.output, "--samples=8", "--config.seed=1")
    self.assertEqual(other.returncode, 2)
    self.assertIn("seed was 0 and is 1", " ".join(other.stderr.split()))

  @pytest.mark.slow
  def test_one_attempt_each_goes_on_too(self):
    done = self.run_to(self.output)
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    whole = json.loads(self.output.read_text())["tasks"]["arithmetic"]
    self.assertEqual(whole["n"], 12)
    log = self.output.with_suffix(".attempts.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:8]) + lines[8][:20])
    done = self.run_to(self.output)
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    self.assertIn("7 attempts were played before", done.stdout)
    again = json.loads(self.output.read_text())["tasks"]["arithmetic"]
    self.assertEqual(again, whole)
    self.assertCountEqual(log.read_text().splitlines(keepends=True), lines)
    other = self.run_to(
      self.output, "--config.environments.arithmetic.mistakes={'wrong_sum': 0}"
    )
    self.assertEqual(other.returncode, 2)
    self.assertIn(
      "environments.arithmetic.mistakes.wrong_sum was 0.4 and is 0",
      " ".join(other.stderr.split()),
    )
    other = self.run_to(self.output, "--config.compute.dtype=bfloat16")
    self.assertEqual(other.returncode, 2)
    self.assertIn("dtypes was ['float32'", " ".join(other.stderr.split()))


class FlagsTest(parameterized.TestCase):
  def check(self, **changes):
    flags = {
      "POLICY": "expert",
      "SAMPLES": 1,
      "GREEDY": True,
      "VERSION": None,
      "ENDPOINT": "",
      "MODEL": "",
      "ENDPOINT_TOKENS": evaluate.TOKEN_LIMITS[0],
      "ENDPOINT_TEMPERATURE": True,
      "ENDPOINT_SEED": True,
      "CHATS": "",
    }
    values = {f"_{name}": value for name, value in (flags | changes).items()}
    values["RUN"] = values.pop("_RUN", None)
    values["CONFIG"] = tiny.get_config()
    holders = {n: types.SimpleNamespace(value=v) for n, v in values.items()}
    with mock.patch.multiple(evaluate, **holders):
      evaluate._check_flags()
      evaluate._check_chats(read_settings(values["CONFIG"]))

  @parameterized.parameters(
    ({"POLICY": "pretrained", "SAMPLES": 2}, "add --nogreedy"),
    ({"POLICY": "scripted:constant", "SAMPLES": 2}, "would all be the same"),
    ({"SAMPLES": 0}, "must be at least 1"),
    ({"VERSION": 1}, "is of --policy=warm_start or rl"),
    ({"ENDPOINT_SEED": False}, "are of --policy=endpoint"),
    ({"ENDPOINT_TOKENS": "max_completion_tokens"}, "are of --policy=endpoint"),
    ({"POLICY": "endpoint", "MODEL": "qwen"}, "needs --endpoint="),
    ({"POLICY": "pretrained"}, "needs a Hugging Face folder"),
    ({"CHATS": "c.jsonl", "POLICY": "scripted"}, "name one --policy"),
    ({"POLICY": "rl"}, "needs --run=<folder of a run>, found None"),
    ({"POLICY": "rl", "RUN": "/nowhere"}, "needs --run="),
  )
  def test_flags_that_do_not_go_together_are_refused(self, changes, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      self.check(**changes)

  def test_flags_that_go_together_are_taken(self):
    self.check()
    self.check(SAMPLES=2, POLICY="imperfect", GREEDY=False)
    self.check(POLICY="endpoint", ENDPOINT="http://h:1/v1", MODEL="qwen")


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
  def test_scripted_policies_are_played_and_told_of(self):
    names = '--config.tasks.names=("arithmetic",)'
    config = "--config=configs/every_environment.py"
    few = "--config.evaluation.num_tasks=40"
    done = _evaluate(config, names, few, "--policy=scripted")
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    self.assertRegex(done.stdout, r"\| arithmetic constant +\| 40 ")
    self.assertIn("arithmetic copy_numbers wins 100.0 % of", done.stdout)
    self.assertNotIn("constant wins", done.stdout)
