"""What panels are made of: axes, lines, their names and their scales."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import MaxNLocator, PercentFormatter

from launch.report.curves import Curve
from launch.report.theme import Theme, tidy

_MANY = 200  # points that one line can show without a smoothed one


def axes_in(figure: FigureBase, count: int, theme: Theme) -> list[Axes]:
  """So many, one below the other, with one axis of steps."""
  column = figure.subplots(count, 1, sharex=True, squeeze=False)
  for (axes,) in column:
    tidy(axes, theme)
  return [axes for (axes,) in column]


def draw_line(axes: Axes, drawn: Curve, hue: str) -> None:
  """A thin line through the points and a bold one through their means."""
  axes.plot(drawn.steps, drawn.values, color=hue, linewidth=0.7, alpha=0.35)
  axes.plot(drawn.steps, drawn.smooth.values, color=hue, linewidth=2)


def draw_alone(axes: Axes, drawn: Curve | None, theme: Theme) -> None:
  """The only curve of its axes, if it was recorded."""
  if drawn is None:
    say_missing(axes, theme)
  elif len(drawn.steps) > _MANY:
    draw_line(axes, drawn, theme.ink)
  else:
    axes.plot(drawn.steps, drawn.values, color=theme.ink, linewidth=1.2)


def name_axes(axes: Axes, text: str, theme: Theme) -> None:
  """Says above the axes what they show."""
  axes.set_title(text, loc="left", fontsize=8.5, color=theme.ink, pad=3)


def share_axis(axes: Axes, ticks: Sequence[float]) -> None:
  """Heights are shares of one, in percent."""
  axes.set_ylim(0, 1)
  axes.set_yticks(ticks)
  axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def steps_axis(axes: Axes, name: str) -> None:
  """Whole steps below the axes."""
  axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
  axes.set_xlabel(name, fontsize=8)


def say_missing(axes: Axes, theme: Theme) -> None:
  """Says that there is nothing to draw."""
  axes.text(
    0.5,
    0.5,
    "not recorded",
    transform=axes.transAxes,
    ha="center",
    va="center",
    fontsize=9,
    color=theme.faint,
  )
