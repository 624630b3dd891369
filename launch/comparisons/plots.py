"""Plots of a comparison: arms over each other, with bands over seeds."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import EngFormatter, MaxNLocator

from launch.comparisons.bands import (
  COSTS,
  LEAST_SEEDS,
  UPDATES,
  Band,
  band,
)
from launch.comparisons.finals import Finals
from launch.comparisons.runs import Arm
from launch.reports.curves import (
  DISTANCE,
  ENTROPY,
  GROUP_STD,
  MUTUAL_INFORMATION,
  STALENESS_MEAN,
  SUCCESS,
)
from launch.reports.plots import draw_png, draw_svg
from launch.reports.summary import PASS
from launch.reports.theme import PAGE, PAPER, Theme, tidy

SAMPLE_SIZE = "policy/truncated_sample_size/policy_slot0"
KL = "policy/kl_to_behavior"
# Metric, title, note.
DIAGNOSTICS = (
  (ENTROPY, "Entropy", "nats per token"),
  (GROUP_STD, "Spread of a group", "std of its rewards, mean of the batch"),
  (
    MUTUAL_INFORMATION,
    "Mutual information",
    "of first answers and their prompts, nats per answer",
  ),
  (
    DISTANCE,
    "Log-ratio of the fresh sampler",
    "mean |log ratio|, nats per token",
  ),
  (KL, "KL to the behavior policy", "nats per token, all policy slots"),
  (SAMPLE_SIZE, "Effective sample size", "of ratios bounded at 2, fresh slot"),
  (STALENESS_MEAN, "Staleness", "updates between sampling and training"),
  ("seconds/wait", "The learner's wait", "seconds per batch"),
)
_SIZE = (3.6, 2.7)  # inches
_WIDE = (7.2, 3.4)


@dataclasses.dataclass(frozen=True)
class Plot:
  """One plot: its title, note, and drawing in a theme."""

  name: str  # of its file
  title: str
  note: str
  draw: Callable[[FigureBase, Theme], None]
  is_wide: bool = False

  def svg(self, *, is_wide: bool = False) -> str:
    """Returns the drawing for a page."""
    return draw_svg(
      lambda figure: self.draw(figure, PAGE),
      size=_WIDE if is_wide else _SIZE,
      name=f"{self.name} {is_wide}",
    )

  def write(self, folder: pathlib.Path) -> None:
    """Writes the drawing as a picture."""
    draw_png(
      lambda figure: self.draw(figure, PAPER),
      folder / f"{self.name}.png",
      size=_WIDE if self.is_wide else _SIZE,
    )


def make_plots(
  arms: Sequence[Arm], tasks: Sequence[str], found: Sequence[Finals] = ()
) -> list[Plot]:
  """Returns the plots for which some run has records."""
  mean = [f"{SUCCESS}/{task}" for task in tasks]
  plots = [
    _plot(
      arms,
      mean,
      cost,
      name=f"success_by_{cost.split()[0]}",
      title=f"Success by {cost}",
      note="mean of tasks, sampled training rollouts",
      is_wide=cost == UPDATES,
      is_share=True,
    )
    for cost in COSTS
  ]
  if len(tasks) > 1:
    plots += [
      _plot(
        arms,
        [metric],
        UPDATES,
        name=f"success_{task}",
        title=task,
        note="success of sampled training rollouts, by updates",
        is_share=True,
      )
      for metric, task in zip(mean, tasks, strict=True)
    ]
  plots += [
    _plot(
      arms,
      [metric],
      UPDATES,
      name=metric.replace("/", "_"),
      title=title,
      note=f"{note}, by updates",
    )
    for metric, title, note in DIAGNOSTICS
  ]
  plots += [_pass_plot(arms, each) for each in found if each.mode == PASS]
  return [plot for plot in plots if plot is not None]


def _pass_plot(arms: Sequence[Arm], of: Finals) -> Plot:
  ks = [int(name.partition("@")[2]) for name in of.tasks]
  places = {arm.name: place for place, arm in enumerate(arms)}

  def draw(figure: FigureBase, theme: Theme) -> None:
    axes = figure.subplots()
    for level in of.levels:
      hue = theme.hue(places[level.arm])
      rates = [level.tasks[name] for name in of.tasks if name in level.tasks]
      at = ks[: len(rates)]
      label = f"{level.arm} ({level.num_seeds})"
      means = [rate.mean for rate in rates]
      axes.plot(at, means, color=hue, linewidth=1.8, label=label, marker=".")
      if level.num_seeds >= LEAST_SEEDS:
        axes.fill_between(
          at,
          [rate.low for rate in rates],
          [rate.high for rate in rates],
          color=hue,
          alpha=0.15,
          linewidth=0,
        )
    tidy(axes, theme)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("k", color=theme.faint, fontsize=8)
    axes.tick_params(colors=theme.faint, labelsize=8, length=0)
    axes.legend(frameon=False, fontsize=8, labelcolor=theme.ink, loc="best")

  return Plot(
    "pass_at_k",
    "Pass@k",
    "share of held-out tasks that one of k sampled attempts solves",
    draw,
  )


def _plot(
  arms: Sequence[Arm],
  metrics: Sequence[str],
  cost: str,
  *,
  name: str,
  title: str,
  note: str,
  is_wide: bool = False,
  is_share: bool = False,
) -> Plot | None:
  bands = [
    (i, found)
    for i, arm in enumerate(arms)
    if (found := band(arm, metrics, cost))
  ]
  if not metrics or not bands:
    return None

  def draw(figure: FigureBase, theme: Theme) -> None:
    axes = figure.subplots()
    for i, each in bands:
      _draw_band(axes, each, theme, i)
    tidy(axes, theme)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(cost, color=theme.faint, fontsize=8)
    if is_share:
      axes.set_ylim(0, 1)
      axes.yaxis.set_major_formatter("{x:.0%}")
    axes.tick_params(colors=theme.faint, labelsize=8, length=0)
    if len(bands) > 1:
      axes.legend(frameon=False, fontsize=8, labelcolor=theme.ink, loc="best")

  return Plot(name, title, note, draw, is_wide)


def _draw_band(axes: Axes, each: Band, theme: Theme, place: int) -> None:
  hue = theme.hue(place)
  label = f"{each.arm} ({each.num_seeds})"
  axes.plot(each.cost_P, each.mean_P, color=hue, linewidth=1.8, label=label)
  if each.num_seeds >= LEAST_SEEDS:
    low_P, high_P = each.mean_P - each.reach_P, each.mean_P + each.reach_P
    axes.fill_between(
      each.cost_P, low_P, high_P, color=hue, alpha=0.15, linewidth=0
    )
  elif each.num_seeds > 1:
    axes.plot(each.cost_P, each.seeds_SP.T, color=hue, linewidth=0.7, alpha=0.6)
  if each.cost_P[-1] == each.cost_P[0]:
    axes.plot(each.cost_P[:1], each.mean_P[:1], "o", color=hue)
