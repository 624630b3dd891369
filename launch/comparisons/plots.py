"""Plots of a comparison: differences, and curves with bands over seeds."""

import dataclasses
import math
from collections.abc import Sequence

from launch.comparisons.bands import COSTS, UPDATES, band
from launch.comparisons.finals import MEAN, Change, Finals
from launch.comparisons.forest import Forest, ForestRow
from launch.comparisons.runs import Arm
from launch.comparisons.statistics import FEW_SEEDS, seeds_text
from launch.reports import numbers
from launch.reports.curves import (
  DISTANCE,
  ENTROPY,
  EVALUATED,
  GROUP_STD,
  MUTUAL_INFORMATION,
  RL,
  STALENESS_MEAN,
  SUCCESS,
  VALIDATION,
)
from launch.reports.plots import Picture, Plot, PlotLine, SmallMultiples, fitted
from launch.reports.summary import MODES, PASS

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


# Plots that are not folded.
FIRST = (
  "success_by_updates",
  *(f"success_during_{mode}" for mode in MODES),
  "pass_at_k",
)
MOST_OVERLAID = 3  # arms whose bands can be told apart in one plot


def forests(
  finals: Sequence[Finals], least: float | None = None
) -> list[Forest]:
  """Returns the differences after RL, a plot for each mode.

  Of the mean of tasks, or of each task where there is none. Differences below
  `least` are of no interest, if it is known.
  """
  return [
    Forest(
      name=f"differences_{of.mode}".replace(", ", "_").replace(" ", "_"),
      title=f"Differences, {of.mode}",
      note=_how(of),
      x_label="points of success",
      rows=rows,
      least=least,
    )
    for of in finals
    if of.stage == RL and of.mode != PASS
    if (rows := [row for each in of.changes for row in _rows(each)])
  ]


def _how(of: Finals) -> str:
  tests = [each for change in of.changes for each in change.tasks.values()]
  note = "95 % intervals; filled: it leaves out zero"
  if any(each.first != each.paired for each in tests):
    note += (
      ". Thick: for all rows of a task together, by all arms' seeds; thin: the "
      "paired t of the two arms alone"
    )
  return note


def _rows(change: Change) -> list[ForestRow]:
  columns = [MEAN] if MEAN in change.tasks else list(change.tasks)
  return [_row(change, column) for column in columns]


def _row(change: Change, column: str) -> ForestRow:
  tests = change.tasks[column]
  first, paired = tests.first, tests.paired
  is_few = first.n < FEW_SEEDS
  seeds = seeds_text(first.n) if is_few else f"{first.n} seeds"
  note = f"{numbers.points(first.mean)}; {seeds}"
  if not math.isnan(first.p):
    interval = numbers.signed_interval(first.low, first.high)
    note = (
      f"{numbers.points(first.mean)} ({interval}; {numbers.p_value(first.p)}"
    )
    note += "" if tests.is_pooled or first == paired else ", not pooled"
    note += f"); {seeds}"
  has_interval = not math.isnan(first.low)
  return ForestRow(
    label=change.label + ("" if column == MEAN else f", {column}"),
    note=note,
    mean=first.mean,
    low=first.low if has_interval else first.mean,
    high=first.high if has_interval else first.mean,
    second=None
    if first == paired or not has_interval
    else (paired.low, paired.high),
    is_sure=first.is_different and not is_few,
    is_faint=is_few,
  )


def make_plots(
  arms: Sequence[Arm], tasks: Sequence[str], finals: Sequence[Finals] = ()
) -> list[Picture]:
  """Returns the plots of curves for which some run has records.

  Of more than three arms the bands would hide each other: each arm has a panel
  then, with the line of the first one in it.
  """
  success = [f"{SUCCESS}/{task}" for task in tasks]
  plots = [
    _plot(
      arms,
      success,
      cost,
      name=f"success_by_{cost.split()[0]}",
      title=f"Success by {cost}",
      note="mean of tasks, sampled training rollouts",
      is_share=True,
    )
    for cost in COSTS
  ]
  plots += [
    _plot(
      arms,
      [f"{EVALUATED}/{task}" for task in tasks],
      UPDATES,
      stage=f"{VALIDATION}_{mode}",
      name=f"success_during_{mode}",
      title=f"Success during RL, {mode}",
      note="mean of tasks, on some that are not trained on",
      is_share=True,
    )
    for mode in MODES
  ]
  if len(tasks) > 1:
    plots += [
      _plot(
        arms,
        [metric],
        UPDATES,
        name=f"success_{task}",
        title=task,
        note="success of sampled training rollouts",
        is_share=True,
      )
      for metric, task in zip(success, tasks, strict=True)
    ]
  plots += [
    _plot(
      arms,
      [metric],
      UPDATES,
      name=metric.replace("/", "_"),
      title=title,
      note=note,
    )
    for metric, title, note in DIAGNOSTICS
  ]
  plots += [_pass_plot(arms, each) for each in finals if each.mode == PASS]
  return [_parted(plot) for plot in plots if plot.lines]


def _parted(plot: Plot) -> Picture:
  if len(plot.lines) <= MOST_OVERLAID:
    return plot
  limits = fitted(plot.lines, is_share=plot.is_share)
  first = dataclasses.replace(
    plot.lines[0], label="", thin=(), low=(), high=(), is_faint=True
  )
  return SmallMultiples(
    name=plot.name,
    title=plot.title,
    note=f"{plot.note}; grey: {plot.lines[0].label}",
    plots=[
      dataclasses.replace(
        plot,
        name=f"{plot.name}_{number}",
        title=line.label,
        lines=[
          *([first] if number else []),
          dataclasses.replace(line, label="", place=0),
        ],
        y_limits=limits,
      )
      for number, line in enumerate(plot.lines)
    ],
  )


def _plot(
  arms: Sequence[Arm],
  metrics: Sequence[str],
  cost: str,
  *,
  name: str,
  title: str,
  note: str,
  is_share: bool = False,
  stage: str = RL,
) -> Plot:
  bands = [
    metrics
    and band(arm, metrics, cost, place=place, stage=stage, is_share=is_share)
    for place, arm in enumerate(arms)
  ]
  return Plot(
    name=name,
    title=title,
    note=note,
    x_label=cost,
    lines=[line for line in bands if line],
    is_share=is_share,
  )


def _pass_plot(arms: Sequence[Arm], of: Finals) -> Plot:
  places = {arm.name: place for place, arm in enumerate(arms)}
  ks = {name: int(name.partition("@")[2]) for name in of.tasks}
  lines = []
  for level in of.levels:
    rates = [level.tasks[name] for name in ks if name in level.tasks]
    is_band = level.num_seeds >= FEW_SEEDS
    lines.append(
      PlotLine(
        label=f"{level.arm} ({seeds_text(level.num_seeds)})",
        place=places[level.arm],
        x=[*ks.values()][: len(rates)],
        y=[rate.mean for rate in rates],
        low=[rate.low for rate in rates] if is_band else (),
        high=[rate.high for rate in rates] if is_band else (),
      )
    )
  return Plot(
    name="pass_at_k",
    title="Pass@k",
    note="share of held-out tasks that one of k sampled attempts solves",
    x_label="k",
    lines=lines,
    is_share=True,
    x_ticks=[*ks.values()],
  )
