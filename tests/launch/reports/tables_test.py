"""Tests of `report.tables`: what is printed is what is filed."""

import dataclasses
import io
import unittest

from rich.console import Console

from launch.reports import html, numbers, tables
from launch.reports.summary import Evaluation
from tests.launch.reports import synthetic_run


def printed(summary, width: int = 100) -> str:
  console = Console(file=io.StringIO(), width=width, color_system=None)
  tables.print_summary(summary, console)
  return console.file.getvalue()


class TablesTest(unittest.TestCase):
  def test_a_run_without_a_warm_start_began_untouched(self):
    summary = dataclasses.replace(
      synthetic_run.a_summary(), config_changes={"warm_start.epochs": (1, 0)}
    )
    text = printed(summary)
    self.assertIn("RL − untouched", text)
    self.assertNotIn("warm start", text.lower())
    self.assertNotIn("warm start", html.render(summary, [], []).lower())
    self.assertNotIn("warm-start", html.render(summary, [], []).lower())

  def test_every_number_filed_is_printed(self):
    summary = synthetic_run.a_summary()
    text = printed(summary)
    body = summary.to_json()
    for evaluation in body["evaluations"]:
      for score in [*evaluation["tasks"].values(), evaluation["mean"]]:
        self.assertIn(numbers.percent(score["success"]), text)
        self.assertIn(numbers.interval(score["low"], score["high"]), text)
    for comparison in body["comparisons"]:
      if comparison["before"] == "untrained":
        continue  # filed, but its two sides stand in the table already
      for change in [*comparison["tasks"].values(), comparison["mean"]]:
        self.assertIn(numbers.points(change["difference"]), text)
        span = numbers.signed_interval(change["low"], change["high"])
        self.assertIn(span, text)
    for seconds in (*body["wall_s"].values(), 350.0):
      self.assertIn(numbers.duration(seconds), text)
    self.assertIn("Seed 0, commit 000", text)

  def test_fits_a_terminal(self):
    lines = printed(synthetic_run.a_summary(), width=80).splitlines()
    self.assertTrue(any("RL − expert" in line for line in lines))
    self.assertLessEqual(max(map(len, lines)), 80)

  def test_a_column_per_task_a_row_per_policy(self):
    table = tables.before_after(synthetic_run.a_summary(), "greedy")
    self.assertEqual(
      [(c.text, c.note) for c in table.columns],
      [("dbbench", "n = 256"), ("webshop", "n = 256"), ("mean", "of tasks")],
    )
    self.assertEqual(
      [name for name, _ in table.rows],
      [
        "untrained",
        "warm start",
        "RL",
        "RL − warm start",
        "scripted baseline",
        "RL − script",
        "error-free expert",
        "RL − expert",
      ],
    )
    sure = {name: [cell.sure for cell in cells] for name, cells in table.rows}
    self.assertEqual(sure["RL"], [None] * 3)
    self.assertEqual(sure["RL − warm start"], [True] * 3)
    self.assertEqual(sure["RL − expert"], [True, False, True])
    self.assertEqual(sure["RL − script"], [True, False, True])

  def test_a_baseline_of_some_tasks_has_no_mean_of_all(self):
    summary = synthetic_run.a_summary()
    evaluations = [
      e.among(["webshop"]) if e.stage == "scripted" else e
      for e in summary.evaluations
    ]
    table = tables.before_after(
      dataclasses.replace(summary, evaluations=evaluations), "greedy"
    )
    cells = dict(table.rows)
    for row, expected in (
      ("scripted baseline", ["–", "93.0\N{NO-BREAK SPACE}%", "–"]),
      ("RL − script", ["–", "−5.0", "–"]),
    ):
      self.assertEqual([cell.text for cell in cells[row]], expected)

  def test_a_row_per_stage_and_one_of_all(self):
    rows = tables.stage_times(synthetic_run.a_summary())
    self.assertEqual(
      [row.title for row in rows],
      [
        "demonstrations",
        "warm start",
        "evaluate warm start greedy",
        "RL",
        "other",
        "all",
      ],
    )
    self.assertAlmostEqual(sum(row.share for row in rows[:-1]), 1.0)
    self.assertEqual(rows[-1].share, 1.0)

  def test_without_times_there_is_no_table_of_them(self):
    self.assertEqual(tables.stage_times(synthetic_run.summary_of()), [])

  def test_another_number_of_attempts_is_told_where_it_applies(self):
    summary = synthetic_run.a_summary()
    few = {
      task: synthetic_run.a_score(0.0, n=32) for task in synthetic_run.TASKS
    }
    evaluations = [*summary.evaluations, Evaluation("untrained", "greedy", few)]
    table = tables.before_after(
      dataclasses.replace(summary, evaluations=evaluations), "greedy"
    )
    self.assertEqual({c.note for c in table.columns[:2]}, {"n = 256"})
    notes = {name: [c.note for c in cells] for name, cells in table.rows}
    self.assertEqual(
      [note.split(", ")[1] for note in notes["untrained"]],
      ["n = 32", "n = 32", "n = 64"],
    )
    self.assertNotIn("n =", "".join(notes["RL"]))

  def test_sampled_has_no_expert(self):
    table = tables.before_after(synthetic_run.a_summary(), "sampled")
    self.assertEqual(table.rows[-1][0], "RL − warm start")

  def test_one_task_needs_no_mean(self):
    summary = synthetic_run.a_summary()
    only = [
      Evaluation(e.stage, e.mode, {"dbbench": e.tasks["dbbench"]})
      for e in summary.evaluations
    ]
    table = tables.before_after(
      dataclasses.replace(summary, evaluations=only), "greedy"
    )
    self.assertEqual([c.text for c in table.columns], ["dbbench"])
    self.assertEqual({len(cells) for _, cells in table.rows}, {1})

  def test_nothing_evaluated_is_no_table(self):
    summary = synthetic_run.a_summary()
    empty = dataclasses.replace(summary, evaluations=[])
    self.assertIsNone(tables.before_after(empty, "greedy"))
    self.assertIn("Where the minutes went", printed(empty))
