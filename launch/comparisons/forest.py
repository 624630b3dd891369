"""Forest plots: differences as points with intervals, one under another."""

import dataclasses
import statistics
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from launch.reports.numbers import points
from launch.reports.plots import Picture, PlotTheme

_WIDTH = 3.6  # inches
_LETTERS = 58  # of a line of text
_REACH = 3.0  # usual reaches of an interval that the axis shows


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForestRow:
  """One difference, as shares: its interval, and a second one below it."""

  label: str
  note: str
  mean: float
  low: float
  high: float
  second: tuple[float, float] | None = None
  is_sure: bool = False  # the mark is filled
  is_faint: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forest(Picture):
  """Differences, the largest at the top; the axis ends before a wild one.

  Between minus and plus `least`, if it is known, a difference is of no
  interest. An interval that the axis does not hold ends in an arrow.
  """

  x_label: str
  rows: Sequence[ForestRow]
  least: float | None = None

  @property
  def size(self) -> tuple[float, float]:
    """Width and height in inches."""
    lines = sum(len(_lines(row)) for row in self.rows)
    return _WIDTH, 0.55 + 0.16 * lines + 0.26 * len(self.rows)

  def draw_on(self, figure: Figure, theme: PlotTheme) -> None:
    """Draws a row of text and an interval for each difference."""
    axes = figure.subplots()
    low, high = self._limits()
    if self.least is not None:
      axes.axvspan(-self.least, self.least, color=theme.grid, alpha=0.6, lw=0)
    y = 0.0
    for row in sorted(self.rows, key=lambda row: -row.mean):
      for number, line in enumerate(_lines(row)):
        axes.text(
          0.0,
          y,
          line,
          transform=axes.get_yaxis_transform(),
          va="center",
          fontsize=7.5,
          color=theme.faint if number or row.is_faint else theme.ink,
        )
        y += 0.16
      _draw_row(axes, row, y, theme, (low, high))
      y += 0.26
    axes.set_xlim(low, high)
    axes.set_ylim(y - 0.05, -0.14)
    _tidy(axes, theme, self.x_label)

  def _limits(self) -> tuple[float, float]:
    usual = statistics.median(row.high - row.low for row in self.rows) / 2
    ends = [row.mean for row in self.rows] + [0.0]
    low = max(min(ends) - _REACH * usual, min(row.low for row in self.rows))
    high = min(max(ends) + _REACH * usual, max(row.high for row in self.rows))
    margin = 0.05 * (high - low) or 0.01
    return min(low, 0.0) - margin, max(high, 0.0) + margin


def _lines(row: ForestRow) -> list[str]:
  return [
    line
    for text in (row.label, row.note)
    for line in textwrap.wrap(text, _LETTERS)
  ]


def _draw_row(
  axes: Axes,
  row: ForestRow,
  y: float,
  theme: PlotTheme,
  limits: tuple[float, float],
) -> None:
  hue = theme.faint if row.is_faint else theme.hues[0]
  axes.plot([0, 0], [y - 0.09, y + 0.13], color=theme.faint, linewidth=0.8)
  if row.second:
    _interval(axes, row.second, y + 0.06, theme.faint, 0.8, limits)
  _interval(axes, (row.low, row.high), y, hue, 1.8, limits)
  axes.plot(
    [row.mean],
    [y],
    marker="o",
    markersize=5,
    color=hue,
    markerfacecolor=hue if row.is_sure else "none",
  )


def _interval(
  axes: Axes,
  ends: tuple[float, float],
  y: float,
  hue: str,
  width: float,
  limits: tuple[float, float],
) -> None:
  """Draws an interval, with an arrow at an end that is beyond the axis."""
  shown = max(ends[0], limits[0]), min(ends[1], limits[1])
  axes.plot(shown, [y, y], color=hue, linewidth=width)
  for end, seen, arrow in zip(ends, shown, "<>", strict=True):
    if end != seen:
      axes.plot([seen], [y], arrow, color=hue, markersize=4, clip_on=False)


def _tidy(axes: Axes, theme: PlotTheme, x_label: str) -> None:
  for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
  axes.spines["bottom"].set_color(theme.faint)
  axes.patch.set_visible(False)
  axes.set_yticks([])
  axes.tick_params(colors=theme.faint, labelsize=8, length=0)
  axes.xaxis.set_major_locator(MaxNLocator(5))
  axes.xaxis.set_major_formatter(
    FuncFormatter(lambda x, _: points(x).removesuffix(".0") if x else "0")
  )
  axes.set_xlabel(x_label, color=theme.faint, fontsize=8)
