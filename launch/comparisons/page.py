"""The comparison as one self-contained page, with pictures and CSV beside it.

<output>/report.html  finals.csv  curves.csv  diagnostics.csv  <plot>.png
"""

import csv
import dataclasses
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.files import write_whole, writing
from launch.comparisons.bands import COSTS, EPISODES, UPDATES, costs_of
from launch.comparisons.diagnostics import columns, diagnostics, rows_of, table
from launch.comparisons.finals import (
  MEAN,
  Change,
  Finals,
  Pairs,
  Tests,
  against,
  finals,
  missing_lines,
)
from launch.comparisons.forest import Forest
from launch.comparisons.plots import FIRST, forests, make_plots
from launch.comparisons.runs import (
  Arm,
  Run,
  Sweep,
  keys_no_arm_sets,
  updates_sentence,
)
from launch.comparisons.statistics import (
  FEW_SEEDS,
  Estimate,
  PairedDifference,
  seeds_text,
)
from launch.comparisons.training import with_training
from launch.reports import numbers
from launch.reports.curves import EVALUATED, RL, SUCCESS, VALIDATION
from launch.reports.html import page
from launch.reports.plots import Picture
from launch.reports.summary import MODES, PASS, TRAINING
from launch.reports.tables import TableCell
from launch.sweeps.cells import CellState

STAGES = ("rl", "warm_start")  # of the tables: the most asked for first
_EMPTY = TableCell("")
_REFILLS = "admission.refills_per_step"
_UNEQUAL = 0.05  # share of episodes: a smaller difference is not flagged


@dataclasses.dataclass(frozen=True)
class PlanText:
  """Sentences on the plan of an experiment; the page begins with them."""

  question: str
  verdicts: Sequence[str]  # on the primary outcome
  deviations: Sequence[str]  # what was run otherwise than planned

  @property
  def lines(self) -> list[str]:
    """All sentences, for a terminal."""
    otherwise = [f"Not as planned: {each}." for each in self.deviations]
    return [f"Plan: {self.question}", *self.verdicts, *otherwise]


@dataclasses.dataclass(frozen=True)
class ComparisonPage:
  """All that a page shows."""

  title: str
  arms: Sequence[Arm]  # the baseline is the first
  pairs: Pairs  # that are compared
  finals: Sequence[Finals]
  forests: Sequence[Forest]
  plots: Sequence[Picture]
  sweeps: Sequence[Sweep] = ()  # that the runs are of
  plans: Sequence[PlanText] = ()


def compare(
  title: str,
  arms: Sequence[Arm],
  *,
  baseline: str = "",
  contrasts: Pairs = (),
  sweeps: Sequence[Sweep] = (),
  plans: Sequence[PlanText] = (),
  least: float | None = None,
) -> ComparisonPage:
  """Computes every number and plot of the arms.

  All arms are compared with the baseline, which is the first arm unless it is
  named; if there are contrasts, these (after and before) are compared, and arms
  with the baseline only if it is named. Differences of success below `least`,
  a share, are of no interest. Raises `ConfigError` for an arm that
  there is not.
  """
  arms = with_training(_baseline_first(arms, baseline))
  pairs = list(contrasts)
  for name in (name for pair in pairs for name in pair):
    _require_arm("--contrast", name, arms)
  if baseline or not pairs:
    pairs += against(arms[0].name, arms)
  pairs = list(dict.fromkeys(pairs))
  scores = [
    of
    for stage in STAGES
    for mode in (*MODES, PASS, *TRAINING)
    if (of := finals(arms, stage, mode, pairs)) is not None
  ]
  tasks = sorted({task for arm in arms for task in _trained_tasks(arm)})
  return ComparisonPage(
    title,
    arms,
    pairs,
    scores,
    forests(scores, least),
    make_plots(arms, tasks, scores),
    sweeps,
    plans,
  )


def _baseline_first(arms: Sequence[Arm], baseline: str) -> list[Arm]:
  if baseline:
    _require_arm("--baseline", baseline, arms)
  return sorted(arms, key=lambda arm: arm.name != baseline)


def _require_arm(flag: str, name: str, arms: Sequence[Arm]) -> None:
  names = [arm.name for arm in arms]
  if name not in names:
    raise ConfigError(
      f"{flag} names {name!r}, which is no arm{suggestion(name, names)}; there "
      f"are {', '.join(names)}"
    )


def write(comparison: ComparisonPage, output: pathlib.Path) -> None:
  """Writes the page, a picture of each plot, and the numbers as CSV."""
  output.mkdir(parents=True, exist_ok=True)
  for plot in (*comparison.forests, *comparison.plots):
    plot.write(output)
  _write_csv(output / "finals.csv", _final_rows(comparison.arms))
  _write_csv(output / "curves.csv", _curve_rows(comparison.arms))
  values = diagnostics(comparison.arms)
  _write_csv(output / "diagnostics.csv", rows_of(values))
  write_whole(output / "report.html", render(comparison))


def render(comparison: ComparisonPage) -> str:
  """Renders the page as text."""
  values = diagnostics(comparison.arms)
  return page(
    "comparison.html",
    title=comparison.title,
    plans=comparison.plans,
    verdicts=verdicts(comparison),
    updates=updates_sentence(comparison.arms, comparison.sweeps),
    warnings=warnings(comparison.arms),
    tables=[_scores(each) for each in comparison.finals],
    diagnostics=table(values),
    diagnostic_columns=[
      TableCell(each.title, each.note) for each in columns(values).values()
    ],
    forests=comparison.forests,
    plots=comparison.plots,
    first=FIRST,
    sweeps=comparison.sweeps,
    arms=comparison.arms,
    cells=[
      (arm.name, run)
      for arm in comparison.arms
      for _, run in sorted(arm.runs.items())
    ],
    where=_where,
    hours=lambda run: numbers.duration(3600 * run.hours) if run.hours else "",
  )


def verdicts(comparison: ComparisonPage) -> list[str]:
  """Says in a sentence per pair of arms if they differ."""
  after = [each for each in comparison.finals if each.stage == RL]
  if not after:
    return ["No run has been evaluated after RL."]
  first = after[0]
  sentences = [
    _verdict(change, task, first)
    for change in first.changes
    for task in ([MEAN] if MEAN in change.tasks else change.tasks)
  ]
  compared = {(change.after, change.before) for change in first.changes}
  if rest := [pair for pair in comparison.pairs if pair not in compared]:
    names = ", ".join(" − ".join(pair) for pair in rest)
    sentences.append(
      f"Not compared, since no seed of both has been evaluated {first.mode} on "
      f"a task of both: {names}."
    )
  if not comparison.pairs:
    sentences.append(
      f"Arm {comparison.arms[0].name} is alone: there is nothing to compare it "
      "with."
    )
  return sentences


def _verdict(change: Change, task: str, of: Finals) -> str:
  """Says it of the mean, or of a task where some arm lacks others."""
  tests = change.tasks[task]
  first = tests.first
  what = f"{numbers.points(first.mean)} points of {of.mode} success"
  what += "" if task == MEAN else f" on {task}"
  if first.n < FEW_SEEDS:
    seeds = f"{first.n} seed{'s' * (first.n > 1)}"
    return f"{change.label}: {what} with {seeds}, too few for a verdict."
  where = f"95 % interval {_result(first)}, {first.n} seeds"
  if tests.first != tests.paired:
    how = "residuals of all arms" if tests.is_pooled else "its own two arms"
    where += f", by {how}; paired t alone {_result(tests.paired)}"
  how = "different" if first.is_different else "not different"
  return f"{change.label}: {what}, {how} at the 5 % level ({where})."


def _result(each: PairedDifference) -> str:
  interval = numbers.signed_interval(each.low, each.high)
  return f"{interval}, {numbers.p_value(each.p)}"


def warnings(arms: Sequence[Arm]) -> list[str]:
  """Returns what a reader must know before believing a number."""
  runs = [run for arm in arms for run in arm.runs.values()]
  states = Counter(run.state for run in runs)
  sentences = []
  left = len(runs) - states[CellState.FINISHED]
  if left:
    counts = ", ".join(
      f"{states[s]} {s.value}"
      for s in CellState
      if states[s] and s != "finished"
    )
    sentences.append(f"{left} of {len(runs)} runs are not finished: {counts}.")
  few = [
    f"{arm.name} has {len(_finished(arm))}"
    for arm in arms
    if len(_finished(arm)) < FEW_SEEDS
  ]
  if few:
    sentences.append(
      f"Finished seeds are few: {', '.join(few)}; with fewer than {FEW_SEEDS} "
      "hardly any difference can be shown."
    )
  if keys := keys_no_arm_sets(arms):
    sentences.append(
      f"Arms differ in {', '.join(keys)}, which none of them sets: the file "
      "has changed between them, so that a difference is not the arms' alone."
    )
  sentences += _unequal_ends(arms)
  sentences += [
    f"{line}, so that the arm has none in these tables."
    for mode in MODES
    for line in missing_lines(arms, RL, mode)
  ]
  refilled = [
    arm.name
    for arm in arms
    if any(run.config.get(_REFILLS) for run in arm.runs.values())
  ]
  if refilled:
    sentences.append(
      f"Success of training leaves out the groups that {', '.join(refilled)} "
      "replaced, so do not compare it: it is higher by the choice alone."
    )
  commits = {run.commit for run in runs if run.commit}
  if len(commits) > 1:
    sentences.append(f"The runs are of {len(commits)} commits.")
  return sentences


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
  return [run for run in arm.runs.values() if run.state is CellState.FINISHED]


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
  rows = [r for r in run.rows if not r.stage.startswith(f"{VALIDATION}_")]
  if not rows:
    return ""
  last = rows[-1]
  return f"{numbers.stage_name(last.stage)} {last.step}"


# --- Tables -------------------------------------------------------------------


def _scores(of: Finals) -> dict[str, object]:
  """Returns levels and differences of one stage and mode, for the template."""
  names = of.columns
  columns = [
    TableCell(name, _episodes(*of.num_episodes[name]))
    if name in of.num_episodes
    else TableCell(name, "of tasks")
    for name in names
  ]
  rows = [
    (
      f"{level.arm} ({seeds_text(level.num_seeds)})",
      [
        *(_level_cell(level.tasks.get(name)) for name in names),
        TableCell(
          "" if level.middle is None else numbers.percent(level.middle)
        ),
      ],
    )
    for level in of.levels
  ]
  for change in of.changes:
    tests = list(map(change.tasks.get, names))
    rows.append((change.label, [*map(_first_cell, tests), _EMPTY]))
    if any(each and each.first != each.paired for each in tests):
      cells = [_test_cell(each.paired) if each else _EMPTY for each in tests]
      rows.append((f"{change.label}, paired t", [*cells, _EMPTY]))
  if any(level.middle is not None for level in of.levels):
    columns.append(TableCell("IQM", "seeds × tasks"))
  return {
    "caption": f"{numbers.stage_name(of.stage)}, {of.mode}",
    "columns": columns,
    "rows": [(label, cells[: len(columns)]) for label, cells in rows],
  }


def _episodes(least: int, most: int) -> str:
  return f"n = {least}{f' to {most}' * (most > least)} a seed"


def _level_cell(each: Estimate | None) -> TableCell:
  if each is None:
    return _EMPTY
  return TableCell(
    numbers.percent(each.mean), numbers.interval(each.low, each.high)
  )


def _first_cell(each: Tests | None) -> TableCell:
  if each is None:
    return _EMPTY
  return _test_cell(
    each.first,
    "" if each.is_pooled or each.first == each.paired else ", not pooled",
  )


def _test_cell(each: PairedDifference, how: str = "") -> TableCell:
  few = f"; {seeds_text(each.n)}" if each.n < FEW_SEEDS else ""
  if math.isnan(each.p):
    return TableCell(numbers.points(each.mean), seeds_text(each.n), False)
  interval = numbers.signed_interval(each.low, each.high)
  return TableCell(
    numbers.points(each.mean),
    f"{interval}; {numbers.p_value(each.p)}{how}{few}",
    each.is_different and not few,
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
      for row in (*_training_rows(run), *_validation_rows(run)):
        yield {"arm": arm.name, "seed": seed, **row}


def _training_rows(run: Run) -> Iterator[Mapping[str, object]]:
  rows = [row for row in run.rows if row.stage == RL]
  costs = costs_of(rows)
  for i, row in enumerate(rows):
    for name, value in row.values.items():
      if name.startswith(("success/", "policy/", "staleness/", "reward/")):
        yield {
          **{cost: round(values[i], 3) for cost, values in costs.items()},
          "metric": name,
          "value": value,
        }


def _validation_rows(run: Run) -> Iterator[Mapping[str, object]]:
  """Yields evaluations during RL, whose cost is known in updates alone."""
  for row in run.rows:
    for name, value in row.values.items():
      if row.stage.startswith(f"{VALIDATION}_") and name.startswith(EVALUATED):
        yield {
          **dict.fromkeys(COSTS, ""),
          UPDATES: row.step,
          "metric": f"{row.stage}/{name}",
          "value": value,
        }


def _write_csv(
  path: pathlib.Path, rows: Iterator[Mapping[str, object]]
) -> None:
  table = list(rows)
  with writing(path), path.open("w", newline="", encoding="utf-8") as file:
    if table:
      writer = csv.DictWriter(file, list(table[0]))
      writer.writeheader()
      writer.writerows(table)
