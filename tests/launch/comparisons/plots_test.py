"""Curves of arms: what fits on one plot, and what is parted."""

import unittest

from launch.comparisons.bands import UPDATES, band
from launch.comparisons.page import compare, render
from launch.comparisons.plots import make_plots
from launch.reports.plots import Plot, PlotLine, SmallMultiples, fitted
from tests.launch.comparisons.finals_test import noisy
from tests.launch.comparisons.training_test import a_run, an_arm


def learning(name, *levels):
  return an_arm(
    name, *(a_run([x, x + 0.1, x + 0.2], seed=s) for s, x in enumerate(levels))
  )


def a_line(*y):
  return PlotLine(label="a", place=0, x=range(len(y)), y=y)


class CurvesTest(unittest.TestCase):
  def plots(self, num_arms):
    arms = [learning(f"arm{i}", 0.2, 0.3, 0.4) for i in range(num_arms)]
    found = {plot.name: plot for plot in make_plots(arms, ["sums"])}
    return found["success_by_updates"]

  def test_three_arms_share_a_plot(self):
    plot = self.plots(3)
    self.assertIsInstance(plot, Plot)
    self.assertEqual(len(plot.lines), 3)
    self.assertEqual(plot.panels, ())

  def test_more_arms_have_a_panel_each_with_the_first_in_it(self):
    plot = self.plots(20)
    self.assertIsInstance(plot, SmallMultiples)
    self.assertEqual(len(plot.panels), 20)
    first, *others = plot.panels
    self.assertEqual([line.is_faint for line in first.lines], [False])
    for panel in others:
      self.assertEqual([line.is_faint for line in panel.lines], [True, False])
      self.assertEqual(panel.lines[0].low, ())
      self.assertEqual(panel.y_limits, first.y_limits)
    self.assertEqual(len({panel.name for panel in plot.panels}), 20)

  def test_few_seeds_are_said_at_the_curve_and_the_level(self):
    line = band(learning("a", 0.2, 0.3), ["success/sums"], UPDATES, place=0)
    self.assertEqual(line.label, "a (2 seeds: too few)")
    self.assertEqual((line.low, len(line.thin)), ([], 2))
    page = render(compare("t", noisy(2, 2)))
    self.assertIn("arm0 (2 seeds: too few)", page)
    self.assertIn("2 seeds: too few</small>", page)
    self.assertRegex(page, r">[^<]*2 seeds: too few</text>")

  def test_bands_of_shares_are_shares(self):
    arm = learning("a", 0.0, 0.7, 0.0)
    of = band(arm, ["success/sums"], UPDATES, place=0, is_share=True)
    self.assertEqual((min(of.low), max(of.high)), (0.0, 1.0))

  def test_axes_fit_what_they_show(self):
    low, high = fitted([a_line(0.50, 0.70)], is_share=True)
    self.assertTrue(0.45 < low < 0.5 and 0.7 < high < 0.75)
    low, high = fitted([a_line(0.50, 0.51)], is_share=True)
    self.assertAlmostEqual(high - low, 0.1, delta=0.02)  # noise stays small
    for y in (0.0, 1.0):
      low, high = fitted([a_line(y, y)], is_share=True)
      self.assertTrue(-0.02 < low < high < 1.02)
      self.assertGreaterEqual(high - low, 0.1)
    low, high = fitted([a_line(3.0, 3.0)], is_share=False)
    self.assertLess(low, high)
    self.assertIsNone(fitted([], is_share=True))
    self.assertIsNone(fitted([a_line(float("nan"))], is_share=True))


if __name__ == "__main__":
  unittest.main()
