"""Plots of a comparison: arms over each other, with bands over seeds."""

from collections.abc import Sequence

from launch.comparisons.bands import COSTS, LEAST_SEEDS, UPDATES, band
from launch.comparisons.finals import Finals
from launch.comparisons.runs import Arm
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
from launch.reports.plots import Plot, PlotLine
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


def make_plots(
  arms: Sequence[Arm], tasks: Sequence[str], finals: Sequence[Finals] = ()
) -> list[Plot]:
  """Returns the plots for which some run has records."""
  success = [f"{SUCCESS}/{task}" for task in tasks]
  plots = [
    _plot(
      *(arms, success, cost),
      name=f"success_by_{cost.split()[0]}",
      title=f"Success by {cost}",
      note="mean of tasks, sampled training rollouts",
      is_share=True,
    )
    for cost in COSTS
  ]
  plots += [
    _plot(
      *(arms, [f"{EVALUATED}/{task}" for task in tasks], UPDATES),
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
        *(arms, [metric], UPDATES),
        name=f"success_{task}",
        title=task,
        note="success of sampled training rollouts",
        is_share=True,
      )
      for metric, task in zip(success, tasks, strict=True)
    ]
  plots += [
    _plot(
      *(arms, [metric], UPDATES),
      name=metric.replace("/", "_"),
      title=title,
      note=note,
    )
    for metric, title, note in DIAGNOSTICS
  ]
  plots += [_pass_plot(arms, each) for each in finals if each.mode == PASS]
  return [plot for plot in plots if plot.lines]


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
    metrics and band(arm, metrics, cost, place=place, stage=stage)
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
    is_band = level.num_seeds >= LEAST_SEEDS
    lines.append(
      PlotLine(
        label=f"{level.arm} ({level.num_seeds})",
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
