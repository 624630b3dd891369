"""Curves of arms over several costs: means over seeds, with bands."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from launch.comparisons.finals import Finals
from launch.comparisons.runs import Arm, Run
from launch.comparisons.statistics import FEW_SEEDS, interval_reach
from launch.reports.curves import (
  DISTANCE,
  ENTROPY,
  EVALUATED,
  GROUP_STD,
  RL,
  STALENESS_MEAN,
  SUCCESS,
  VALIDATION,
  Curve,
)
from launch.reports.metrics_file import Row
from launch.reports.plots import Plot, PlotLine
from launch.reports.summary import MODES, PASS

UPDATES, EPISODES, TOKENS, MINUTES = COSTS = (
  "updates",
  "episodes",
  "trained tokens",
  "minutes of RL",
)
# Metric, title, note.
DIAGNOSTICS = (
  (ENTROPY, "Entropy", "nats per token"),
  (GROUP_STD, "Spread of a group", "std of its rewards, mean of the batch"),
  (
    DISTANCE,
    "Log-ratio of the fresh sampler",
    "mean |log ratio|, nats per token",
  ),
  (STALENESS_MEAN, "Staleness", "updates between sampling and training"),
)
_POINTS = 60
_WINDOW = 5  # updates that a curve is smoothed over
_MOST_BANDS = 3  # that can be told apart in one plot


def costs_of(rows: Sequence[Row]) -> dict[str, list[float]]:
  """Returns what each update of RL had cost by its end."""

  def total(*names: str) -> list[float]:
    each = (sum(row.values.get(name, 0.0) for name in names) for row in rows)
    return list(itertools.accumulate(each))

  seconds = total("seconds/wait", "seconds/train")
  return {
    UPDATES: [float(row.step) for row in rows],
    EPISODES: total("batch/trajectories"),
    TOKENS: total("batch/trained_tokens"),
    MINUTES: [second / 60 for second in seconds],
  }


def make_plots(arms: Sequence[Arm], scores: Sequence[Finals]) -> list[Plot]:
  """Returns the plots for which some run has records."""
  tasks = sorted(
    {
      name.removeprefix(f"{SUCCESS}/")
      for arm in arms
      for run in arm.runs.values()
      for row in run.rows
      if row.stage == RL
      for name in row.values
      if name.startswith(f"{SUCCESS}/")
    }
  )
  success = [f"{SUCCESS}/{task}" for task in tasks]
  note = "mean of tasks, sampled training rollouts"
  plots = [
    _plot(arms, success, f"Success by {cost}", note, cost) for cost in COSTS
  ]
  plots += [
    _plot(
      arms,
      [f"{EVALUATED}/{task}" for task in tasks],
      f"Success during RL, {mode}",
      "mean of tasks, on some that are not trained on",
      stage=f"{VALIDATION}_{mode}",
    )
    for mode in MODES
  ]
  if len(tasks) > 1:
    note = "success of sampled training rollouts"
    plots += [_plot(arms, [f"{SUCCESS}/{t}"], t, note) for t in tasks]
  plots += [_plot(arms, [metric], *words) for metric, *words in DIAGNOSTICS]
  plots += [_pass_plot(each) for each in scores if each.mode == PASS]
  return [plot for plot in plots if plot.lines]


def _plot(
  arms: Sequence[Arm],
  metrics: Sequence[str],
  title: str,
  note: str,
  cost: str = UPDATES,
  stage: str = RL,
) -> Plot:
  lines = [
    _line(arm, metrics, cost, stage, place) for place, arm in enumerate(arms)
  ]
  is_share = bool(metrics) and SUCCESS in metrics[0]
  return _banded(
    title, note, cost, [line for line in lines if line], is_share=is_share
  )


def _banded(
  title: str,
  note: str,
  x_label: str,
  lines: Sequence[PlotLine],
  *,
  is_share: bool,
  x_ticks: Sequence[int] = (),
) -> Plot:
  """Makes a plot; of more than three lines the bands would hide each other."""
  if len(lines) > _MOST_BANDS:
    lines = [
      PlotLine(label=each.label, place=each.place, x=each.x, y=each.y)
      for each in lines
    ]
  return Plot(
    name=title.lower().replace(", ", "_").replace(" ", "_"),
    title=title,
    note=note,
    x_label=x_label,
    lines=lines,
    is_share=is_share,
    x_ticks=x_ticks,
  )


def _line(
  arm: Arm, metrics: Sequence[str], cost: str, stage: str, place: int
) -> PlotLine | None:
  """Returns the mean of the metrics over seeds; None if no run has them.

  The line ends where the first seed ends. Around it is the 95 % interval of the
  mean, or each seed if there are fewer than three.
  """
  curves = [
    curve
    for run in arm.runs.values()
    if (curve := _smoothed(run, metrics, cost, stage))
  ]
  begin = max((x[0] for x, _ in curves), default=0.0)
  end = min((x[-1] for x, _ in curves), default=-1.0)
  if end < begin:
    return None
  at = np.linspace(begin, end, _POINTS)
  values = np.array([np.interp(at, x, y) for x, y in curves])
  is_band = len(curves) >= FEW_SEEDS
  mean = values.mean(0)
  reach = np.array([interval_reach(of) for of in values.T if is_band])
  return PlotLine(
    label=f"{arm.name} (n = {len(curves)})",
    place=place,
    x=at.tolist(),
    y=mean.tolist(),
    thin=[] if is_band else values.tolist(),
    low=(mean - reach).tolist() if is_band else (),
    high=(mean + reach).tolist() if is_band else (),
  )


def _smoothed(
  run: Run, metrics: Sequence[str], cost: str, stage: str
) -> tuple[Sequence[float], Sequence[float]] | None:
  """Returns costs, and the mean of the metrics, of RL over 5 updates."""
  rows = [row for row in run.rows if row.stage == stage]
  points = [
    (x, math.fsum(row.values[m] for m in metrics) / len(metrics))
    for x, row in zip(costs_of(rows)[cost], rows, strict=True)
    if metrics
    and all(math.isfinite(row.values.get(m, math.nan)) for m in metrics)
  ]
  if not points:
    return None
  x, y = zip(*points, strict=True)
  return x, Curve("", (), y).smoothed(_WINDOW if stage == RL else 1).values


def _pass_plot(of: Finals) -> Plot:
  ks = [int(name.partition("@")[2]) for name in of.columns]
  lines = []
  for place, level in enumerate(of.levels):
    rates = list(level.columns.values())
    is_band = level.num_seeds >= FEW_SEEDS
    lines.append(
      PlotLine(
        label=f"{level.arm} (n = {level.num_seeds})",
        place=place,
        x=ks[: len(rates)],
        y=[rate.mean for rate in rates],
        low=[rate.low for rate in rates] if is_band else (),
        high=[rate.high for rate in rates] if is_band else (),
      )
    )
  note = "share of held-out tasks that one of k sampled attempts solves"
  return _banded("Pass@k", note, "k", lines, is_share=True, x_ticks=ks)
