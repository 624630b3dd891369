"""Tests of `report.summary`: intervals, comparisons, and the filed form."""

import json
import math
import pathlib
import tempfile
import unittest

import numpy as np

from launch.reports import summary as summaries
from launch.reports.summary import Evaluation, Score
from tests.launch.reports import synthetic_run


class ScoreTest(unittest.TestCase):
  def test_the_mean_of_one_task_is_its_score(self):
    score = synthetic_run.a_score(0.4)
    mean = Evaluation("rl", "greedy", {"dbbench": score}).mean
    for name in ("n", "success", "low", "high", "reward"):
      self.assertAlmostEqual(getattr(mean, name), getattr(score, name))

  def test_the_mean_weighs_tasks_alike(self):
    few, many = synthetic_run.a_score(0.2, 10), synthetic_run.a_score(0.8, 90)
    mean = Evaluation("rl", "greedy", {"a": few, "b": many}).mean
    self.assertAlmostEqual(mean.success, 0.5)
    self.assertEqual(mean.n, 100)

  def test_rounding_takes_no_mean_out_of_its_range(self):
    """Wilson's bounds of none or all may come out a hair beyond."""
    for score in (
      Score(24, 0.0, 1.4e-17, 0.138, 0.0),
      Score(24, 1.0, 0.862, 1 + 2.0**-52, 1.0),
    ):
      mean = Evaluation("rl", "greedy", {"a": score, "b": score}).mean
      with self.subTest(success=score.success):
        self.assertGreaterEqual(mean.low, 0.0)
        self.assertLessEqual(mean.high, 1.0)

  def test_the_interval_of_a_mean_covers_as_often_as_it_says(self):
    """Draws evaluations of known rates, and counts the intervals that hold."""
    rng = np.random.default_rng(0)
    rates, n, trials, held = (0.3, 0.85), 256, 2000, 0
    for _ in range(trials):
      drawn = rng.binomial(n, rates) / n
      scores = {str(i): synthetic_run.a_score(r) for i, r in enumerate(drawn)}
      mean = Evaluation("rl", "greedy", scores).mean
      held += mean.low <= np.mean(rates) <= mean.high
    self.assertAlmostEqual(held / trials, 0.95, delta=0.015)

  def test_newcombes_example(self):
    """56/70 against 48/80, from table II of the paper (1998), method 10."""
    found = summaries.difference(
      synthetic_run.a_score(48 / 80, 80), synthetic_run.a_score(56 / 70, 70)
    )
    self.assertAlmostEqual(found.low, 0.0524, places=4)
    self.assertAlmostEqual(found.high, 0.3339, places=4)

  def test_a_score_of_no_episodes_is_refused(self):
    with self.assertRaisesRegex(ValueError, "no attempt was scored"):
      Score(0, math.nan, 0.0, 1.0, math.nan)

  def test_disjoint_means_that_the_intervals_do_not_touch(self):
    low, high = Score(9, 0.2, 0.1, 0.3, 0), Score(9, 0.5, 0.3, 0.7, 0)
    apart = Score(9, 0.5, 0.31, 0.7, 0)
    self.assertFalse(summaries.difference(low, high).disjoint)
    self.assertTrue(summaries.difference(low, apart).disjoint)
    self.assertTrue(summaries.difference(apart, low).disjoint)


class EvaluationTest(unittest.TestCase):
  def test_reads_what_an_evaluation_reports_and_leaves_the_rest(self):
    score = {"n": 4, "success": 0.5, "low": 0.2, "high": 0.8, "reward": 0.4}
    body = {
      "stage": "rl",
      "mode": "sampled",
      "tasks": {"os": {**score, "statuses": {"completed": 4}}},
      "wall_s": 3.0,
    }
    self.assertEqual(
      Evaluation.from_json(body),
      Evaluation("rl", "sampled", {"os": Score(**score)}),
    )

  def test_an_evaluation_of_no_task_is_refused(self):
    with self.assertRaisesRegex(ValueError, "has no task"):
      Evaluation("rl", "greedy", {})


class SummaryTest(unittest.TestCase):
  def test_beyond_the_expert_is_greedy_success_minus_the_experts(self):
    summary = synthetic_run.a_summary()
    found = summary.comparison("expert", "greedy")
    rl = synthetic_run.RATES["rl"]
    expert = synthetic_run.RATES["expert"]
    for task, own, its in zip(synthetic_run.TASKS, rl, expert, strict=True):
      self.assertAlmostEqual(found.tasks[task].difference, own - its)
    self.assertIsNone(summary.comparison("expert", "sampled"))

  def test_a_script_is_compared_on_the_tasks_that_it_played(self):
    summary = synthetic_run.summary_of(
      synthetic_run.an_evaluation("rl", "greedy"),
      Evaluation("scripted", "greedy", {"webshop": synthetic_run.a_score(0.5)}),
    )
    found = summary.comparison("scripted", "greedy")
    self.assertEqual(list(found.tasks), ["webshop"])
    self.assertAlmostEqual(found.mean.difference, 0.38)

  def test_compares_only_what_was_evaluated(self):
    summary = synthetic_run.summary_of(
      synthetic_run.an_evaluation("warm_start", "greedy")
    )
    self.assertEqual(summary.comparisons, [])

  def test_the_latest_evaluation_counts(self):
    first = Evaluation("rl", "greedy", {"os": synthetic_run.a_score(0.1)})
    second = Evaluation("rl", "greedy", {"os": synthetic_run.a_score(0.9)})
    summary = synthetic_run.summary_of(first, second)
    self.assertIs(summary.evaluation("rl", "greedy"), second)

  def test_refuses_to_compare_different_tasks(self):
    before = synthetic_run.an_evaluation("warm_start", "greedy")
    after = synthetic_run.an_evaluation("rl", "greedy", tasks=("os", "kg"))
    with self.assertRaisesRegex(ValueError, "on kg, os but warm_start on dbb"):
      summaries.compare(before, after)

  def test_a_filed_summary_is_read_again(self):
    summary = synthetic_run.a_summary()
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "summary.json"
      summaries.write_summary(summary, path)
      self.assertEqual(summaries.read_summary(path), summary)
      body = json.loads(path.read_text())
      self.assertEqual([p.name for p in path.parent.iterdir()], [path.name])
    self.assertEqual(body["wall_s"]["total"], 350.0)
    self.assertEqual(body["facts"]["seed"], 0)
    rl = body["evaluations"][4]
    self.assertEqual((rl["stage"], rl["mode"]), ("rl", "greedy"))
    self.assertAlmostEqual(rl["mean"]["success"], 0.815)
    gain = body["comparisons"][0]
    self.assertEqual((gain["before"], gain["after"]), ("warm_start", "rl"))
    self.assertAlmostEqual(gain["mean"]["difference"], 0.43)
    self.assertTrue(gain["mean"]["disjoint"])
