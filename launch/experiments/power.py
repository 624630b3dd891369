"""Power of a planned experiment: can so many seeds find the difference?

The test is the paired t test over seeds at the plan's level. The standard
deviation of a paired difference is the plan's spread over seeds and the
binomial noise of the evaluation, as if both arms' episodes were independent and
success a half: the worst case.
"""

import math
from collections.abc import Mapping

import ml_collections

from agentrl_jax.errors import ConfigError, suggestion
from configs.experiment import MOST_SEEDS, Contrast, ExperimentPlan
from launch.comparisons.finals import MEAN
from launch.comparisons.statistics import (
  binomial_spread,
  detectable_difference,
  paired_power,
)
from launch.experiments.check import configs_that_are_equal
from launch.reports.summary import MODES, TRAINING
from launch.sweeps.plan import Cell

Configs = Mapping[Cell, ml_collections.ConfigDict]


def noise_of(plan: ExperimentPlan, num_environments: int) -> float:
  """Returns the standard deviation of a paired difference, in points."""
  if plan.num_tasks == 0:  # a mode of training: the spread has it
    return plan.spread
  number = num_environments if plan.task == MEAN else 1
  episodes = binomial_spread(0.5, plan.num_tasks * number)
  return math.hypot(100 * episodes, plan.spread)


def power_of(plan: ExperimentPlan, noise: float) -> float:
  """Returns the power of each contrast for the least difference."""
  return paired_power(
    plan.least_difference, noise, plan.seeds, level=plan.level
  )


def seeds_needed(plan: ExperimentPlan, noise: float) -> int | None:
  """Returns the seeds that give the plan's power; None beyond MOST_SEEDS."""
  for seeds in range(2, MOST_SEEDS + 1):
    power = paired_power(plan.least_difference, noise, seeds, level=plan.level)
    if power >= plan.power:
      return seeds
  return None


def require_plan(plan: ExperimentPlan, configs: Configs) -> None:
  """Raises `ConfigError` for a plan that its arms and seeds cannot carry out.

  `configs` has the cells of all arms of the plan, of at least one seed.
  """
  of_arms = {cell.arm: config for cell, config in configs.items()}
  if plan.mode not in (*MODES, *TRAINING):
    raise ConfigError(
      f"the plan's mode {plan.mode!r} is not one of "
      f"{', '.join((*MODES, *TRAINING))}{suggestion(plan.mode, MODES)}"
    )
  if plan.stage != "rl":
    raise ConfigError(
      f"the plan's stage {plan.stage!r} must be 'rl': arms are told apart "
      "after RL"
    )
  tasks = {name for arm in plan.arms for name in of_arms[arm].tasks.names}
  if plan.task not in (MEAN, *tasks):
    raise ConfigError(
      f"the plan's task {plan.task!r} is neither {MEAN!r} nor one of "
      f"{', '.join(sorted(tasks))}{suggestion(plan.task, tasks)}"
    )
  equal = configs_that_are_equal(configs)
  for text in (*plan.contrasts, *plan.controls):
    _require_terms(text, tasks)
  for text in plan.contrasts:
    sides = Contrast.parse(text)
    if frozenset(sides.arms) in equal:
      raise ConfigError(
        f"the plan's contrast {text} is of two arms with the same config, "
        "which can show nothing: change an arm, or name it in controls"
      )
  _require_power(plan, max(len(c.tasks.names) for c in of_arms.values()))


def _require_terms(text: str, tasks: set[str]) -> None:
  """Refuses a term with a task or a stage that there is not."""
  for _, stage, task in Contrast.parse(text).terms:
    for name, allowed in ((task, tasks), (stage, ("warm_start", "rl", "rise"))):
      if name and name not in allowed:
        raise ConfigError(
          f"the plan's contrast {text}: {name!r} is not one of "
          f"{', '.join(sorted(allowed))}{suggestion(name, allowed)}"
        )


def _require_power(plan: ExperimentPlan, num_environments: int) -> None:
  noise = noise_of(plan, num_environments)
  power = power_of(plan, noise)
  if power >= plan.power:
    return
  seeds = seeds_needed(plan, noise)
  found = detectable_difference(
    noise, plan.seeds, level=plan.level, power=plan.power
  )
  remedy = (
    f"{seeds} seeds are needed" if seeds else "no number of seeds is enough"
  )
  raise ConfigError(
    f"the plan finds a difference of {plan.least_difference:g} points with a "
    f"power of {100 * power:.0f} %, and wants {100 * plan.power:.0f} %: "
    f"{plan.seeds} seeds whose paired differences have sd {noise:.1f} points "
    f"(spread {plan.spread:g}, the rest from {plan.num_tasks} tasks) at level "
    f"{plan.level:.2g} find {found:.1f}. {remedy}, "
    "or more num_tasks, fewer contrasts, or a larger least_difference"
  )


def plan_lines(plan: ExperimentPlan, num_environments: int) -> list[str]:
  """Says what the plan asks, and with which power."""
  noise = noise_of(plan, num_environments)
  tests = f"{len(plan.contrasts)} contrast{'s' * (len(plan.contrasts) > 1)}"
  looks = f"{plan.looks} look{'s' * (plan.looks > 1)}"
  return [
    f"plan: {plan.question}",
    f"judged: {plan.mode} success on {plan.task} after "
    f"{plan.stage.upper()}; {', '.join(plan.contrasts)}; {plan.seeds} seeds, "
    f"{tests}, {looks}, each at level {plan.level:.2g}",
    f"it finds {plan.least_difference:g} points in "
    f"{100 * power_of(plan, noise):.0f} % of cases, if paired differences have "
    f"sd {noise:.1f} points (over seeds {plan.spread:g}: {plan.spread_from})",
  ]
