"""Colours and lines of a plot, for paper and for light and dark pages.

The hues are those of Okabe and Ito, which the colour-blind can tell apart. On
a page they become CSS variables, so that the page decides their values.
"""

import dataclasses
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import MaxNLocator, PercentFormatter

from launch.reports.curves import Curve

OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b37f00", "#56b4e9")


@dataclasses.dataclass(frozen=True)
class Theme:
  """The colours that the panels draw with."""

  ink: str
  faint: str  # axes, ticks, what is secondary
  grid: str
  hues: tuple[str, ...]

  def hue(self, position: int) -> str:
    """Returns the colour of the task at `position`; colours repeat."""
    return self.hues[position % len(self.hues)]


PAPER = Theme(ink="#1a1c20", faint="#6b7078", grid="#e4e6ea", hues=OKABE_ITO)

# Colours that matplotlib can parse and nothing else uses: `css_colours` turns
# them into the page's own after drawing.
PAGE = Theme(
  ink="#010203",
  faint="#010204",
  grid="#010205",
  hues=tuple(f"#0102{i:02x}" for i in range(16, 16 + len(OKABE_ITO))),
)


def css_colours(svg: str) -> str:
  """Replaces PAGE's colours in the drawing by the variables of the page."""
  names = {PAGE.ink: "ink", PAGE.faint: "faint", PAGE.grid: "grid"}
  names |= {hue: f"hue-{i}" for i, hue in enumerate(PAGE.hues)}
  for colour, name in names.items():
    svg = svg.replace(colour, f"var(--{name})")
  return svg


def tidy(axes: Axes, theme: Theme) -> None:
  """Reduces the frame to a baseline, ticks, and faint rules."""
  for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
  axes.spines["bottom"].set_color(theme.faint)
  axes.grid(axis="y", color=theme.grid, linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(
    colors=theme.faint, labelcolor=theme.faint, labelsize=8, length=0
  )
  axes.xaxis.label.set_color(theme.faint)
  axes.patch.set_visible(False)


def label_lines(
  axes: Axes,
  x: float,
  labels: Sequence[tuple[float, str, str]],
) -> None:
  """Writes each (height, text, colour) beside the point (x, height)."""
  for height, text, colour in labels:
    axes.annotate(
      text,
      (x, height),
      xytext=(6, 0),
      textcoords="offset points",
      va="center",
      fontsize=8.5,
      color=colour,
      annotation_clip=False,
    )


_MANY = 200  # points that one line can show without a smoothed one


def axes_in(figure: FigureBase, count: int, theme: Theme) -> list[Axes]:
  """Makes `n` axes, one below the other, with one axis of steps."""
  column = figure.subplots(count, 1, sharex=True, squeeze=False)
  for (axes,) in column:
    tidy(axes, theme)
  return [axes for (axes,) in column]


def draw_line(axes: Axes, drawn: Curve, hue: str) -> None:
  """A thin line through the points and a bold one through their means."""
  axes.plot(drawn.steps, drawn.values, color=hue, linewidth=0.7, alpha=0.35)
  axes.plot(drawn.steps, drawn.smooth.values, color=hue, linewidth=2)


def draw_alone(axes: Axes, drawn: Curve | None, theme: Theme) -> None:
  """Draws the only curve of its axes, if it was recorded."""
  if drawn is None:
    say_missing(axes, theme)
  elif len(drawn.steps) > _MANY:
    draw_line(axes, drawn, theme.ink)
  else:
    axes.plot(drawn.steps, drawn.values, color=theme.ink, linewidth=1.2)


def name_axes(axes: Axes, text: str, theme: Theme) -> None:
  """Writes a title above the axes."""
  axes.set_title(text, loc="left", fontsize=8.5, color=theme.ink, pad=3)


def share_axis(axes: Axes, ticks: Sequence[float]) -> None:
  """Formats heights as percent."""
  axes.set_ylim(0, 1)
  axes.set_yticks(ticks)
  axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def steps_axis(axes: Axes, name: str) -> None:
  """Formats the axis below as whole steps."""
  axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
  axes.set_xlabel(name, fontsize=8)


def say_missing(axes: Axes, theme: Theme) -> None:
  """Writes that there is nothing to draw."""
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
