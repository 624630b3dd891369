"""The comparison as one self-contained page, with pictures and CSV beside it.

<output>/report.html  finals.csv  <plot>.png
"""

import csv
import dataclasses
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agentrl_jax.errors import ConfigError, suggestion
from agentrl_jax.files import write_whole, writing
from launch.comparisons.curves import make_plots
from launch.comparisons.finals import MEAN, Change, Finals, Pairs, finals
from launch.comparisons.runs import Arm, Run
from launch.comparisons.statistics import FEW_SEEDS, Difference, Estimate
from launch.reports import numbers
from launch.reports.curves import RL, VALIDATION
from launch.reports.html import page
from launch.reports.plots import Plot
from launch.reports.tables import TableCell
from launch.sweeps.cells import CellState

STAGES = ("rl", "warm_start")  # of the tables: the most asked for first
_STEPS = "train.steps"


@dataclasses.dataclass(frozen=True)
class ComparisonPage:
  """All that a page shows."""

  title: str
  arms: Sequence[Arm]  # the baseline is the first
  pairs: Pairs  # that are compared
  finals: Sequence[Finals]
  plots: Sequence[Plot]


def compare(
  title: str, arms: Sequence[Arm], *, baseline: str = "", contrasts: Pairs = ()
) -> ComparisonPage:
  """Computes every number and plot of the arms.

  All arms are compared with the baseline, which is the first arm unless it is
  named; if there are contrasts, these (after and before) are compared, and arms
  with the baseline only if it is named. Raises `ConfigError` for an arm that
  there is not.
  """
  names = [arm.name for arm in arms]
  for flag, name in [
    *((("--baseline", baseline),) if baseline else ()),
    *(("--contrast", name) for pair in contrasts for name in pair),
  ]:
    if name not in names:
      raise ConfigError(
        f"{flag} names {name!r}, which is no arm{suggestion(name, names)}; "
        f"there are {', '.join(names)}"
      )
  arms = sorted(arms, key=lambda arm: arm.name != baseline)
  pairs = list(contrasts)
  if baseline or not pairs:
    pairs += [(arm.name, arms[0].name) for arm in arms[1:]]
  pairs = list(dict.fromkeys(pairs))
  modes = dict.fromkeys(
    evaluation.mode
    for arm in arms
    for run in arm.runs.values()
    for evaluation in run.evaluations
  )
  scores = [
    of
    for stage in STAGES
    for mode in modes
    if (of := finals(arms, stage, mode, pairs if stage == RL else ()))
  ]
  return ComparisonPage(title, arms, pairs, scores, make_plots(arms, scores))


def write(comparison: ComparisonPage, output: pathlib.Path) -> None:
  """Writes the page, a picture of each plot, and the numbers as CSV."""
  output.mkdir(parents=True, exist_ok=True)
  for plot in comparison.plots:
    plot.write(output)
  rows = list(_final_rows(comparison.arms))
  path = output / "finals.csv"
  with writing(path), path.open("w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, rows[0] if rows else [])
    writer.writeheader()
    writer.writerows(rows)
  write_whole(output / "report.html", render(comparison))


def render(comparison: ComparisonPage) -> str:
  """Renders the page as text."""
  return page(
    "comparison.html",
    title=comparison.title,
    verdicts=verdicts(comparison),
    warnings=warnings(comparison.arms),
    tables=[_scores(each) for each in comparison.finals],
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


def verdicts(comparison: ComparisonPage) -> list[str]:
  """Says in a sentence per pair of arms if they differ."""
  after = [each for each in comparison.finals if each.stage == RL]
  if not after:
    return ["No run has been evaluated after RL."]
  first = after[0]
  sentences = [
    _verdict(change, column, first.mode)
    for change in first.changes
    for column in ([MEAN] if MEAN in change.columns else change.columns)
  ]
  compared = {(change.after, change.before) for change in first.changes}
  if rest := [pair for pair in comparison.pairs if pair not in compared]:
    names = ", ".join(" − ".join(pair) for pair in rest)
    sentences.append(
      f"Not compared, since no seed of both has been evaluated {first.mode} on "
      f"a task of both: {names}."
    )
  return sentences


def _verdict(change: Change, column: str, mode: str) -> str:
  test = change.columns[column]
  what = f"{numbers.points(test.mean)} points of {mode} success"
  what += "" if column == MEAN else f" on {column}"
  if test.n < FEW_SEEDS:
    seeds = f"{test.n} seed{'s' * (test.n > 1)}"
    return f"{change.label}: {what} with {seeds}, too few for a verdict."
  how = "different" if test.is_different else "not different"
  return (
    f"{change.label}: {what}, {how} at the 5 % level (95 % interval "
    f"{_interval(test)}, {test.n} seeds)."
  )


def _interval(test: Difference) -> str:
  text = numbers.signed_interval(test.low, test.high)
  text += f", {numbers.p_value(test.p)}"
  if test.holm != test.p:
    text += f", {numbers.p_value(test.holm)} by Holm"
  return text


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
  finished = {
    arm.name: sum(r.state is CellState.FINISHED for r in arm.runs.values())
    for arm in arms
  }
  if few := [f"{a} has {n}" for a, n in finished.items() if n < FEW_SEEDS]:
    sentences.append(
      f"Finished seeds are few: {', '.join(few)}; with fewer than {FEW_SEEDS} "
      "hardly any difference can be shown."
    )
  if len(steps := {run.config[_STEPS] for run in runs if run.config}) > 1:
    sentences.append(
      f"Runs are of {', '.join(map(str, sorted(steps)))} updates of RL: "
      "compare their curves, or give all of them as many."
    )
  if len(commits := {run.commit for run in runs if run.commit}) > 1:
    sentences.append(f"The runs are of {len(commits)} commits.")
  return sentences


def _where(run: Run) -> str:
  """Describes how far a run is."""
  rows = [r for r in run.rows if not r.stage.startswith(f"{VALIDATION}_")]
  if not rows:
    return ""
  return f"{numbers.stage_name(rows[-1].stage)} {rows[-1].step}"


# --- Tables -------------------------------------------------------------------


def _scores(of: Finals) -> dict[str, object]:
  """Returns levels and differences of one stage and mode, for the template."""
  rows = [
    (
      f"{level.arm} (n = {level.num_seeds})",
      [_level_cell(level.columns.get(name)) for name in of.columns],
    )
    for level in of.levels
  ]
  rows += [
    (
      change.label,
      [_test_cell(change.columns.get(name)) for name in of.columns],
    )
    for change in of.changes
  ]
  return {
    "caption": f"{numbers.stage_name(of.stage)}, {of.mode}",
    "columns": [
      TableCell(name, _episodes(*of.num_episodes[name]))
      if name in of.num_episodes
      else TableCell(name, "of tasks")
      for name in of.columns
    ],
    "rows": rows,
  }


def _episodes(least: int, most: int) -> str:
  return f"n = {least}{f' to {most}' * (most > least)} a seed"


def _level_cell(each: Estimate | None) -> TableCell:
  if each is None:
    return TableCell("")
  return TableCell(
    numbers.percent(each.mean), numbers.interval(each.low, each.high)
  )


def _test_cell(each: Difference | None) -> TableCell:
  if each is None:
    return TableCell("")
  seeds = f"n = {each.n}"
  note = seeds if math.isnan(each.p) else f"{_interval(each)}; {seeds}"
  return TableCell(numbers.points(each.mean), note, each.is_different)


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
