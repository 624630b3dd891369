"""The curves of a run: one picture to file, or one drawing per panel.

`plot_curves` writes `curves.png`; `panel_svgs` draws the same panels for the
report, whose page arranges and colours them. Draws only what it is handed, and
says so in the panel where something was not recorded.
"""

import dataclasses
import io
import pathlib
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine

from agentrl_jax.metrics import Row
from launch.report import panels
from launch.report.panels import Data
from launch.report.summary import Evaluation
from launch.report.theme import PAGE, PAPER, Theme, css_colours

_SETTINGS: dict[Any, Any] = {
  "font.family": "DejaVu Sans",
  "svg.fonttype": "none",  # text stays text: it can be read out and searched
  "axes.unicode_minus": True,
}


@dataclasses.dataclass(frozen=True)
class Panel:
  """One question about the run, its place in the picture, and its drawing."""

  title: str
  note: str
  draw: Callable[[FigureBase, Data, Theme], None]
  row: int
  columns: slice
  size: tuple[float, float]  # inches, where it stands alone


PANELS = (
  Panel(
    "Success by task",
    "lines: training rollouts, sampled, each step (thin) and smoothed (bold). "
    "At the sides: held-out tasks, 95 % interval, "
    "● greedy, ○ sampled, — error-free expert",
    panels.draw_success,
    row=0,
    columns=slice(0, 4),
    size=(7.0, 3.4),
  ),
  Panel(
    "Reward by task",
    "mean over training rollouts",
    panels.draw_reward,
    row=0,
    columns=slice(4, 6),
    size=(3.6, 2.8),
  ),
  Panel(
    "Warm-start loss",
    "nats per trained token",
    panels.draw_loss,
    row=1,
    columns=slice(0, 2),
    size=(3.6, 2.8),
  ),
  Panel(
    "Staleness and queue",
    "how many updates behind, how full",
    panels.draw_flow,
    row=1,
    columns=slice(2, 4),
    size=(3.6, 2.8),
  ),
  Panel(
    "The policy",
    "KL from sampler to learner, entropy, gradient norm",
    panels.draw_policy,
    row=1,
    columns=slice(4, 6),
    size=(3.6, 2.8),
  ),
)


@dataclasses.dataclass(frozen=True)
class Drawing:
  """One panel as SVG, to be placed in a page."""

  title: str
  note: str
  svg: str
  is_wide: bool


def plot_curves(
  metrics: Sequence[Row],
  evaluations: Sequence[Evaluation],
  path: pathlib.Path,
) -> None:
  """Writes all panels as one picture; the suffix of `path` says which kind."""
  data = Data(metrics, evaluations)
  with matplotlib.rc_context(_SETTINGS):
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(13, 7.8), dpi=150, layout=layout)
    grid = figure.add_gridspec(2, 6, height_ratios=(1.15, 1))
    for panel in PANELS:
      place = figure.add_subfigure(grid[panel.row, panel.columns])
      place.suptitle(
        panel.title, x=0.02, ha="left", fontsize=11.5, weight="bold"
      )
      panel.draw(place, data, PAPER)
      note = textwrap.fill(panel.note, width=round(21 * panel.size[0]))
      place.supxlabel(note, x=0.02, ha="left", fontsize=7.5, color=PAPER.faint)
    figure.savefig(path, facecolor="white", bbox_inches="tight", pad_inches=0.2)


def panel_svgs(
  metrics: Sequence[Row], evaluations: Sequence[Evaluation]
) -> list[Drawing]:
  """Each panel as SVG text without a header, in the page's colours."""
  data = Data(metrics, evaluations)
  return [
    Drawing(
      title=panel.title,
      note=panel.note,
      svg=_svg(panel, data),
      is_wide=panel.size[0] > 5,
    )
    for panel in PANELS
  ]


def _svg(panel: Panel, data: Data) -> str:
  # The salt keeps the names that panels define apart on their common page.
  with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": panel.title}):
    figure = Figure(figsize=panel.size, layout="constrained")
    panel.draw(figure, data, PAGE)
    buffer = io.StringIO()
    figure.savefig(
      buffer, format="svg", transparent=True, metadata={"Date": None}
    )
  written = buffer.getvalue()
  return css_colours(written[written.index("<svg") :])
