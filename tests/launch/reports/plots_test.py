"""Tests of `report.plots` and its panels: what is drawn is what was handed."""

import pathlib
import re
import tempfile
import unittest

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from agentrl_jax.metrics import FILE, Row, read_metrics
from launch.reports import curves, panels, plots, theme
from tests.launch.reports import synthetic_run


class PlotsTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    with tempfile.TemporaryDirectory() as folder:
      synthetic_run.write_metrics(pathlib.Path(folder))
      cls.rows = read_metrics(pathlib.Path(folder) / FILE)
    cls.drawings = plots.panel_svgs(cls.rows, synthetic_run.evaluations())

  def test_a_run_without_a_warm_start_has_no_loss_of_it(self):
    drawings = plots.panel_svgs(
      self.rows, synthetic_run.evaluations(), has_warm_start=False
    )
    titles = [drawing.title for drawing in self.drawings]
    titles.remove("Warm-start loss")
    self.assertEqual([drawing.title for drawing in drawings], titles)
    self.assertIn("untouched", drawings[0].svg)
    self.assertNotIn("warm start", drawings[0].svg)

  @pytest.mark.slow
  def test_writes_a_picture(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "curves.png"
      plots.plot_curves(self.rows, synthetic_run.evaluations(), path)
      picture = matplotlib.image.imread(path)
    height, width = picture.shape[:2]
    self.assertGreater(width, 1500)
    self.assertGreater(height, 800)
    self.assertGreater(picture[..., :3].std(), 0.05)  # not a blank sheet

  def test_drawings_use_the_pages_colours_only(self):
    self.assertEqual(len(self.drawings), len(plots.PANELS))
    for drawing in self.drawings:
      with self.subTest(panel=drawing.title):
        self.assertTrue(drawing.svg.startswith("<svg"))
        self.assertIn("var(--faint)", drawing.svg)
        self.assertNotIn("#0102", drawing.svg)
        colours = set(re.findall(r"(?:fill|stroke): (#\w+)", drawing.svg))
        self.assertEqual(colours, set())

  @pytest.mark.slow
  def test_drawings_define_no_name_twice(self):
    written = [svg for d in self.drawings for svg in (d.svg, d.wide_svg)]
    names = [
      name for svg in written for name in re.findall(r' id="(.+?)"', svg)
    ]
    used = {
      name
      for svg in written
      for name in re.findall(r"""(?:url\(|href=")#([^")]+)""", svg)
    }
    self.assertTrue(used)
    self.assertEqual(used - set(names), set())
    self.assertEqual(len(names), len(set(names)))

  @pytest.mark.slow
  def test_the_same_run_gives_the_same_drawing(self):
    again = plots.panel_svgs(self.rows, synthetic_run.evaluations())
    self.assertEqual(again, self.drawings)

  @pytest.mark.slow
  def test_says_what_was_not_recorded(self):
    for drawing in plots.panel_svgs([], []):
      with self.subTest(panel=drawing.title):
        self.assertIn("not recorded", drawing.svg)
    for drawing in self.drawings:
      with self.subTest(panel=drawing.title):
        self.assertNotIn("not recorded", drawing.svg)

  def test_held_out_scores_stand_at_their_heights(self):
    figure = Figure()
    data = panels.Data(self.rows, synthetic_run.evaluations())
    panels.draw_success(figure, data, theme.PAPER)
    (axes,) = figure.axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    heights = sorted(round(float(m.get_ydata()[0]), 3) for m in marks)
    expected = sorted(
      round(evaluation.tasks[task].success, 3)
      for evaluation in synthetic_run.evaluations()
      if evaluation.stage in ("warm_start", "rl")
      for task in synthetic_run.TASKS
    )
    self.assertEqual(heights, expected)
    bars = [bar.get_segments()[0] for bar in axes.collections]
    spans = {(round(low, 4), round(high, 4)) for (_, low), (_, high) in bars}
    score = synthetic_run.an_evaluation("rl", "greedy").tasks["dbbench"]
    self.assertIn((round(score.low, 4), round(score.high, 4)), spans)

  def test_training_lines_are_the_recorded_ones(self):
    figure = Figure()
    panels.draw_success(figure, panels.Data(self.rows, []), theme.PAPER)
    drawn = [tuple(line.get_ydata()) for line in figure.axes[0].lines]
    for task in synthetic_run.TASKS:
      name = f"{curves.SUCCESS}/{task}"
      recorded = tuple(
        row.values[name] for row in self.rows if row.stage == "rl"
      )
      self.assertIn(recorded, drawn)

  def test_every_task_is_named_once_per_panel(self):
    for drawing in self.drawings[:2]:
      for task in synthetic_run.TASKS:
        with self.subTest(panel=drawing.title, task=task):
          self.assertEqual(len(re.findall(f">{task}<", drawing.svg)), 1)

  @pytest.mark.slow
  def test_a_task_named_like_markup_stays_text(self):
    rows = [Row("rl", 1, 0.0, {f"{curves.SUCCESS}/<b>$x$": 0.5})]
    svg = plots.panel_svgs(rows, [])[0].svg
    self.assertIn(">&lt;b&gt;$x$</text>", svg)
    self.assertNotIn("<b>", svg)
