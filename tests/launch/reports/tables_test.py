"""Tests of `report.tables`: what is printed is what is filed."""

import dataclasses
import io
import pathlib
import unittest

from rich.console import Console

from launch.reports import html, tables
from launch.reports.summary import Evaluation
from tests.launch.reports import synthetic_run

GOLDEN = pathlib.Path(__file__).with_name("summary.txt")


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

  def test_a_summary_is_printed_as_recorded(self):
    lines = printed(synthetic_run.a_summary(), width=80).splitlines()
    expected = GOLDEN.read_text(encoding="utf-8").splitlines()
    self.assertEqual([line.rstrip() for line in lines], expected)
    self.assertLessEqual(max(map(len, lines)), 80)

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
