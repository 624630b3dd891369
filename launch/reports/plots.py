"""Curves of a run: one picture as a file, or one drawing per panel.

`plot_curves` writes `curves.png`; `panel_svgs` draws the same panels for the
report, whose page arranges and colours them. A panel without records says so.
"""

import dataclasses
import io
import pathlib
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure, FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine

from agentrl_jax.metrics import Row
from launch.reports import panels
from launch.reports.panels import Data
from launch.reports.summary import Evaluation
from launch.reports.theme import PAGE, PAPER, Theme, css_colours

_WIDE, _NARROW = 7.2, 3.6  # inches
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_SETTINGS: dict[Any, Any] = {
  "font.family": "DejaVu Sans",
  "svg.fonttype": "none",  # text stays text: it can be read out and searched
  "text.parse_math": False,  # a dollar in a task's name is a dollar
}


@dataclasses.dataclass(frozen=True)
class Panel:
  """One topic of the run, its place in the picture, and its drawing."""

  title: str
  note: str
  draw: Callable[[FigureBase, Data, Theme], None]
  row: int
  columns: tuple[int, int]  # of six: the first, and the one after the last
  height: float = 2.8  # inches, where it stands alone

  @property
  def is_wide(self) -> bool:
    """Says if the panel takes more than its share of a row."""
    first, end = self.columns
    return end - first > 3


PANELS = (
  Panel(
    "Success by task",
    "lines: training rollouts, sampled, each step (thin) and smoothed (bold). "
    "At the sides: held-out tasks, 95 % interval, "
    "● greedy, ○ sampled, - - error-free expert",
    panels.draw_success,
    row=0,
    columns=(0, 4),
    height=3.4,
  ),
  Panel(
    "Reward by task",
    "mean over the latest training rollouts",
    panels.draw_reward,
    row=0,
    columns=(4, 6),
  ),
  Panel(
    "Warm-start loss",
    "nats per trained token",
    panels.draw_loss,
    row=1,
    columns=(0, 2),
  ),
  Panel(
    "Staleness and queue",
    "how many updates behind, how full",
    panels.draw_flow,
    row=1,
    columns=(2, 4),
  ),
  Panel(
    "The policy",
    "log-ratio to the fresh sampler, drift, entropy, gradient norm",
    panels.draw_policy,
    row=1,
    columns=(4, 6),
  ),
  Panel(
    "Policy slots",
    "of the trained tokens, by the policy slot that sampled them: policy slot "
    "0 is fresh",
    panels.draw_policy_slots,
    row=2,
    columns=(0, 3),
  ),
  Panel(
    "Older versions by task",
    "how often they answer, and how that goes",
    panels.draw_policy_slots_by_task,
    row=2,
    columns=(3, 6),
  ),
)


def _shown(*, has_warm_start: bool) -> list[Panel]:
  """Returns the panels of a run: one without a warm start has no loss of it."""
  if has_warm_start:
    return list(PANELS)
  rest = [panel for panel in PANELS if panel.draw is not panels.draw_loss]
  below = [panel for panel in rest if panel.row == 1]
  columns = {panel.title: (3 * n, 3 * n + 3) for n, panel in enumerate(below)}
  return [
    dataclasses.replace(panel, columns=columns.get(panel.title, panel.columns))
    for panel in rest
  ]


@dataclasses.dataclass(frozen=True)
class Drawing:
  """One panel as SVG, to be placed in a page.

  `wide_svg` is the same at twice the width, for wide screens; empty if the
  panel gains nothing by it.
  """

  title: str
  note: str
  svg: str
  wide_svg: str


def plot_curves(
  metrics: Sequence[Row],
  evaluations: Sequence[Evaluation],
  path: pathlib.Path,
  *,
  has_warm_start: bool = True,
) -> None:
  """Writes all panels as one picture; the suffix of `path` is its format."""
  data = Data(metrics, evaluations, has_warm_start)
  with matplotlib.rc_context(_SETTINGS):
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(13, 11.2), dpi=150, layout=layout)
    grid = figure.add_gridspec(3, 6, height_ratios=(1.15, 1, 1))
    for panel in _shown(has_warm_start=has_warm_start):
      place = figure.add_subfigure(grid[panel.row, slice(*panel.columns)])
      place.suptitle(
        panel.title, x=0.02, ha="left", fontsize=11.5, weight="bold"
      )
      panel.draw(place, data, PAPER)
      note = textwrap.fill(panel.note, width=150 if panel.is_wide else 75)
      place.supxlabel(note, x=0.02, ha="left", fontsize=7.5, color=PAPER.faint)
    figure.savefig(path, facecolor="white", bbox_inches="tight", pad_inches=0.2)


def panel_svgs(
  metrics: Sequence[Row],
  evaluations: Sequence[Evaluation],
  *,
  has_warm_start: bool = True,
) -> list[Drawing]:
  """Draws each panel as SVG text without a header, in the page's colours."""
  data = Data(metrics, evaluations, has_warm_start)
  return [
    Drawing(
      title=panel.title,
      note=panel.note,
      svg=_svg(panel, data, _NARROW),
      wide_svg=_svg(panel, data, _WIDE) if panel.is_wide else "",
    )
    for panel in _shown(has_warm_start=has_warm_start)
  ]


def _svg(panel: Panel, data: Data, width: float) -> str:
  return draw_svg(
    lambda figure: panel.draw(figure, data, PAGE),
    size=(width, panel.height),
    name=f"{panel.title} {width}",
  )


def draw_svg(
  draw: Callable[[FigureBase], None], *, size: tuple[float, float], name: str
) -> str:
  """Returns a drawing in PAGE's colours as SVG text without a header.

  `size` is in inches. Drawings of one page need different names.
  """
  # Drawings share a page: the salt keeps apart the names that they use, and
  # those of groups, which are the same in all and used by none, are left out.
  with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": name}):
    figure = Figure(figsize=size, layout="constrained")
    draw(figure)
    buffer = io.StringIO()
    figure.savefig(
      buffer, format="svg", transparent=True, metadata=_NO_METADATA
    )
  written = buffer.getvalue()
  drawing = re.sub(r'<g id="[^"]*"', "<g", written[written.index("<svg") :])
  return css_colours(drawing)


def draw_png(
  draw: Callable[[FigureBase], None],
  path: pathlib.Path,
  *,
  size: tuple[float, float],
) -> None:
  """Writes a drawing in PAPER's colours as a picture."""
  with matplotlib.rc_context(_SETTINGS):
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    draw(figure)
    figure.savefig(path, facecolor="white")
