"""A forest plot shows each difference, and is not ruled by a wild one."""

import re
import unittest

from matplotlib.figure import Figure

from launch.comparisons.forest import Forest, ForestRow
from launch.reports.plots import PAPER


def a_row(label, mean, reach, **others):
  return ForestRow(
    label=label,
    note="",
    mean=mean,
    low=mean - reach,
    high=mean + reach,
    **others,
  )


def drawn(*rows, **others):
  forest = Forest(
    name="f", title="f", note="", x_label="points", rows=rows, **others
  )
  figure = Figure(figsize=forest.size)
  forest.draw_on(figure, PAPER)
  (axes,) = figure.axes
  return forest, axes


class ForestTest(unittest.TestCase):
  def test_the_largest_is_on_top(self):
    _, axes = drawn(
      *(
        a_row(name, x, 0.01)
        for name, x in (("b", 0.0), ("a", 0.2), ("c", -0.1))
      )
    )
    texts = sorted(axes.texts, key=lambda text: text.get_position()[1])
    self.assertEqual([text.get_text() for text in texts], ["a", "b", "c"])
    self.assertGreater(axes.get_ylim()[0], axes.get_ylim()[1])

  def test_a_wild_interval_ends_in_arrows(self):
    _, axes = drawn(
      *(a_row(name, 0.01, 0.02) for name in "abcd"), a_row("wild", 0.0, 0.9)
    )
    low, high = axes.get_xlim()
    self.assertLess(high - low, 0.2)
    arrows = [
      line.get_marker() for line in axes.lines if line.get_marker() in "<>"
    ]
    self.assertEqual(sorted(arrows), ["<", ">"])

  def test_all_intervals_alike_are_whole(self):
    _, axes = drawn(
      *(a_row(name, 0.3, 0.02, second=(0.2, 0.4)) for name in "ab")
    )
    low, high = axes.get_xlim()
    self.assertLess(low, 0.0)  # nothing is seen without zero
    self.assertGreater(high, 0.32)

  def test_what_is_of_no_interest_is_shaded(self):
    _, axes = drawn(a_row("a", 0.1, 0.02), least=0.05)
    (shade,) = axes.patches
    self.assertEqual(shade.get_x(), -0.05)
    self.assertEqual(shade.get_width(), 0.1)

  def test_one_seed_has_a_point_alone(self):
    forest, axes = drawn(a_row("a", 0.1, 0.0, is_faint=True))
    self.assertLess(axes.get_xlim()[0], axes.get_xlim()[1])
    self.assertIn("<svg", forest.svg())

  def test_names_are_text_and_never_markup(self):
    name = "<script>alert(1)</script> $x$ " * 5
    svg = drawn(a_row(name, 0.1, 0.02))[0].svg()
    self.assertNotIn("<script>", svg)
    self.assertIn("$x$", svg)
    self.assertEqual(re.findall(r"(?:fill|stroke): (#\w+)", svg), [])

  def test_twenty_rows_fit(self):
    forest, axes = drawn(*(a_row(f"arm{i}", i / 100, 0.02) for i in range(20)))
    self.assertEqual(len(axes.texts), 20)
    self.assertLess(forest.size[1], 12)


if __name__ == "__main__":
  unittest.main()
