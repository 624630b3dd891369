"""Tests of `report.progress`: true figures, and plain lines in a log."""

import io
import unittest

from rich.console import Console

from launch.reports.progress import Pace, StageProgress
from tests.clocks import StoppedClock

METRICS = {
  "success/webshop": 0.25,
  "success/dbbench": 0.5,
  "queue/fill": 0.75,
  "staleness/mean": 1.25,
  "gradient_norm": 0.4,
  "unknown/metric": 9.0,
}


class PaceTest(unittest.TestCase):
  def test_the_latest_steps_decide(self):
    pace = Pace(1000, begun_s=0.0, initial=0)
    pace.reached(1, 500.0)  # as slow as a first step that compiles
    for step in range(2, 40):
      pace.reached(step, 500.0 + step)
    self.assertAlmostEqual(pace.steps_per_s, 1.0)

  def test_no_time_is_left_beyond_the_end(self):
    pace = Pace(2, begun_s=0.0, initial=0)
    pace.reached(3, 3.0)
    self.assertEqual(pace.left, "0.0\xa0s")


class StageProgressTest(unittest.TestCase):
  def setUp(self):
    self.clock = StoppedClock()
    self.out = io.StringIO()

  def open(self, *, is_terminal: bool, **kwargs) -> StageProgress:
    console = Console(
      file=self.out,
      force_terminal=is_terminal,
      width=100,
      color_system=None,
      legacy_windows=False,
    )
    return StageProgress("rl", 10, console=console, clock=self.clock, **kwargs)

  def test_without_a_terminal_a_line_every_few_seconds(self):
    with self.open(is_terminal=False, plain_every_s=10.0) as progress:
      for step in range(1, 8):
        self.clock.now_s += 4.0
        progress.update(step, METRICS if step == 3 else {})
    lines = self.out.getvalue().splitlines()
    self.assertEqual(
      [line.split(" |")[0] for line in lines],
      ["RL 0/10", "RL 3/10", "RL 6/10", "RL 7/10"],
    )
    self.assertEqual(
      lines[1],
      "RL 3/10 | 4.0 s/step | 12.0\xa0s gone | 28.0\xa0s left | "
      "dbbench 50.0\xa0% | webshop 25.0\xa0% | queue 75.0\xa0% | "
      "gradient norm 0.4, staleness 1.25 versions",
    )
    self.assertIn("webshop 25.0\xa0%", lines[2])  # stays until a newer comes
    self.assertNotIn("\x1b", self.out.getvalue())

  def test_a_skipped_update_has_no_older_ones_loss(self):
    with self.open(is_terminal=False) as progress:
      for metrics, figures in (
        ({"loss": 0.5, "reward/mean": 1.0}, "loss 0.5, reward 1"),
        ({"updates/no_signal": 1.0}, "no signal: skipped, reward 1"),
        (
          {"updates/not_finite": 2.0, "loss": float("nan")},
          "not finite: skipped, reward 1",
        ),
        ({"loss": 0.25}, "loss 0.25, reward 1"),
      ):
        progress.update(1, metrics)
        self.assertEqual(progress.line().split(" | ")[-1], figures)

  def test_a_step_that_takes_long_has_a_line_every_minute(self):
    with self.open(is_terminal=False) as progress:
      for seconds in (59.0, 2.0, 58.0, 3.0):
        self.clock.now_s += seconds
        progress.look()
      shown = self.out.getvalue().splitlines()
    self.assertEqual(
      [line.split(" | ")[2] for line in shown],
      ["0.0\xa0s gone", "1:01 gone", "2:02 gone"],
    )

  def test_a_resumed_stage_begins_where_it_stopped(self):
    with self.open(is_terminal=False, initial_step=4) as progress:
      self.clock.now_s += 2.0
      progress.update(6, {})
    first, last = self.out.getvalue().splitlines()
    self.assertTrue(first.startswith("RL 4/10 | ? steps/s"), first)
    self.assertTrue(last.startswith("RL 6/10 | 1.0 steps/s"), last)

  def test_a_task_whose_environment_fails_is_named_until_it_is_back(self):
    with self.open(is_terminal=False) as progress:
      for is_open in (1.0, 0.0):
        progress.update(1, {"groups/breaker_open/dbbench": is_open})
        named = "no groups of dbbench start" in progress.line()
        self.assertEqual(named, bool(is_open))
    with self.open(is_terminal=True) as progress:
      progress.update(1, {"groups/breaker_open/dbbench": 1.0})
      progress.render()
    self.assertIn("no groups of dbbench start", self.out.getvalue())

  def test_on_a_terminal_it_redraws(self):
    with self.open(is_terminal=True) as progress:
      self.clock.now_s += 2.0
      progress.update(4, METRICS)
    text = self.out.getvalue()
    self.assertIn("\x1b[", text)
    for shown in (
      "RL",
      "4/10",
      "2.0 steps/s",
      "3.0\xa0s left",
      "dbbench",
      "50.0\xa0%",
      "queue",
      "75.0\xa0%",
      "staleness 1.25 versions",
    ):
      with self.subTest(shown=shown):
        self.assertIn(shown, text)

  def test_a_failing_stage_ends_its_display_and_raises(self):
    for is_terminal in (True, False):
      with self.subTest(is_terminal=is_terminal):
        progress = self.open(is_terminal=is_terminal)
        with self.assertRaises(ZeroDivisionError), progress:
          progress.update(1, {})
          raise ZeroDivisionError
        self.assertIn("1/10", self.out.getvalue())

  def test_non_finite_metrics_are_shown(self):
    with self.open(is_terminal=True) as progress:
      progress.update(1, {"success/os": float("nan"), "loss": float("inf")})
    self.assertIn("loss inf", self.out.getvalue())
