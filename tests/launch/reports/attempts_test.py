"""Tests of `report.attempts`, on what the controller's own monitor counts."""

import unittest

from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Group, Status
from launch.reports import curves
from launch.reports.metrics_file import Row
from launch.reports.tables import attempts_table
from tests.launch.reports import synthetic_run


def a_monitor() -> Monitor:
  """One that has seen three attempts, a fault, and a group taken."""
  monitor = Monitor()
  won = synthetic_run.a_trajectory()
  lost = synthetic_run.a_trajectory(
    reward=-0.2, status=Status.AGENT_CONTEXT_LIMIT
  )
  for trajectory in (won, won, lost):
    monitor.started(trajectory.task)
    monitor.finished(trajectory, 2.5)
  monitor.faulted(won.task, "lost worker")
  monitor.retried(won.task)
  monitor.masked(won.task)
  monitor.queue(3, 4)
  monitor.taken([Group("g", won.task, (won, lost))], version=14)
  return monitor


class AttemptsTest(unittest.TestCase):
  def setUp(self):
    self.rows = [
      Row("rl", 1, 0.0, {}),
      Row("rl", 2, 0.0, a_monitor().snapshot()),
      Row("evaluation", 2, 0.0, {}),
    ]

  def test_shows_what_became_of_the_attempts(self):
    table = attempts_table(self.rows)
    self.assertEqual(table.tasks, ("dbbench",))
    shown = {label: texts for label, (texts,) in table.rows}
    for label, text in (
      ("attempts", "3"),
      ("completed", "2"),
      ("agent context limit", "1"),
      ("sampled tokens", "126"),
      ("time per attempt*", "2.5\xa0s"),
      ("turns per attempt*", "3.0"),
      ("token identity held*", "100.0\xa0%"),
      ("retried after a fault", "1"),
      ("lost to faults", "1"),
    ):
      with self.subTest(label=label):
        self.assertEqual(shown[label], text)

  def test_counts_are_the_newest_of_each_metric(self):
    values = {"rollout/finished/dbbench": 2.0, "answers/cut/dbbench": 0.25}
    table = attempts_table([*self.rows, Row("rl", 3, 0.0, values)])
    shown = {label: texts for label, (texts,) in table.rows}
    self.assertEqual(shown["attempts"], "2")
    self.assertEqual(shown["completed"], "2")
    self.assertEqual(shown["answers cut by length"], "25.0\xa0%")
    self.assertNotIn("calls of unknown tools", shown)

  def test_a_run_without_rl_has_none(self):
    self.assertIsNone(attempts_table([]))
    self.assertIsNone(attempts_table([Row("rl", 1, 0.0, {"loss": 1.0})]))

  def test_the_curves_are_those_that_the_monitor_names(self):
    for metric, value in (
      (curves.QUEUE_FILL, 0.75),
      (curves.STALENESS_MEAN, 2.0),
      (curves.STALENESS_MAX, 2.0),
    ):
      with self.subTest(metric=metric):
        found = curves.curve(self.rows, "rl", metric)
        self.assertEqual(found.values, (value,))
    (found,) = curves.curves_below(self.rows, "rl", curves.REWARD)
    self.assertEqual(found.name, "dbbench")
