"""Power of a planned experiment: can so many seeds find the difference?

The test is the paired t test over seeds at the plan's level. The standard
deviation of a paired difference is the plan's spread over seeds and the
binomial noise of the evaluation, as if both arms' episodes were independent and
success a half: the worst case.
"""

import math
from collections.abc import Collection, Mapping

import ml_collections

from agentrl_jax.errors import ConfigError, suggestion
from configs.experiment import MOST_SEEDS, Contrast, ExperimentPlan, split_term
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
  seen: dict[frozenset[str], str] = {}
  for text in (*plan.contrasts, *plan.controls):
    _require_terms(text, tasks)
    _require_tasks(plan.task, text, of_arms)
    sides = Contrast.parse(text)
    other = seen.setdefault(frozenset((sides.after, sides.before)), text)
    if other != text:
      raise ConfigError(
        f"the plan has {other} and {text}, which are one difference: choose one"
      )
  equal = configs_that_are_equal(configs)
  for text in plan.contrasts:
    _require_difference(text, equal)
  _require_power(plan, count_environments(configs))


def count_environments(configs: Configs) -> int:
  """Returns the most tasks that the mean of an arm is of."""
  return max(len(config.tasks.names) for config in configs.values())


def _require_difference(text: str, equal: Collection[frozenset[str]]) -> None:
  """Refuses a contrast of two sides that cannot differ."""
  sides = Contrast.parse(text)
  if {stage for _, stage, _ in sides.terms} == {"warm_start"}:
    raise ConfigError(
      f"the plan's contrast {text} is of two warm starts, before the arms "
      "differ: leave out one @warm_start"
    )
  if frozenset(sides.arms) in equal:
    raise ConfigError(
      f"the plan's contrast {text} is of two arms with the same config, "
      "which can show nothing: change an arm, or name it in controls"
    )


def _require_terms(text: str, tasks: set[str]) -> None:
  """Refuses a term with a task or a stage that there is not."""
  for _, stage, task in Contrast.parse(text).terms:
    for name, allowed in ((task, tasks), (stage, ("warm_start", "rl", "rise"))):
      if name and name not in allowed:
        raise ConfigError(
          f"the plan's contrast {text}: {name!r} is not one of "
          f"{', '.join(sorted(allowed))}{suggestion(name, allowed)}"
        )


def _require_tasks(
  of_plan: str, text: str, of_arms: Mapping[str, ml_collections.ConfigDict]
) -> None:
  """Refuses sides that do not both have the plan's task."""
  sides = Contrast.parse(text)
  known = []
  for side in (sides.after, sides.before):
    tasks = [
      name
      for arm, _, task in map(split_term, side.split(" + "))
      for name in ([task] if task else of_arms[arm].tasks.names)
    ]
    if twice := sorted({name for name in tasks if tasks.count(name) > 1}):
      raise ConfigError(
        f"the plan's contrast {text}: two arms of {side} have "
        f"{', '.join(twice)}, and a sum has each task of one arm: write "
        "arm/task"
      )
    known.append(set(tasks))
  after, before = known
  has_mean = after == before and (
    len(after) > 1 or all(len(c.tasks.names) == 1 for c in of_arms.values())
  )
  if not (has_mean if of_plan == MEAN else of_plan in after & before):
    raise ConfigError(
      f"the plan judges {of_plan}, and in its contrast {text} one side is of "
      f"{', '.join(sorted(after))} and the other of "
      f"{', '.join(sorted(before))}: both must have what is judged"
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


def plan_lines(plan: ExperimentPlan, configs: Configs) -> list[str]:
  """Says what the plan asks, and with which power."""
  noise = noise_of(plan, count_environments(configs))
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
