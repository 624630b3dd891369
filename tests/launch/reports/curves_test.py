"""Tests of `report.curves`: rows to lines."""

import math
import unittest

from launch.reports import curves
from launch.reports.metrics_file import Row


def rows(*found) -> list[Row]:
  return [Row(stage, step, 0.0, values) for stage, step, values in found]


class CurvesTest(unittest.TestCase):
  def test_a_curve_is_one_metric_of_one_stage(self):
    given = rows(
      ("warm_start", 1, {"loss": 9.0}),
      ("rl", 1, {"loss": 2.0}),
      ("rl", 2, {"reward": 5.0}),
      ("rl", 3, {"loss": 1.0}),
    )
    self.assertEqual(
      curves.curve(given, "rl", "loss"),
      curves.Curve("loss", (1, 3), (2.0, 1.0)),
    )
    self.assertIsNone(curves.curve(given, "rl", "entropy"))

  def test_curves_below_a_prefix_are_named_by_what_follows(self):
    given = rows(
      ("rl", 1, {"success/os": 0.1, "success_rate": 1.0}),
      ("rl", 2, {"success/dbbench": 0.2}),
    )
    self.assertEqual(
      curves.curves_below(given, "rl", "success"),
      [curves.Curve("dbbench", (2,), (0.2,)), curves.Curve("os", (1,), (0.1,))],
    )

  def test_smoothing_averages_neighbours_and_passes_over_gaps(self):
    drawn = curves.Curve("x", (1, 2, 3, 4), (0.0, 3.0, 6.0, math.nan))
    self.assertEqual(drawn.smoothed(3).values, (1.5, 3.0, 4.5, 6.0))
    self.assertEqual(drawn.smoothed(1).values[:3], drawn.values[:3])

  def test_the_bold_line_is_as_wide_as_the_run_is_long(self):
    step = curves.Curve("x", tuple(range(400)), (0.0,) * 200 + (1.0,) * 200)
    rising = [v for v in step.smooth.values if 0 < v < 1]
    self.assertEqual(len(rising), 20)
    self.assertAlmostEqual(step.smooth.values[190], 1 / 21)
    short = curves.Curve("x", tuple(range(40)), (0.0,) * 20 + (1.0,) * 20)
    self.assertEqual(short.smooth, short.smoothed(5))

  def test_a_steep_beginning_is_not_smoothed_away(self):
    falling = curves.Curve("x", tuple(range(100)), (9.0,) * 4 + (0.0,) * 96)
    self.assertEqual(falling.smoothed(41).values[0], 9.0)
    self.assertEqual(falling.smoothed(41).values[50], 0.0)
