"""The comparison as one self-contained page, with pictures and CSV beside it.

<output>/report.html  finals.csv  curves.csv  diagnostics.csv  <plot>.png
"""

import csv
import dataclasses
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agentrl_jax.files import write_whole, writing
from launch.comparisons.bands import EPISODES, costs_of
from launch.comparisons.diagnostics import (
  columns,
  diagnostics,
  rows_of,
  table,
)
from launch.comparisons.finals import MEAN, Change, Finals, finals
from launch.comparisons.plots import make_plots
from launch.comparisons.runs import Arm, Run
from launch.comparisons.statistics import Estimate, PairedDifference
from launch.comparisons.training import with_training
from launch.reports import numbers
from launch.reports.curves import RL, SUCCESS
from launch.reports.html import page
from launch.reports.plots import Plot
from launch.reports.summary import MODES, PASS, TRAINING
from launch.reports.tables import Cell
from launch.sweeps.cells import State

STAGES = ("warm_start", "rl")
FEW_SEEDS = 3  # below, the page says that a verdict is not to be had
_UNEQUAL = 0.05  # share of the episodes by which ends may differ unsaid


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All that a page shows."""

  title: str
  arms: Sequence[Arm]
  finals: Sequence[Finals]
  plots: Sequence[Plot]


def compare(title: str, arms: Sequence[Arm]) -> Comparison:
  """Computes every number and plot of the arms."""
  arms = with_training(arms)
  found = [
    finals(arms, stage, mode)
    for stage in STAGES
    for mode in (*MODES, PASS, *TRAINING)
  ]
  made = [each for each in found if each is not None]
  # After RL first: it is what is asked for.
  made.sort(key=lambda each: each.stage != RL)
  tasks = sorted({task for arm in arms for task in _trained_tasks(arm)})
  return Comparison(title, arms, made, make_plots(arms, tasks, made))


def write(comparison: Comparison, output: pathlib.Path) -> None:
  """Writes the page, a picture of each plot, and the numbers as CSV."""
  output.mkdir(parents=True, exist_ok=True)
  for plot in comparison.plots:
    plot.write(output)
  _write_csv(output / "finals.csv", _final_rows(comparison.arms))
  _write_csv(output / "curves.csv", _curve_rows(comparison.arms))
  found = diagnostics(comparison.arms)
  _write_csv(output / "diagnostics.csv", rows_of(found))
  write_whole(output / "report.html", render(comparison))


def render(comparison: Comparison) -> str:
  """Renders the page as text."""
  found = diagnostics(comparison.arms)
  return page(
    "comparison.html",
    title=comparison.title,
    verdicts=verdicts(comparison),
    warnings=warnings(comparison.arms),
    tables=[_table(each) for each in comparison.finals],
    diagnostics=table(found),
    diagnostic_columns=[
      Cell(each.title, each.note) for each in columns(found).values()
    ],
    plots=comparison.plots,
    arms=comparison.arms,
    cells=[
      (arm.name, run)
      for arm in comparison.arms
      for _, run in sorted(arm.runs.items())
    ],
    where=_where,
    hours=lambda run: numbers.duration(3600 * run.hours) if run.hours else "",
  )


def verdicts(comparison: Comparison) -> list[str]:
  """Says in a sentence per arm if it differs from the first one."""
  after = [each for each in comparison.finals if each.stage == RL]
  if not after:
    return ["No run has been evaluated after RL."]
  first = after[0]
  return [
    _verdict(change, task, first)
    for change in first.changes
    for task in ([MEAN] if MEAN in change.tasks else change.tasks)
  ] or [f"Arm {first.baseline} is alone: there is nothing to compare it with."]


def _verdict(change: Change, task: str, of: Finals) -> str:
  """Says it of the mean, or of a task where some arm lacks others."""
  mean = change.tasks[task]
  who = f"{change.arm} − {of.baseline}"
  what = f"{numbers.points(mean.mean)} points of {of.mode} success"
  what += "" if task == MEAN else f" on {task}"
  if mean.n < FEW_SEEDS:
    seeds = f"{mean.n} seed{'s' * (mean.n > 1)}"
    return f"{who}: {what} with {seeds}, too few for a verdict."
  interval = numbers.signed_interval(mean.low, mean.high)
  where = f"95 % interval {interval}, {numbers.p_value(mean.p)}, {mean.n} seeds"
  how = "different" if mean.is_different else "not different"
  return f"{who}: {what}, {how} at the 5 % level ({where})."


def warnings(arms: Sequence[Arm]) -> list[str]:
  """Returns what a reader must know before believing a number."""
  runs = [run for arm in arms for run in arm.runs.values()]
  states = Counter(run.state for run in runs)
  found = []
  left = len(runs) - states[State.FINISHED]
  if left:
    counts = ", ".join(
      f"{states[s]} {s.value}" for s in State if states[s] and s != "finished"
    )
    found.append(f"{left} of {len(runs)} runs are not finished: {counts}.")
  few = [
    f"{arm.name} has {len(_finished(arm))}"
    for arm in arms
    if len(_finished(arm)) < FEW_SEEDS
  ]
  if few:
    found.append(
      f"Finished seeds are few: {', '.join(few)}; with fewer than {FEW_SEEDS} "
      "hardly any difference can be shown."
    )
  found += _unequal_ends(arms)
  comparisons = len(arms) - 1
  if comparisons > 1:
    chance = numbers.percent(1 - 0.95**comparisons)
    found.append(
      f"{comparisons} arms are compared with the first. If none differs, the "
      f"chance is {chance} that one seems to at the 5 % level; Bonferroni's "
      f"level for each is {0.05 / comparisons:.2g}."
    )
  commits = {run.commit for run in runs if run.commit}
  if len(commits) > 1:
    found.append(f"The runs are of {len(commits)} commits.")
  return found


def _unequal_ends(arms: Sequence[Arm]) -> list[str]:
  """Says which arms have trained for longer or shorter than the first."""
  spent = {
    arm.name: [
      costs_of(rows)[EPISODES][-1]
      for run in _finished(arm)
      if (rows := [row for row in run.rows if row.stage == RL])
    ]
    for arm in arms
  }
  means = {name: sum(n) / len(n) for name, n in spent.items() if n}
  if not means or arms[0].name not in means:
    return []
  first = means.pop(arms[0].name)
  others = [
    f"{name} {n:,.0f}"
    for name, n in means.items()
    if abs(n - first) > _UNEQUAL * first
  ]
  if not others:
    return []
  return [
    f"Runs ended after unequal numbers of episodes: {arms[0].name} has trained "
    f"on {first:,.0f} and {', '.join(others)}. Their ends are not comparable; "
    f"'{TRAINING[0]}' is."
  ]


def _finished(arm: Arm) -> list[Run]:
  return [run for run in arm.runs.values() if run.state is State.FINISHED]


def _trained_tasks(arm: Arm) -> set[str]:
  prefix = f"{SUCCESS}/"
  last = [
    [row for row in run.rows if row.stage == RL][-1:]
    for run in arm.runs.values()
  ]
  return {
    name.removeprefix(prefix)
    for rows in last
    for row in rows
    for name in row.values
    if name.startswith(prefix)
  }


def _where(run: Run) -> str:
  """Describes how far a run is."""
  if not run.rows:
    return ""
  last = run.rows[-1]
  return f"{numbers.stage_name(last.stage)} {last.step}"


# --- Tables -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Table:
  """Levels and differences of one stage and mode."""

  caption: str
  columns: Sequence[Cell]
  levels: Sequence[tuple[str, Sequence[Cell]]]
  changes: Sequence[tuple[str, Sequence[Cell]]]


def _table(of: Finals) -> Table:
  names = of.columns
  columns = [
    Cell(name, f"n = {of.num_episodes[name]} a seed")
    if name in of.num_episodes
    else Cell(name, "of tasks")
    for name in names
  ]
  has_middle = any(level.middle for level in of.levels)
  if has_middle:
    columns.append(Cell("IQM", "seeds × tasks"))
  return Table(
    caption=f"{numbers.stage_name(of.stage)}, {of.mode}",
    columns=columns,
    levels=[
      (
        f"{level.arm} ({level.num_seeds})",
        [
          *(_level_cell(level.tasks.get(n)) for n in names),
          *([_level_cell(level.middle)] if has_middle else []),
        ],
      )
      for level in of.levels
    ],
    changes=[
      (
        f"{change.arm} − {of.baseline}",
        [
          *(_change_cell(change.tasks.get(n)) for n in names),
          *([Cell("")] if has_middle else []),
        ],
      )
      for change in of.changes
    ],
  )


def _level_cell(each: Estimate | None) -> Cell:
  if each is None:
    return Cell("")
  if math.isnan(each.low):
    return Cell(numbers.percent(each.mean))
  return Cell(numbers.percent(each.mean), numbers.interval(each.low, each.high))


def _change_cell(each: PairedDifference | None) -> Cell:
  if each is None:
    return Cell("")
  if math.isnan(each.p):
    return Cell(numbers.points(each.mean), "1 seed", False)
  interval = numbers.signed_interval(each.low, each.high)
  return Cell(
    numbers.points(each.mean),
    f"{interval}; {numbers.p_value(each.p)}",
    each.is_different and each.n >= FEW_SEEDS,
  )


# --- CSV ----------------------------------------------------------------------


def _final_rows(arms: Sequence[Arm]) -> Iterator[Mapping[str, object]]:
  for arm in arms:
    for seed, run in sorted(arm.runs.items()):
      for evaluation in run.evaluations:
        for task, score in evaluation.tasks.items():
          yield {
            "arm": arm.name,
            "seed": seed,
            "state": run.state.value,
            "stage": evaluation.stage,
            "mode": evaluation.mode,
            "task": task,
            **dataclasses.asdict(score),
          }


def _curve_rows(arms: Sequence[Arm]) -> Iterator[Mapping[str, object]]:
  for arm in arms:
    for seed, run in sorted(arm.runs.items()):
      rows = [row for row in run.rows if row.stage == RL]
      costs = costs_of(rows)
      for i, row in enumerate(rows):
        for name, value in row.values.items():
          if name.startswith(("success/", "policy/", "staleness/", "reward/")):
            yield {
              "arm": arm.name,
              "seed": seed,
              **{cost: round(values[i], 3) for cost, values in costs.items()},
              "metric": name,
              "value": value,
            }


def _write_csv(
  path: pathlib.Path, rows: Iterator[Mapping[str, object]]
) -> None:
  found = list(rows)
  with writing(path), path.open("w", newline="", encoding="utf-8") as file:
    if found:
      writer = csv.DictWriter(file, list(found[0]))
      writer.writeheader()
      writer.writerows(found)
