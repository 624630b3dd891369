"""What each panel of the curves shows. Draws into what it is handed.

Few marks, all labelled where they stand: no legend, no second axis, no frame.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agentrl_jax.metrics import Row
from launch.report.curves import (
  ENTROPY,
  GRADIENT_NORM,
  KL,
  LOSS,
  QUEUE_FILL,
  REWARD,
  RL,
  STALENESS_MAX,
  STALENESS_MEAN,
  SUCCESS,
  WARM_START,
  Curve,
  curve,
  curves_below,
  spread,
)
from launch.report.summary import Evaluation, Score
from launch.report.theme import Theme, label_lines, tidy

_MANY = 200  # points that one line can show without a smoothed one
_LABEL_GAP = 0.055  # of the panel's height, between two labels


@dataclasses.dataclass(frozen=True)
class Data:
  """What the panels draw from."""

  rows: Sequence[Row]
  evaluations: Sequence[Evaluation]

  @property
  def tasks(self) -> list[str]:
    """All tasks' names: a task has one colour in all panels."""
    names = {each.name for each in curves_below(self.rows, RL, SUCCESS)}
    for evaluation in self.evaluations:
      names |= evaluation.tasks.keys()
    return sorted(names)

  def score(self, stage: str, mode: str, task: str) -> Score | None:
    """That policy's held-out score at a task, the latest if there are more."""
    found = [
      evaluation.tasks[task]
      for evaluation in self.evaluations
      if (evaluation.stage, evaluation.mode) == (stage, mode)
      and task in evaluation.tasks
    ]
    return found[-1] if found else None


def draw_success(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Training success over the steps, between the two held-out evaluations."""
  (axes,) = _axes(figure, 1, theme)
  curves = {each.name: each for each in curves_below(data.rows, RL, SUCCESS)}
  last = max((c.steps[-1] for c in curves.values()), default=1)
  unit = last / 40  # between the marks of one task and those of the next: 2
  width = 2 * unit * len(data.tasks)
  ends = {}  # by task, what its label belongs to
  for position, task in enumerate(data.tasks):
    hue, place = theme.hue(position), (2 * position + 1) * unit
    if task in curves:
      _line(axes, curves[task], hue)
      ends[task] = curves[task].smooth.values[-1]
    _held_out(axes, place - width - unit, unit, "warm_start", task, data, hue)
    end = _held_out(axes, last + unit + place, unit, "rl", task, data, hue)
    if end is not None:
      ends[task] = end
  _label(axes, last + width + unit, ends, data, theme, gap=_LABEL_GAP)
  _share_axis(axes, (0, 0.25, 0.5, 0.75, 1))
  axes.set_xlim(-width - unit, last + width + 1.5 * unit)
  _steps_axis(axes, "RL step")
  inside = [tick for tick in axes.get_xticks() if 0 < tick <= last]
  sides = (-width / 2 - unit, last + width / 2 + unit)
  axes.set_xticks(
    [sides[0], *inside, sides[1]],
    ["warm start", *(f"{tick:g}" for tick in inside), "after RL"],
  )
  if not ends:
    _say_missing(axes, theme)


def draw_reward(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Mean reward of the training rollouts."""
  (axes,) = _axes(figure, 1, theme)
  curves = curves_below(data.rows, RL, REWARD)
  tasks = data.tasks
  for each in curves:
    known = each.name in tasks
    _line(axes, each, theme.hue(tasks.index(each.name)) if known else theme.ink)
  if curves:
    ends = {c.name: c.smooth.values[-1] for c in curves}
    low, high = axes.get_ylim()
    last = max(c.steps[-1] for c in curves)
    _label(axes, last, ends, data, theme, gap=0.08 * (high - low))
  else:
    _say_missing(axes, theme)
  _steps_axis(axes, "RL step")


def draw_loss(figure: FigureBase, data: Data, theme: Theme) -> None:
  """What the warm start minimises."""
  (axes,) = _axes(figure, 1, theme)
  _alone(axes, curve(data.rows, WARM_START, LOSS), theme)
  axes.set_ylim(bottom=0)
  _steps_axis(axes, "warm-start step")


def draw_flow(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Whether the rollouts keep up: staleness above, queue fill below."""
  upper, lower = _axes(figure, 2, theme)
  shown = (
    ("mean", STALENESS_MEAN, theme.ink),
    ("max", STALENESS_MAX, theme.faint),
  )
  stale = [
    (name, hue, found)
    for name, metric, hue in shown
    if (found := curve(data.rows, RL, metric))
  ]
  for _, hue, each in stale:
    upper.plot(each.steps, each.values, color=hue, linewidth=1.2)
  upper.set_ylim(bottom=0)
  if stale:
    heights = spread(
      [each.values[-1] for _, _, each in stale], 0.2 * upper.get_ylim()[1]
    )
    labels = zip(heights, stale, strict=True)
    label_lines(
      upper,
      stale[0][2].steps[-1],
      [(height, name, hue) for height, (name, hue, _) in labels],
    )
  else:
    _say_missing(upper, theme)
  _name(upper, "staleness (versions)", theme)
  _alone(lower, curve(data.rows, RL, QUEUE_FILL), theme)
  _name(lower, "queue fill", theme)
  _share_axis(lower, (0, 0.5, 1))
  _steps_axis(lower, "RL step")


def draw_policy(figure: FigureBase, data: Data, theme: Theme) -> None:
  """How the policy changes and how firmly."""
  names = {
    KL: "KL (nats/token)",
    ENTROPY: "entropy (nats/token)",
    GRADIENT_NORM: "gradient norm",
  }
  for axes, (metric, name) in zip(
    _axes(figure, len(names), theme), names.items(), strict=True
  ):
    _alone(axes, curve(data.rows, RL, metric), theme)
    _name(axes, name, theme)
    axes.yaxis.set_major_locator(MaxNLocator(2))
  _steps_axis(axes, "RL step")


def _axes(figure: FigureBase, count: int, theme: Theme) -> list[Axes]:
  column = figure.subplots(count, 1, sharex=True, squeeze=False)
  for (axes,) in column:
    tidy(axes, theme)
  return [axes for (axes,) in column]


def _line(axes: Axes, drawn: Curve, hue: str) -> None:
  axes.plot(drawn.steps, drawn.values, color=hue, linewidth=0.7, alpha=0.35)
  axes.plot(drawn.steps, drawn.smooth.values, color=hue, linewidth=2)


def _held_out(
  axes: Axes,
  x: float,
  unit: float,
  stage: str,
  task: str,
  data: Data,
  hue: str,
) -> float | None:
  """Draws a task's held-out scores; the height its label belongs to."""
  height = None
  for mode, face, aside in (("sampled", "none", 0.35), ("greedy", hue, -0.35)):
    score = data.score(stage, mode, task)
    if score is None:
      continue
    # Rounding may leave an end of the interval a hair inside.
    arms = [
      [max(score.success - score.low, 0.0)],
      [max(score.high - score.success, 0.0)],
    ]
    marks = axes.errorbar(
      [x + aside * unit],
      [score.success],
      yerr=arms,
      fmt="o",
      color=hue,
      markerfacecolor=face,
      markersize=5,
      linewidth=1.2,
    )
    for artist in marks.get_children():
      artist.set_clip_on(False)
    height = score.success
  expert = data.score("expert", "greedy", task)
  if expert is not None and stage == "rl":
    axes.plot(
      [x - unit * 0.9, x + unit * 0.9],
      [expert.success] * 2,
      color=hue,
      linewidth=1.6,
      linestyle=(0, (2, 1)),
      clip_on=False,
    )
  return height


def _label(
  axes: Axes,
  x: float,
  ends: Mapping[str, float],
  data: Data,
  theme: Theme,
  *,
  gap: float,
) -> None:
  """Writes each name at the height where its line ends, none on another."""
  finite = {name: end for name, end in ends.items() if math.isfinite(end)}
  tasks = data.tasks
  heights = spread(list(finite.values()), gap)
  labels = [
    (h, name, theme.hue(tasks.index(name)) if name in tasks else theme.ink)
    for h, name in zip(heights, finite, strict=True)
  ]
  label_lines(axes, x, labels)


def _alone(axes: Axes, drawn: Curve | None, theme: Theme) -> None:
  if drawn is None:
    _say_missing(axes, theme)
  elif len(drawn.steps) > _MANY:
    _line(axes, drawn, theme.ink)
  else:
    axes.plot(drawn.steps, drawn.values, color=theme.ink, linewidth=1.2)


def _name(axes: Axes, text: str, theme: Theme) -> None:
  axes.set_title(text, loc="left", fontsize=8.5, color=theme.ink, pad=3)


def _share_axis(axes: Axes, ticks: Sequence[float]) -> None:
  axes.set_ylim(0, 1)
  axes.set_yticks(ticks)
  axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def _steps_axis(axes: Axes, name: str) -> None:
  axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
  axes.set_xlabel(name, fontsize=8)


def _say_missing(axes: Axes, theme: Theme) -> None:
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
