"""Plan of an experiment against the sweeps that were run.

The plan that counts is the last one that was recorded before a cell had
finished. Its verdict is on the primary outcome alone: the paired difference
with the interval of the plan's level, in the plan's own words.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import ml_collections

from agentrl_jax.errors import ConfigError
from configs.experiment import SAMPLED, Contrast, ExperimentPlan
from launch.comparisons.finals import contrasts, missing_lines
from launch.comparisons.runs import Arm, Run, keys_no_arm_sets
from launch.comparisons.statistics import PairedDifference
from launch.comparisons.training import with_training
from launch.reports import numbers
from launch.sweeps.cells import CellState
from launch.sweeps.plan import (
  Cell,
  RecordedExperiment,
  SweepPlan,
  read_experiments,
  read_record,
)


@dataclasses.dataclass(frozen=True)
class Planned:
  """A plan, and what became of it, as sentences."""

  plan: ExperimentPlan
  deviations: Sequence[str]  # what was run otherwise than planned
  verdicts: Sequence[str]  # on each contrast, then on each control


def by_plan(folders: Sequence[pathlib.Path]) -> list[list[pathlib.Path]]:
  """Groups sweeps' folders by the plan that counts; those without are left out.

  So an experiment whose seeds were run on several machines is judged as one.
  """
  groups: dict[ExperimentPlan, list[pathlib.Path]] = {}
  for folder in folders:
    if history := read_experiments(folder):
      groups.setdefault(plan_that_counts(history), []).append(folder)
  return list(groups.values())


def planned(folders: Sequence[pathlib.Path], arms: Sequence[Arm]) -> Planned:
  """Compares the sweeps of one plan, a group of `by_plan`, with what was run.

  `arms` are those of `read_arms(folders)`. Raises `ConfigError` for a record
  that cannot be read.
  """
  histories = [read_experiments(folder) for folder in folders]
  plan = plan_that_counts(histories[0])
  otherwise = [
    f"{folder.name}: {line}" if len(folders) > 1 else line
    for folder, history in zip(folders, histories, strict=True)
    for line in (
      *history_lines(history),
      *_override_lines(read_record(folder).overrides),
    )
  ]
  return Planned(
    plan,
    [
      *otherwise,
      *_arm_and_seed_lines(plan, arms),
      *_size_lines(plan, arms),
      *_key_lines(plan, arms),
    ],
    judge(plan, with_training([a for a in arms if a.name in plan.arms])),
  )


def plan_that_counts(history: Sequence[RecordedExperiment]) -> ExperimentPlan:
  """Returns the last plan from before a cell had finished, else the first."""
  plans = [each for each in history if each.plan]
  before = [each for each in plans if not each.cells_finished]
  plan = (before[-1] if before else plans[0]).plan
  assert plan is not None  # `plans` has none without
  return plan


def history_lines(history: Sequence[RecordedExperiment]) -> list[str]:
  """Says which plans came after their outcome could be known."""
  lines = []
  for place, each in enumerate(history):
    if each.cells_finished:
      when = f"after {each.cells_finished} cells had finished"
    elif each.cells_begun and each.plan and each.plan.is_of_training:
      when = f"after {each.cells_begun} cells had begun"
    else:
      continue
    if place == 0:
      lines.append(f"the plan was written {when}")
    else:
      changed = _changes(history[place - 1].plan, each.plan)
      lines.append(f"the plan was changed {when}: {changed}")
  return lines


def _changes(before: ExperimentPlan | None, now: ExperimentPlan | None) -> str:
  if before is None or now is None:
    return "it was put back" if now else "it was taken out"
  old, new = dataclasses.asdict(before), dataclasses.asdict(now)
  return "; ".join(
    f"{name} was {old[name]!r} and is {new[name]!r}"
    for name in new
    if old[name] != new[name]
  )


def start_lines(
  plan: ExperimentPlan,
  sweep: SweepPlan,
  configs: Mapping[Cell, ml_collections.ConfigDict],
) -> list[str]:
  """Says what a command is about to run otherwise than planned.

  `configs` are those of the plan's arms, with the command's overrides.
  """
  lines = []
  if left := [arm for arm in plan.arms if arm not in sweep.arms]:
    lines.append(f"the plan's arms {', '.join(left)} are not run by this")
  seeds = len(sweep.seeds)
  if seeds != plan.seeds:
    lines.append(f"this runs {seeds} seeds, and the plan has {plan.seeds}")
  key = "num_sampled" if plan.mode == SAMPLED else "num_tasks"
  sizes = {config.evaluation[key] for config in configs.values()}
  if plan.num_tasks and sizes != {plan.num_tasks}:
    lines.append(
      f"evaluation.{key} is {', '.join(map(str, sorted(sizes)))}, and the plan "
      f"has {plan.num_tasks}"
    )
  return [f"not as planned: {line}" for line in lines]


def _arm_and_seed_lines(plan: ExperimentPlan, arms: Sequence[Arm]) -> list[str]:
  by_name = {arm.name: arm for arm in arms}
  lines = []
  if missing := [name for name in plan.arms if name not in by_name]:
    lines.append(f"arms of the plan that were not run: {', '.join(missing)}")
  if other := [name for name in by_name if name not in plan.arms]:
    lines.append(f"arms that the plan does not have: {', '.join(other)}")
  for name in plan.arms:
    runs = by_name[name].runs if name in by_name else {}
    finished = sum(r.state is CellState.FINISHED for r in runs.values())
    if name in by_name and finished < plan.seeds:
      lines.append(
        f"{name} has {finished} finished seeds, and the plan {plan.seeds}"
        + _unfinished(list(runs.values()))
      )
  if extended := _extended(plan, arms):
    lines.append(
      f"{', '.join(extended)} went on after having been evaluated: a further "
      "look, so its verdict is exploratory"
    )
  extra = _num_seeds(plan, arms) - plan.seeds
  if extra > 0:
    lines.append(
      f"{extra} seeds more than the plan's {plan.seeds} were run: a further "
      "look, so its verdict is exploratory"
    )
  return lines


def _extended(plan: ExperimentPlan, arms: Sequence[Arm]) -> list[str]:
  """Returns the plan's runs that were given more updates after their end."""
  return [
    run.name
    for arm in arms
    if arm.name in plan.arms
    for run in arm.runs.values()
    if run.num_extended
  ]


def _unfinished(runs: Sequence[Run]) -> str:
  left = [r for r in runs if r.state is not CellState.FINISHED]
  each = ", ".join(f"{run.name} {run.state.value}" for run in left)
  return f" ({each})" if each else ""


def _num_seeds(plan: ExperimentPlan, arms: Sequence[Arm]) -> int:
  """Returns the most seeds whose outcome an arm of the plan shows."""
  return max(
    (
      sum(
        run.state is CellState.FINISHED
        or run.evaluation(plan.stage, plan.mode) is not None
        for run in arm.runs.values()
      )
      for arm in arms
      if arm.name in plan.arms
    ),
    default=0,
  )


def _size_lines(plan: ExperimentPlan, arms: Sequence[Arm]) -> list[str]:
  """Names the evaluations of the primary outcome that have another size."""
  sizes: dict[int, list[str]] = {}
  for arm in arms:
    for run in arm.runs.values() if arm.name in plan.arms else ():
      evaluation = run.evaluation(plan.stage, plan.mode)
      for score in evaluation.tasks.values() if evaluation else ():
        sizes.setdefault(score.n, []).append(arm.name)
  return [
    f"{', '.join(dict.fromkeys(names))}: the {plan.mode} evaluation has {n} "
    f"tasks, and the plan {plan.num_tasks}"
    for n, names in sorted(sizes.items())
    if plan.num_tasks and n != plan.num_tasks
  ]


def _key_lines(plan: ExperimentPlan, arms: Sequence[Arm]) -> list[str]:
  """Names settings that differ and are no treatment."""
  keys = keys_no_arm_sets([arm for arm in arms if arm.name in plan.arms])
  return [f"arms differ in {', '.join(keys)}, which none sets"] if keys else []


def _override_lines(overrides: Sequence[str]) -> list[str]:
  if not overrides:
    return []
  return [f"options that the file does not have: {' '.join(overrides)}"]


# --- The verdict --------------------------------------------------------------


def judge(plan: ExperimentPlan, arms: Sequence[Arm]) -> list[str]:
  """Judges the primary outcome, and then the controls."""
  looks = plan.looks + (_num_seeds(plan, arms) > plan.seeds)
  looks += bool(_extended(plan, arms))
  level = plan.level * plan.looks / looks
  return [
    *(_verdict(plan, text, arms, level) for text in plan.contrasts),
    *(_control(plan, text, arms, level) for text in plan.controls),
  ]


def _difference(
  plan: ExperimentPlan, text: str, arms: Sequence[Arm], level: float
) -> PairedDifference | str:
  """Returns the difference with its interval, or why there is none."""
  sides = Contrast.parse(text)
  missing = set(sides.arms) - {arm.name for arm in arms}
  if missing:
    return f"not measured: {', '.join(sorted(missing))} was not run"
  pair = (sides.after, sides.before)
  # Other arms may have other tasks, and would take away the mean of these.
  compared = [arm for arm in arms if arm.name in sides.arms]
  try:
    changes = contrasts(compared, plan.stage, plan.mode, [pair])
  except ConfigError as error:
    return f"not measured: {error}"
  tests = changes[0].tasks if changes else {}
  found = tests[plan.task].paired if plan.task in tests else None
  if found is None and len(tests) == 1 == _num_tasks(arms):
    found = next(iter(tests.values())).paired  # the mean of one task
  if found is None:
    missing_tasks = missing_lines(compared, plan.stage, plan.mode)
    return "not measured: " + (
      "; ".join(missing_tasks)
      or f"no seed has been evaluated {plan.mode} on {plan.task} on both sides"
    )
  if found.n < 2:
    return f"{numbers.points(found.mean)} points with 1 seed: no verdict"
  return found.at(1 - level)


def _num_tasks(arms: Sequence[Arm]) -> int:
  return len(
    {
      task
      for arm in arms
      for run in arm.runs.values()
      for evaluation in run.evaluations
      if evaluation.stage == "rl" and evaluation.mode in ("greedy", SAMPLED)
      for task in evaluation.tasks
    }
  )


def _verdict(
  plan: ExperimentPlan, text: str, arms: Sequence[Arm], level: float
) -> str:
  found = _difference(plan, text, arms, level)
  if isinstance(found, str):
    return f"{text}: {found}"
  measured = f"{text}: {_measured(found, level)}"
  looks = [plan.seeds * (i + 1) // plan.looks for i in range(plan.looks)]
  if found.n < plan.seeds and found.n not in looks:
    at = ", ".join(map(str, looks))
    return f"{measured}. No verdict: the plan looks at {at} seeds"
  return f"{measured}. {_meaning(plan, found)}"


def _measured(found: PairedDifference, level: float) -> str:
  interval = numbers.signed_interval(found.low, found.high)
  return (
    f"{numbers.points(found.mean)} points ({100 * (1 - level):.3g} % interval "
    f"{interval}, {found.n} seeds)"
  )


def _meaning(plan: ExperimentPlan, found: PairedDifference) -> str:
  if found.low > 0:
    return f"Higher: {plan.higher}"
  if found.high < 0:
    return f"Lower: {plan.lower}"
  least = plan.least_difference / 100
  if (found.high - found.low) / 2 > least:
    return (
      f"No verdict: it could not have shown {plan.least_difference:g} points, "
      "since the interval is wider on either side"
    )
  if found.low < -least or found.high > least:
    return (
      f"No verdict: no difference is shown, and {plan.least_difference:g} "
      "points are not excluded"
    )
  return f"Neither: {plan.neither}"


def _control(
  plan: ExperimentPlan, text: str, arms: Sequence[Arm], level: float
) -> str:
  found = _difference(plan, text, arms, level)
  if isinstance(found, str):
    return f"control {text}: {found}"
  if not found.low <= 0 <= found.high:
    end = "It is not null: look for what is broken"
  elif found.n < plan.seeds:
    end = f"No verdict before {plan.seeds} seeds"
  elif max(-found.low, found.high) > plan.least_difference / 100:
    end = (
      f"It is not told from null, and {plan.least_difference:g} points are not "
      "excluded"
    )
  else:
    end = "It is null, as it must be"
  return f"control {text}: {_measured(found, level)}. {end}"
