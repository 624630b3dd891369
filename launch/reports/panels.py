"""Contents of each panel of curves; draws into given axes.

Few marks, all labelled in place: no legend, no second axis, no frame.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import MaxNLocator

from agentrl_jax.metrics import Row
from launch.reports import curves
from launch.reports.numbers import stage_name
from launch.reports.summary import Evaluation, Score
from launch.reports.theme import (
  Theme,
  axes_in,
  draw_alone,
  draw_line,
  label_lines,
  name_axes,
  say_missing,
  share_axis,
  steps_axis,
)

_LABEL_GAP = 0.055  # of the panel's height, between two labels


@dataclasses.dataclass(frozen=True)
class Data:
  """Inputs of the panels."""

  rows: Sequence[Row]
  evaluations: Sequence[Evaluation]
  has_warm_start: bool = True

  @property
  def start(self) -> str:
    """The name of the policy that reinforcement learning begins with."""
    return stage_name("warm_start", has_warm_start=self.has_warm_start)

  @property
  def tasks(self) -> list[str]:
    """Names of all tasks: a task has one colour in all panels."""
    names = {
      each.name
      for each in curves.curves_below(self.rows, curves.RL, curves.SUCCESS)
    }
    for evaluation in self.evaluations:
      names |= evaluation.tasks.keys()
    return sorted(names)

  def score(self, stage: str, mode: str, task: str) -> Score | None:
    """The policy's latest held-out score at a task."""
    found = [
      evaluation.tasks[task]
      for evaluation in self.evaluations
      if (evaluation.stage, evaluation.mode) == (stage, mode)
      and task in evaluation.tasks
    ]
    return found[-1] if found else None


def draw_success(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Training success over the steps, between the two held-out evaluations."""
  (axes,) = axes_in(figure, 1, theme)
  recorded = {
    each.name: each
    for each in curves.curves_below(data.rows, curves.RL, curves.SUCCESS)
  }
  last = max((c.steps[-1] for c in recorded.values()), default=1)
  unit = last / 40  # between the marks of one task and those of the next: 2
  width = 2 * unit * len(data.tasks)
  ends = {}  # by task, what its label belongs to
  for position, task in enumerate(data.tasks):
    hue, place = theme.hue(position), (2 * position + 1) * unit
    if task in recorded:
      draw_line(axes, recorded[task], hue)
      ends[task] = recorded[task].smooth.values[-1]
    _held_out(axes, place - width - unit, unit, "warm_start", task, data, hue)
    end = _held_out(axes, last + unit + place, unit, "rl", task, data, hue)
    if end is not None:
      ends[task] = end
  _label(axes, last + width + unit, ends, data, theme, gap=_LABEL_GAP)
  share_axis(axes, (0, 0.25, 0.5, 0.75, 1))
  axes.set_xlim(-width - unit, last + width + 1.5 * unit)
  steps_axis(axes, "RL step")
  inside = [tick for tick in axes.get_xticks() if 0 < tick <= last]
  sides = (-width / 2 - unit, last + width / 2 + unit)
  axes.set_xticks(
    [sides[0], *inside, sides[1]],
    [data.start, *(f"{tick:g}" for tick in inside), "after RL"],
  )
  if not ends:
    say_missing(axes, theme)


def draw_reward(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Mean reward of the training rollouts."""
  (axes,) = axes_in(figure, 1, theme)
  recorded = curves.curves_below(data.rows, curves.RL, curves.REWARD)
  tasks = data.tasks
  for each in recorded:
    known = each.name in tasks
    draw_line(
      axes, each, theme.hue(tasks.index(each.name)) if known else theme.ink
    )
  if recorded:
    ends = {c.name: c.smooth.values[-1] for c in recorded}
    low, high = axes.get_ylim()
    last = max(c.steps[-1] for c in recorded)
    _label(axes, last, ends, data, theme, gap=0.08 * (high - low))
  else:
    say_missing(axes, theme)
  steps_axis(axes, "RL step")


def draw_loss(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Loss of the warm start."""
  (axes,) = axes_in(figure, 1, theme)
  draw_alone(
    axes, curves.curve(data.rows, curves.WARM_START, curves.LOSS), theme
  )
  axes.set_ylim(bottom=0)
  steps_axis(axes, "warm-start step")


def draw_flow(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Staleness above and queue fill below: do rollouts keep up with training."""
  upper, lower = axes_in(figure, 2, theme)
  shown = (
    ("mean", curves.STALENESS_MEAN, theme.ink),
    ("max", curves.STALENESS_MAX, theme.faint),
  )
  stale = [
    (name, hue, found)
    for name, metric, hue in shown
    if (found := curves.curve(data.rows, curves.RL, metric))
  ]
  for _, hue, each in stale:
    upper.plot(each.steps, each.values, color=hue, linewidth=1.2)
  upper.set_ylim(bottom=0)
  if stale:
    heights = curves.spread(
      [each.values[-1] for _, _, each in stale], 0.2 * upper.get_ylim()[1]
    )
    labels = zip(heights, stale, strict=True)
    label_lines(
      upper,
      stale[0][2].steps[-1],
      [(height, name, hue) for height, (name, hue, _) in labels],
    )
  else:
    say_missing(upper, theme)
  name_axes(upper, "staleness (versions)", theme)
  draw_alone(
    lower, curves.curve(data.rows, curves.RL, curves.QUEUE_FILL), theme
  )
  name_axes(lower, "queue fill", theme)
  share_axis(lower, (0, 0.5, 1))
  steps_axis(lower, "RL step")


def draw_policy(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Change and entropy of the policy."""
  names = {
    curves.DISTANCE: "log-ratio to the sampler, policy slot 0 (nats/token)",
    curves.DRIFT: "drift of the engine (nats/token)",
    curves.ENTROPY: "entropy (nats/token)",
    curves.GRADIENT_NORM: "gradient norm",
  }
  for axes, (metric, name) in zip(
    axes_in(figure, len(names), theme), names.items(), strict=True
  ):
    draw_alone(axes, curves.curve(data.rows, curves.RL, metric), theme)
    name_axes(axes, name, theme)
    axes.yaxis.set_major_locator(MaxNLocator(2))
  steps_axis(axes, "RL step")


def _held_out(
  axes: Axes,
  x: float,
  unit: float,
  stage: str,
  task: str,
  data: Data,
  hue: str,
) -> float | None:
  """Draws a task's held-out scores; returns the height of its label."""
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
  """Writes each name at the end of its line, without overlaps."""
  finite = {name: end for name, end in ends.items() if math.isfinite(end)}
  tasks = data.tasks
  heights = curves.spread(list(finite.values()), gap)
  labels = [
    (h, name, theme.hue(tasks.index(name)) if name in tasks else theme.ink)
    for h, name in zip(heights, finite, strict=True)
  ]
  label_lines(axes, x, labels)


OF_POLICY_SLOTS = {
  "policy/share_of_tokens": "share of tokens",
  "policy/abs_log_ratio": "log-ratio to the policy (nats/token)",
  "policy/kl_to_behavior": "KL to the policy (nats/token)",
  "policy/truncated_sample_size": "effective sample size, ratios held at 2",
}
BY_TASK = {
  "policy_slots/weight": "weight",
  "policy_slots/success": "success of its attempts",
  "policy_slots/contribution": "contribution to success",
}


def draw_policy_slots(figure: FigureBase, data: Data, theme: Theme) -> None:
  """Each policy slot over the steps, all tasks together."""
  for axes, (prefix, title) in zip(
    axes_in(figure, len(OF_POLICY_SLOTS), theme),
    OF_POLICY_SLOTS.items(),
    strict=True,
  ):
    recorded = curves.curves_below(data.rows, curves.RL, prefix)
    shown = [each for each in recorded if "/" not in each.name]
    first = len(data.tasks)  # their colours are taken
    hues = [theme.hue(first + n) for n in range(len(shown))]
    _draw(axes, shown, hues, title, theme)
  steps_axis(axes, "RL step")


def draw_policy_slots_by_task(
  figure: FigureBase, data: Data, theme: Theme
) -> None:
  """Each older policy slot in each task, in the colour of the task."""
  tasks = data.tasks
  for axes, (prefix, title) in zip(
    axes_in(figure, len(BY_TASK), theme), BY_TASK.items(), strict=True
  ):
    recorded = curves.curves_below(data.rows, curves.RL, prefix)
    older = [
      each for each in recorded if not each.name.startswith("policy_slot0/")
    ]
    hues = [
      theme.hue(tasks.index(task)) if task in tasks else theme.ink
      for task in (each.name.partition("/")[2] for each in older)
    ]
    _draw(axes, older, hues, title, theme)
  steps_axis(axes, "RL step")


def _draw(
  axes: Axes,
  recorded: Sequence[curves.Curve],
  hues: Sequence[str],
  title: str,
  theme: Theme,
) -> None:
  name_axes(axes, title, theme)
  axes.yaxis.set_major_locator(MaxNLocator(2))
  if not recorded:
    say_missing(axes, theme)
    return
  for each, hue in zip(recorded, hues, strict=True):
    axes.plot(each.steps, each.smooth.values, color=hue, linewidth=1.2)
  low, high = axes.get_ylim()
  heights = curves.spread(
    [each.smooth.values[-1] for each in recorded], 0.22 * (high - low)
  )
  names = [each.name.replace("/", " ") for each in recorded]
  last = max(each.steps[-1] for each in recorded)
  label_lines(axes, last, list(zip(heights, names, hues, strict=True)))
