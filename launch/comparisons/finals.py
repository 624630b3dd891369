"""Final scores of arms: levels with intervals, and differences with tests."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from agentrl_jax.errors import ConfigError
from launch.comparisons.runs import Arm
from launch.comparisons.statistics import (
  Estimate,
  PairedDifference,
  bootstrap,
  interquartile_interval,
  paired_difference,
)
from launch.reports.summary import PASS

MEAN = "mean"  # of environments, with equal weights


@dataclasses.dataclass(frozen=True)
class Level:
  """Success of one arm after a stage, per environment and their mean.

  An arm that was not evaluated on all environments of the comparison has no
  mean of them.
  """

  arm: str
  num_seeds: int
  tasks: Mapping[str, Estimate]  # and MEAN
  middle: Estimate | None  # interquartile mean over seeds and environments


@dataclasses.dataclass(frozen=True)
class Change:
  """Difference of an arm to the first one, paired by seed."""

  arm: str
  tasks: Mapping[str, PairedDifference]  # of those that both have, and MEAN


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

  @property
  def columns(self) -> list[str]:
    """The environments, and their mean where some arm has it."""
    has_mean = any(MEAN in level.tasks for level in self.levels)
    return [*self.tasks, *([MEAN] if has_mean and len(self.tasks) > 1 else [])]


def finals(arms: Sequence[Arm], stage: str, mode: str) -> Finals | None:
  """Compares arms after a stage; None if no run was evaluated.

  Of pass@k there is no mean over k. Arms that share their warm start are not
  compared after it.
  """
  scores = {arm.name: _scores(arm, stage, mode) for arm in arms}
  evaluated = [found for each in scores.values() for found in each.values()]
  if not evaluated:
    return None
  num_episodes = {
    task: n for each in reversed(evaluated) for task, (_, n) in each.items()
  }
  tasks = list(dict.fromkeys(task for each in evaluated for task in each))
  random = np.random.default_rng(0)
  has_mean = mode != PASS
  levels = [
    _level(name, seeds, tasks, random, has_mean=has_mean)
    for name, seeds in scores.items()
    if seeds
  ]
  first = arms[0].name
  changes = [
    change
    for name, seeds in scores.items()
    if name != first
    and (
      change := _change(name, scores[first], seeds, tasks, has_mean=has_mean)
    )
    is not None
  ]
  if stage == "warm_start":
    changes = [c for c in changes if any(d.mean for d in c.tasks.values())]
  return Finals(
    stage=stage,
    mode=mode,
    tasks=tasks,
    num_episodes=num_episodes,
    levels=levels,
    baseline=first,
    changes=changes,
  )


Scores = Mapping[str, tuple[float, int]]  # success and episodes, by task


def contrast(
  arms: Sequence[Arm], stage: str, mode: str, after: str, before: str
) -> Change | None:
  """Compares two sides of named arms, `after` - `before`, paired by seed.

  A side is an arm, or the sum of several that each have some of the tasks, as
  in "only_x/x + only_y/y". "arm@warm_start" is the arm at another stage, and
  "arm@rise" its difference of RL and warm start. None if no seed has both
  sides. Raises `ConfigError` for an arm that there is not.
  """
  first, seeds = (_side(arms, stage, mode, side) for side in (before, after))
  tasks = list(dict.fromkeys(t for each in seeds.values() for t in each))
  return _change(
    f"{after} − {before}", first, seeds, tasks, has_mean=len(tasks) > 1
  )


def _side(
  arms: Sequence[Arm], stage: str, mode: str, side: str
) -> dict[int, Scores]:
  by_name = {arm.name: arm for arm in arms}
  parts = []
  for term in side.split(" + "):
    whole, _, task = term.partition("/")
    name, _, own_stage = whole.partition("@")
    if name not in by_name:
      raise ConfigError(f"no arm {name!r} in {', '.join(by_name)}")
    scores_of_arm = _scores(by_name[name], own_stage or stage, mode)
    parts.append(
      {
        seed: {t: score for t, score in scores.items() if not task or t == task}
        for seed, scores in scores_of_arm.items()
      }
    )
  return {
    seed: {t: score for part in parts for t, score in part[seed].items()}
    for seed in parts[0]
    if all(seed in part for part in parts)
  }


def _scores(arm: Arm, stage: str, mode: str) -> dict[int, Scores]:
  """Returns the scores of every seed that was evaluated at the stage."""
  if stage == "rise":
    before, after = (_scores(arm, each, mode) for each in ("warm_start", "rl"))
    return {
      seed: {t: (share - before[seed][t][0], n) for t, (share, n) in of.items()}
      for seed, of in after.items()
      if seed in before and of.keys() <= before[seed].keys()
    }
  evaluations = {s: run.evaluation(stage, mode) for s, run in arm.runs.items()}
  return {
    seed: {name: (s.success, s.n) for name, s in evaluation.tasks.items()}
    for seed, evaluation in evaluations.items()
    if evaluation is not None
  }


def _mean(scores: Scores, tasks: Sequence[str]) -> tuple[float, int]:
  shares = [scores[task][0] for task in tasks]
  return math.fsum(shares) / len(shares), sum(scores[t][1] for t in tasks)


def _shared(tasks: Sequence[str], scores: Iterable[Scores]) -> list[str]:
  """Returns those of the tasks that all scores have."""
  each = list(scores)
  return [task for task in tasks if all(task in found for found in each)]


def _level(
  name: str,
  seeds: Mapping[int, Scores],
  tasks: Sequence[str],
  random: np.random.Generator,
  *,
  has_mean: bool,
) -> Level:
  own = _shared(tasks, seeds.values())
  estimates = {
    task: bootstrap([scores[task] for scores in seeds.values()], random)
    for task in own
  }
  middle = None
  if own == tasks and has_mean:
    estimates[MEAN] = bootstrap(
      [_mean(scores, tasks) for scores in seeds.values()], random
    )
    matrix = np.array([[s[task][0] for task in tasks] for s in seeds.values()])
    middle = interquartile_interval(matrix, random)
  return Level(name, len(seeds), estimates, middle)


def _change(
  name: str,
  first: Mapping[int, Scores],
  seeds: Mapping[int, Scores],
  tasks: Sequence[str],
  *,
  has_mean: bool,
) -> Change | None:
  common = sorted(set(first) & set(seeds))
  before, after = [first[s] for s in common], [seeds[s] for s in common]
  own = _shared(tasks, [*before, *after])
  if not common or not own:
    return None
  differences = {
    task: paired_difference(
      [scores[task][0] for scores in before],
      [scores[task][0] for scores in after],
    )
    for task in own
  }
  if own == tasks and has_mean:
    differences[MEAN] = paired_difference(
      [_mean(scores, tasks)[0] for scores in before],
      [_mean(scores, tasks)[0] for scores in after],
    )
  return Change(name, differences)
