"""Final scores of arms: levels with intervals, and differences with tests."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from launch.comparisons.runs import Arm
from launch.comparisons.statistics import (
  Estimate,
  PairedDifference,
  bootstrap,
  interquartile_interval,
  paired_difference,
)

MEAN = "mean"  # of environments, with equal weights


@dataclasses.dataclass(frozen=True)
class Level:
  """Success of one arm after a stage, per environment and their mean."""

  arm: str
  tasks: Mapping[str, Estimate]  # and MEAN
  middle: Estimate  # interquartile mean over seeds and environments


@dataclasses.dataclass(frozen=True)
class Change:
  """Difference of an arm to the first one, paired by seed."""

  arm: str
  tasks: Mapping[str, PairedDifference]  # and MEAN


@dataclasses.dataclass(frozen=True)
class Finals:
  """Scores of one stage and mode."""

  stage: str
  mode: str
  tasks: Sequence[str]
  num_episodes: Mapping[str, int]  # per seed, of each environment
  levels: Sequence[Level]
  baseline: str
  changes: Sequence[Change]


def finals(arms: Sequence[Arm], stage: str, mode: str) -> Finals | None:
  """Compares arms after a stage; None if no run was evaluated.

  Environments that some evaluated run lacks are left out.
  """
  scores = {arm.name: _scores(arm, stage, mode) for arm in arms}
  evaluated = [found for each in scores.values() for found in each.values()]
  if not evaluated:
    return None
  tasks = [
    task for task in evaluated[0] if all(task in each for each in evaluated)
  ]
  random = np.random.default_rng(0)
  levels = [
    _level(name, seeds, tasks, random)
    for name, seeds in scores.items()
    if seeds
  ]
  first = arms[0].name
  changes = [
    change
    for name, seeds in scores.items()
    if name != first
    and (change := _change(name, scores[first], seeds, tasks)) is not None
  ]
  return Finals(
    stage=stage,
    mode=mode,
    tasks=tasks,
    num_episodes={task: evaluated[0][task][1] for task in tasks},
    levels=levels,
    baseline=first,
    changes=changes,
  )


Scores = Mapping[str, tuple[float, int]]  # success and episodes, by task


def _scores(arm: Arm, stage: str, mode: str) -> dict[int, Scores]:
  """Returns the scores of every seed that was evaluated."""
  found = {seed: run.evaluation(stage, mode) for seed, run in arm.runs.items()}
  return {
    seed: {name: (s.success, s.n) for name, s in evaluation.tasks.items()}
    for seed, evaluation in found.items()
    if evaluation is not None
  }


def _mean(scores: Scores, tasks: Sequence[str]) -> tuple[float, int]:
  shares = [scores[task][0] for task in tasks]
  return math.fsum(shares) / len(shares), sum(scores[t][1] for t in tasks)


def _level(
  name: str,
  seeds: Mapping[int, Scores],
  tasks: Sequence[str],
  random: np.random.Generator,
) -> Level:
  estimates = {
    task: bootstrap([scores[task] for scores in seeds.values()], random)
    for task in tasks
  }
  estimates[MEAN] = bootstrap(
    [_mean(scores, tasks) for scores in seeds.values()], random
  )
  matrix = np.array([[s[task][0] for task in tasks] for s in seeds.values()])
  return Level(name, estimates, interquartile_interval(matrix, random))


def _change(
  name: str,
  first: Mapping[int, Scores],
  seeds: Mapping[int, Scores],
  tasks: Sequence[str],
) -> Change | None:
  common = sorted(set(first) & set(seeds))
  if not common:
    return None
  return Change(
    name,
    {
      task: paired_difference(
        [first[seed][task][0] for seed in common],
        [seeds[seed][task][0] for seed in common],
      )
      for task in tasks
    }
    | {
      MEAN: paired_difference(
        [_mean(first[seed], tasks)[0] for seed in common],
        [_mean(seeds[seed], tasks)[0] for seed in common],
      )
    },
  )
