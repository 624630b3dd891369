"""Tests of `report.plots`: plots are drawn from the recorded numbers."""

import pathlib
import re
import tempfile
import unittest

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from launch.reports import curves, plots
from launch.reports.metrics_file import FILE, Row, read_metrics
from tests.launch.reports import synthetic_run


class PlotsTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    with tempfile.TemporaryDirectory() as folder:
      synthetic_run.write_metrics(pathlib.Path(folder))
      cls.rows = read_metrics(pathlib.Path(folder) / FILE)
    cls.plots = plots.run_plots(cls.rows, synthetic_run.evaluations())
    cls.drawings = [plot.svg() for plot in cls.plots]

  @pytest.mark.slow
  def test_writes_a_picture(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "curves.png"
      plots.write_curves(self.rows, synthetic_run.evaluations(), path)
      picture = matplotlib.image.imread(path)
    height, width = picture.shape[:2]
    self.assertGreater(width, 1500)
    self.assertGreater(height, 800)
    self.assertGreater(picture[..., :3].std(), 0.05)  # not a blank sheet

  def test_drawings_use_the_pages_colours_only(self):
    for plot, svg in zip(self.plots, self.drawings, strict=True):
      with self.subTest(plot.title):
        self.assertTrue(svg.startswith("<svg"))
        self.assertIn("var(--faint)", svg)
        self.assertNotIn("#0102", svg)
        self.assertNotIn("not recorded", svg)
        self.assertEqual(re.findall(r"(?:fill|stroke): (#\w+)", svg), [])

  def test_drawings_define_no_name_twice(self):
    written = "".join(self.drawings)
    names = re.findall(r' id="(.+?)"', written)
    used = set(re.findall(r"""(?:url\(|href=")#([^")]+)""", written))
    self.assertTrue(used)
    self.assertEqual(used - set(names), set())
    self.assertEqual(len(names), len(set(names)))

  @pytest.mark.slow
  def test_the_same_run_gives_the_same_drawing(self):
    again = plots.run_plots(self.rows, synthetic_run.evaluations())
    self.assertEqual([plot.svg() for plot in again], self.drawings)

  def test_ticks_are_whole_updates_and_no_thousandths(self):
    for label, x, tick in (
      ("updates of RL", [1.0], "1"),
      ("minutes of RL", [0.94, 0.96], "0.95"),
      ("trained tokens", [0.0, 20000.0], "20k"),
    ):
      line = plots.PlotLine(label="", place=0, x=x, y=[0.5] * len(x))
      plot = plots.Plot(name="", title="", note="", x_label=label, lines=[line])
      shown = re.findall(">([^<>]+)</text>", plot.svg())
      self.assertIn(tick, shown)
      self.assertNotIn("m", "".join(shown[: shown.index(label)]))

  def test_says_what_was_not_recorded(self):
    for plot in plots.run_plots([], []):
      with self.subTest(plot.title):
        self.assertIn("not recorded", plot.svg())

  def test_success_has_recorded_lines_and_held_out_marks(self):
    figure = Figure()
    self.plots[0].draw(figure.subplots(), plots.PAPER)
    (axes,) = figure.axes
    drawn = [tuple(line.get_ydata()) for line in axes.lines]
    for task in synthetic_run.TASKS:
      name = f"{curves.SUCCESS}/{task}"
      recorded = [row.values[name] for row in self.rows if row.stage == "rl"]
      self.assertIn(tuple(recorded), drawn)
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    scores = [
      (x, evaluation.tasks[task])
      for x, stage in ((0, "warm_start"), (40, "rl"))
      for evaluation in synthetic_run.evaluations()
      if (evaluation.stage, evaluation.mode) == (stage, "greedy")
      for task in synthetic_run.TASKS
    ]
    self.assertEqual(
      sorted((m.get_xdata()[0], m.get_ydata()[0]) for m in marks),
      sorted((x, score.success) for x, score in scores),
    )
    bars = [bar.get_segments()[0] for bar in axes.collections]
    spans = {(round(low, 4), round(high, 4)) for (_, low), (_, high) in bars}
    self.assertEqual(
      spans, {(round(s.low, 4), round(s.high, 4)) for _, s in scores}
    )
    for task in synthetic_run.TASKS:
      self.assertEqual(self.drawings[0].count(f">{task}<"), 1)

  def test_tasks_without_success_show_their_reward(self):
    rows = [Row("rl", 1, 0.0, {f"{curves.REWARD}/<b>$x$": 0.5})]
    plot, *_ = plots.run_plots(rows, [])
    self.assertEqual((plot.title, plot.is_share), ("Reward by task", False))
    self.assertEqual([line.label for line in plot.lines], ["<b>$x$"])
    two = {f"{curves.SUCCESS}/{name}": 0.5 for name in ("<b>$x$", "y")}
    svg = plots.run_plots([Row("rl", 1, 0.0, two)], [])[0].svg()
    self.assertIn(">&lt;b&gt;$x$</text>", svg)
    self.assertNotIn("<b>", svg)
