"""Final scores of arms: levels with intervals, and differences with tests."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launch.comparisons.runs import Arm
from launch.comparisons.statistics import (
  Difference,
  Estimate,
  binomial_variance,
  mean_and_interval,
  paired_difference,
  with_holm,
)
from launch.reports.summary import PASS, Score

MEAN = "mean"  # of environments, with equal weights
Pairs = Sequence[tuple[str, str]]  # what is compared: after and before


@dataclasses.dataclass(frozen=True)
class Level:
  """Success of one arm, by column: the tasks that all of its seeds have."""

  arm: str
  num_seeds: int
  columns: Mapping[str, Estimate]


@dataclasses.dataclass(frozen=True)
class Change:
  """Difference of two arms, paired by seed, by column that both have."""

  after: str
  before: str
  columns: Mapping[str, Difference]

  @property
  def label(self) -> str:
    """Names the difference."""
    return f"{self.after} − {self.before}"


@dataclasses.dataclass(frozen=True)
class Finals:
  """Scores of one stage and mode; the last column may be the mean of tasks."""

  stage: str
  mode: str
  columns: Sequence[str]
  num_episodes: Mapping[str, tuple[int, int]]  # least and most, by task
  levels: Sequence[Level]
  changes: Sequence[Change]


class _Share(NamedTuple):
  success: float
  variance: float  # that its episodes cause


def finals(
  arms: Sequence[Arm], stage: str, mode: str, pairs: Pairs
) -> Finals | None:
  """Compares arms after a stage; None if no run was evaluated.

  Of pass@k there is no mean over k.
  """
  scores = {arm.name: _scores(arm, stage, mode) for arm in arms}
  evaluated = [tasks for seeds in scores.values() for tasks in seeds.values()]
  if not evaluated:
    return None
  tasks = list(dict.fromkeys(task for each in evaluated for task in each))
  columns = [*tasks, *([MEAN] if len(tasks) > 1 and mode != PASS else [])]
  known = {
    name: {
      column: shares
      for column in columns
      if (shares := _column(seeds, column, tasks))
    }
    for name, seeds in scores.items()
  }
  counts = {
    task: [each[task].n for each in evaluated if task in each] for task in tasks
  }
  return Finals(
    stage,
    mode,
    columns,
    {task: (min(n), max(n)) for task, n in counts.items()},
    [
      Level(name, len(scores[name]), {c: _level(x) for c, x in of.items()})
      for name, of in known.items()
      if of
    ],
    _changes(pairs, known, columns),
  )


def _scores(arm: Arm, stage: str, mode: str) -> dict[int, Mapping[str, Score]]:
  return {
    seed: evaluation.tasks
    for seed, run in arm.runs.items()
    if (evaluation := run.evaluation(stage, mode))
  }


def _column(
  seeds: Mapping[int, Mapping[str, Score]], column: str, tasks: Sequence[str]
) -> dict[int, _Share]:
  """Returns a column of an arm; empty unless all of its seeds have it."""
  names = tasks if column == MEAN else [column]
  if not all(name in scores for scores in seeds.values() for name in names):
    return {}
  return {
    seed: _Share(
      math.fsum(scores[name].success for name in names) / len(names),
      math.fsum(
        binomial_variance(scores[name].success, scores[name].n)
        for name in names
      )
      / len(names) ** 2,
    )
    for seed, scores in seeds.items()
  }


def _level(seeds: Mapping[int, _Share]) -> Estimate:
  variance = math.fsum(share.variance for share in seeds.values())
  return mean_and_interval(
    [share.success for share in seeds.values()],
    math.sqrt(variance) / len(seeds),
  )


def _changes(
  pairs: Pairs,
  known: Mapping[str, Mapping[str, Mapping[int, _Share]]],
  columns: Sequence[str],
) -> list[Change]:
  found: dict[tuple[str, str], dict[str, Difference]] = {p: {} for p in pairs}
  for column in columns:
    tests = {
      (after, before): test
      for after, before in pairs
      if (
        test := _difference(
          known[before].get(column, {}), known[after].get(column, {})
        )
      )
    }
    for pair, test in zip(tests, with_holm([*tests.values()]), strict=True):
      found[pair][column] = test
  return [Change(*pair, tests) for pair, tests in found.items() if tests]


def _difference(
  before: Mapping[int, _Share], after: Mapping[int, _Share]
) -> Difference | None:
  seeds = sorted(before.keys() & after.keys())
  if not seeds:
    return None
  variance = math.fsum(
    of[seed].variance for seed in seeds for of in (before, after)
  )
  return paired_difference(
    [before[seed].success for seed in seeds],
    [after[seed].success for seed in seeds],
    math.sqrt(variance) / len(seeds),
  )
