"""Panels about policy slots: what they say, how far they are, what they bring.

Metrics are those of `train.policy_slot_metrics` and
`controller.cross_policy`.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import MaxNLocator

from launch.report.curves import RL, Curve, curves_below, spread
from launch.report.marks import axes_in, name_axes, say_missing, steps_axis
from launch.report.panels import Data
from launch.report.theme import Theme, label_lines

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
    curves = curves_below(data.rows, RL, prefix)
    shown = [each for each in curves if "/" not in each.name]
    first = len(data.tasks)  # their colours are taken
    hues = [theme.hue(first + n) for n in range(len(shown))]
    _draw(axes, shown, hues, title, theme)
  steps_axis(axes, "RL step")


def draw_policy_slots_by_task(
  figure: FigureBase, data: Data, theme: Theme
) -> None:
  """Each older policy slot in each task; a task has one colour in all
  panels.
  """
  tasks = data.tasks
  for axes, (prefix, title) in zip(
    axes_in(figure, len(BY_TASK), theme), BY_TASK.items(), strict=True
  ):
    curves = curves_below(data.rows, RL, prefix)
    older = [
      each for each in curves if not each.name.startswith("policy_slot0/")
    ]
    hues = [
      theme.hue(tasks.index(task)) if task in tasks else theme.ink
      for task in (each.name.partition("/")[2] for each in older)
    ]
    _draw(axes, older, hues, title, theme)
  steps_axis(axes, "RL step")


def _draw(
  axes: Axes,
  curves: Sequence[Curve],
  hues: Sequence[str],
  title: str,
  theme: Theme,
) -> None:
  name_axes(axes, title, theme)
  axes.yaxis.set_major_locator(MaxNLocator(2))
  if not curves:
    say_missing(axes, theme)
    return
  for each, hue in zip(curves, hues, strict=True):
    axes.plot(each.steps, each.smooth.values, color=hue, linewidth=1.2)
  low, high = axes.get_ylim()
  heights = spread(
    [each.smooth.values[-1] for each in curves], 0.22 * (high - low)
  )
  names = [each.name.replace("/", " ") for each in curves]
  last = max(each.steps[-1] for each in curves)
  label_lines(axes, last, list(zip(heights, names, hues, strict=True)))
