"""Plots of runs: lines with bands and marks, as pictures or in a page.

`run_plots` are the four curves of one run; comparisons of runs make their own
of the same parts. All other metrics are in the TensorBoard files of the run.

A plot in a page has the page's colours, which are CSS variables, so that the
page decides their values. The hues are those of Okabe and Ito, which the
colour-blind can tell apart.

matplotlib is imported where something is drawn: every command would wait for
it, and few draw.
"""

import contextlib
import dataclasses
import io
import pathlib
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from launch.reports import curves
from launch.reports.curves import RL
from launch.reports.metrics_file import Row
from launch.reports.summary import MODES, Evaluation, Score

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

_SIZE = (3.6, 2.7)  # inches
_LEAST_SPAN = 0.1  # of an axis of shares
_TITLE_WIDTH = 75  # characters of a line above a plot of `write_curves`
_SETTINGS: dict[Any, Any] = {
  "font.family": "DejaVu Sans",
  "svg.fonttype": "none",  # text stays text: it can be read out and searched
  "text.parse_math": False,  # a dollar in a task's name is a dollar
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclasses.dataclass(frozen=True)
class PlotTheme:
  """Colours that a plot is drawn with."""

  ink: str
  faint: str  # axes, ticks, what is secondary
  grid: str
  hues: tuple[str, ...]


PAPER = PlotTheme(
  ink="#1a1c20",
  faint="#6b7078",
  grid="#e4e6ea",
  hues=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b37f00", "#56b4e9"),
)
# Colours that matplotlib can parse and nothing else uses: `_css_colours` turns
# them into the page's own after drawing.
PAGE = PlotTheme(
  ink="#010203",
  faint="#010204",
  grid="#010205",
  hues=tuple(f"#0102{i:02x}" for i in range(16, 16 + len(PAPER.hues))),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotLine:
  """A curve in the colour of `place`, or marks with intervals.

  Other curves of the same colour are thin, as those that it smooths. Between
  `low` and `high` is a band; an interval, if `is_marks`.
  """

  label: str  # "" names nothing in the legend
  place: int  # of its colour; colours repeat
  x: Sequence[float]
  y: Sequence[float]
  thin: Sequence[Sequence[float]] = ()
  low: Sequence[float] = ()
  high: Sequence[float] = ()
  is_marks: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
  """One plot of lines, whose y axis fits them."""

  name: str  # of its file
  title: str
  note: str
  x_label: str
  lines: Sequence[PlotLine]
  is_share: bool = False
  x_ticks: Sequence[int] = ()  # on a logarithmic axis, in place of a linear one

  def svg(self) -> str:
    """Returns the drawing for a page: SVG text without a header."""
    # Drawings share a page: the salt keeps apart the names that they use, and
    # those of groups, the same in all and used by none, are left out.
    with _drawing(self.name):
      figure = _figure(_SIZE)
      self.draw(figure.subplots(), PAGE)
      buffer = io.StringIO()
      figure.savefig(
        buffer, format="svg", transparent=True, metadata=_NO_METADATA
      )
    text = buffer.getvalue()
    return _css_colours(
      re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    )

  def write(self, folder: pathlib.Path) -> None:
    """Writes the drawing as `<name>.png`."""
    with _drawing():
      figure = _figure(_SIZE, dpi=150)
      self.draw(figure.subplots(), PAPER)
      figure.savefig(folder / f"{self.name}.png", facecolor="white")

  def draw(self, axes: "Axes", theme: PlotTheme) -> None:
    """Draws the lines, and names those with a label in a legend."""
    for line in self.lines:
      _draw_line(axes, line, theme.hues[line.place % len(theme.hues)])
    self._tidy(axes, theme)
    if not self.lines:
      axes.text(
        0.5,
        0.5,
        "not recorded",
        transform=axes.transAxes,
        ha="center",
        color=theme.faint,
      )
    elif sum(bool(line.label) for line in self.lines) > 1:
      axes.legend(frameon=False, fontsize=8, labelcolor=theme.ink, loc="best")

  def _tidy(self, axes: "Axes", theme: PlotTheme) -> None:
    """Reduces the frame to a baseline, ticks, and faint rules."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    for side in ("top", "right", "left"):
      axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.faint)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.tick_params(colors=theme.faint, labelsize=8, length=0)
    axes.set_xlabel(self.x_label, color=theme.faint, fontsize=8)
    if self.x_ticks:
      axes.set_xscale("log", base=2)
      axes.set_xticks(self.x_ticks, [str(x) for x in self.x_ticks])
    else:
      is_count = self.x_label.startswith("updates")
      axes.xaxis.set_major_locator(
        MaxNLocator(5, integer=is_count, min_n_ticks=1)  # of a single update
      )
      axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
    if limits := _fitted(self.lines, is_share=self.is_share):
      axes.set_ylim(*limits)
    if self.is_share:
      axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
      axes.yaxis.set_major_formatter(PercentFormatter(1, 0, symbol=" %"))


def _drawing(salt: str = "") -> contextlib.AbstractContextManager[None]:
  """Sets how matplotlib draws, and what names within an SVG derive from."""
  import matplotlib

  return matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": salt})


def _figure(size: tuple[float, float], dpi: int | None = None) -> "Figure":
  from matplotlib.figure import Figure

  return Figure(figsize=size, dpi=dpi, layout="constrained")


def _short(x: float) -> str:
  """Writes 20000 as 20k, and 0.95 as it is: "950m" would be no share."""
  from matplotlib.ticker import EngFormatter

  return EngFormatter(sep="")(x) if abs(x) >= 1000 else f"{x:.4g}"


def _fitted(
  lines: Sequence[PlotLine], *, is_share: bool
) -> tuple[float, float] | None:
  """Returns limits of the y axis that all lines fit in; None without any.

  Shares have at least a tenth, so that noise is not blown up.
  """
  values = np.concatenate(
    [
      np.asarray(each, float)
      for line in lines
      for each in (line.y, line.low, line.high, *line.thin)
    ]
    or [np.zeros(0)]
  )
  values = values[np.isfinite(values)]
  if not len(values):
    return None
  low, high = float(values.min()), float(values.max())
  margin = max(0.04 * (high - low), (_LEAST_SPAN - (high - low)) / 2 * is_share)
  low, high = low - (margin or 1.0), high + (margin or 1.0)
  if is_share:
    low = max(min(low, 1 - _LEAST_SPAN), -0.01)
    high = min(max(high, _LEAST_SPAN), 1.01)
  return low, high


def _draw_line(axes: "Axes", line: PlotLine, hue: str) -> None:
  if line.is_marks:
    # Rounding may leave an end of the interval a hair inside.
    arms = [
      [max(y - low, 0.0) for y, low in zip(line.y, line.low, strict=True)],
      [max(high - y, 0.0) for y, high in zip(line.y, line.high, strict=True)],
    ]
    axes.errorbar(line.x, line.y, yerr=arms, fmt="o", color=hue, markersize=5)
    return
  for values in line.thin:
    axes.plot(line.x, values, color=hue, linewidth=0.7, alpha=0.4)
  axes.plot(
    line.x,
    line.y,
    color=hue,
    linewidth=1.8,
    marker="o" if line.x[0] == line.x[-1] else "",
    label=line.label or None,
  )
  if line.low:
    axes.fill_between(
      line.x, line.low, line.high, color=hue, alpha=0.15, linewidth=0
    )


def _css_colours(svg: str) -> str:
  """Replaces PAGE's colours in the drawing by the variables of the page."""
  names = {PAGE.ink: "ink", PAGE.faint: "faint", PAGE.grid: "grid"}
  names |= {hue: f"hue-{i}" for i, hue in enumerate(PAGE.hues)}
  for colour, name in names.items():
    svg = svg.replace(colour, f"var(--{name})")
  return svg


def run_plots(
  rows: Sequence[Row], evaluations: Sequence[Evaluation]
) -> list[Plot]:
  """Returns the four curves of a run, those without records included.

  A run with evaluations during RL has a fifth, of these.
  """
  return [
    _success_plot(rows, evaluations),
    *_validation_plot(rows),
    _plot_of(
      rows,
      "Distance to the sampler",
      "log-ratio to the fresh policy slot, nats per token",
      {"": curves.DISTANCE},
    ),
    _plot_of(rows, "Entropy", "nats per token", {"": curves.ENTROPY}),
    _plot_of(
      rows,
      "Staleness",
      "updates between sampling and training",
      {"mean": curves.STALENESS_MEAN, "most": curves.STALENESS_MAX},
    ),
  ]


def write_curves(
  rows: Sequence[Row], evaluations: Sequence[Evaluation], path: pathlib.Path
) -> None:
  """Writes the curves of a run as one picture; its suffix is the format."""
  with _drawing():
    plots = run_plots(rows, evaluations)
    columns = -(-len(plots) // 2)
    figure = _figure((5.5 * columns, 7), dpi=150)
    drawn = figure.subplots(2, columns).flat
    for axes in drawn[len(plots) :]:
      axes.set_axis_off()
    for axes, plot in zip(drawn, plots, strict=False):
      plot.draw(axes, PAPER)
      title = textwrap.fill(f"{plot.title}: {plot.note}", _TITLE_WIDTH)
      axes.set_title(title, loc="left", fontsize=8)
    figure.savefig(path, facecolor="white")


def _success_plot(
  rows: Sequence[Row], evaluations: Sequence[Evaluation]
) -> Plot:
  """Draws success in training; the reward, if nothing says what success is."""
  training = curves.curves_below(rows, RL, curves.SUCCESS)
  if training:
    title, note = "Success by task", "sampled training rollouts, smoothed"
  else:
    training = curves.curves_below(rows, RL, curves.REWARD)
    title, note = "Reward by task", "mean over the latest training rollouts"
  held_out = {
    evaluation.stage: evaluation.tasks
    for evaluation in evaluations
    if evaluation.mode == "greedy"
  }
  before, after = held_out.get("warm_start", {}), held_out.get("rl", {})
  last = max((curve.steps[-1] for curve in training), default=1)
  tasks = sorted({curve.name for curve in training} | {*before, *after})
  lines = [
    _smoothed(curve, curve.name, tasks.index(curve.name)) for curve in training
  ]
  for place, task in enumerate(tasks):
    for x, scores in ((0, before), (last, after)):
      if task in scores:
        lines.append(_marks(x, scores[task], place))
  return Plot(
    name="success",
    title=title,
    note=f"{note}; ● held-out tasks before and after RL, greedy, with 95 % "
    "intervals",
    x_label="updates of RL",
    lines=lines,
    is_share=title.startswith("Success"),
  )


def _validation_plot(rows: Sequence[Row]) -> list[Plot]:
  """Draws success in the evaluations during RL; nothing without one."""
  greedy, sampled = (
    {curve.name: curve for curve in curves.validation(rows, mode)}
    for mode in MODES
  )
  low, high = (
    {
      curve.name: curve.values
      for curve in curves.validation(rows, "greedy", end)
    }
    for end in ("_low", "_high")
  )
  lines = []
  for place, (task, curve) in enumerate(greedy.items()):
    beside = sampled[task].at(curve.steps) if task in sampled else None
    lines.append(
      PlotLine(
        label=task,
        place=place,
        x=curve.steps,
        y=curve.values,
        thin=[beside] if beside else (),
        low=low[task],
        high=high[task],
      )
    )
  if not lines:
    return []
  return [
    Plot(
      name="validation",
      title="Success during RL",
      note="tasks that are not trained on, greedy, with 95 % intervals; "
      "thin: sampled",
      x_label="updates of RL",
      lines=lines,
      is_share=True,
    )
  ]


def _marks(x: float, score: Score, place: int) -> PlotLine:
  return PlotLine(
    label="",
    place=place,
    x=[x],
    y=[score.success],
    low=[score.low],
    high=[score.high],
    is_marks=True,
  )


def _plot_of(
  rows: Sequence[Row], title: str, note: str, metrics: dict[str, str]
) -> Plot:
  """Draws the metrics that were recorded, by label."""
  return Plot(
    name=title.lower(),
    title=title,
    note=note,
    x_label="updates of RL",
    lines=[
      _smoothed(recorded, label, place)
      for place, (label, metric) in enumerate(metrics.items())
      if (recorded := curves.curve(rows, RL, metric))
    ],
  )


def _smoothed(curve: curves.Curve, label: str, place: int) -> PlotLine:
  return PlotLine(
    label=label,
    place=place,
    x=curve.steps,
    y=curve.smooth.values,
    thin=[curve.values],
  )
