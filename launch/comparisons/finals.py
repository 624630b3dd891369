"""Final scores of arms: levels with intervals, and differences with tests."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from configs.experiment import split_term
from launch.comparisons.runs import Arm
from launch.comparisons.statistics import (
  Estimate,
  PairedDifference,
  SeedNoise,
  binomial_variance,
  interquartile_mean,
  mean_over_seeds,
  paired_difference,
  pooled_difference,
  pooled_noise,
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
  middle: float | None  # interquartile mean over seeds and environments


@dataclasses.dataclass(frozen=True)
class Tests:
  """The two tests of one difference, of the same mean.

  `first` holds for all differences of the comparison together: by the residuals
  of all arms' seeds where its own vary as these do (`is_pooled`), else by those
  of its two arms, with Bonferroni's correction. `paired` is the paired t test
  of the two arms, for itself.
  """

  first: PairedDifference
  paired: PairedDifference
  is_pooled: bool

  @property
  def mean(self) -> float:
    """The difference itself."""
    return self.paired.mean


@dataclasses.dataclass(frozen=True)
class Change:
  """Difference of two arms, or sides, paired by seed."""

  after: str
  before: str
  tasks: Mapping[str, Tests]  # of those that both have, and MEAN

  @property
  def label(self) -> str:
    """Names the difference."""
    return f"{self.after} − {self.before}"


@dataclasses.dataclass(frozen=True)
class Finals:
  """Scores of one stage and mode."""

  stage: str
  mode: str
  tasks: Sequence[str]
  num_episodes: Mapping[
    str, tuple[int, int]
  ]  # least and most of a run, by task
  levels: Sequence[Level]
  changes: Sequence[Change]

  @property
  def columns(self) -> list[str]:
    """The environments, and their mean where some arm has it."""
    has_mean = any(MEAN in level.tasks for level in self.levels)
    return [*self.tasks, *([MEAN] if has_mean and len(self.tasks) > 1 else [])]


@dataclasses.dataclass(frozen=True)
class Share:
  """Success of one run on a task, and the variance that its episodes cause."""

  success: float
  variance: float
  num_episodes: int
  # Of a rise: success where it starts, by task, and that one's part of the
  # variance, which a difference of two rises from one start does not have.
  start: tuple[float, ...] = ()
  start_variance: float = 0.0


Scores = Mapping[str, Share]  # by task
Pairs = Sequence[tuple[str, str]]  # what is compared: after and before


def against(baseline: str, arms: Sequence[Arm]) -> Pairs:
  """Returns the comparisons of all other arms with one."""
  return [(arm.name, baseline) for arm in arms if arm.name != baseline]


def finals(
  arms: Sequence[Arm], stage: str, mode: str, pairs: Pairs | None = None
) -> Finals | None:
  """Compares arms after a stage; None if no run was evaluated.

  `pairs` are compared, else all arms with the first. Of pass@k there is no mean
  over k. Arms that share their warm start are not compared after it.
  """
  scores = {arm.name: _scores(arm, stage, mode) for arm in arms}
  evaluated = [found for each in scores.values() for found in each.values()]
  if not evaluated:
    return None
  tasks = list(dict.fromkeys(task for each in evaluated for task in each))
  counts = {
    task: [each[task].num_episodes for each in evaluated if task in each]
    for task in tasks
  }
  has_mean = mode != PASS
  is_shared = stage == "warm_start"
  changes = _changes(
    against(arms[0].name, arms) if pairs is None else pairs,
    scores,
    tasks,
    has_mean=has_mean,
    is_pooled=not is_shared,
  )
  if is_shared:
    changes = [c for c in changes if any(t.mean for t in c.tasks.values())]
  return Finals(
    stage=stage,
    mode=mode,
    tasks=tasks,
    num_episodes={task: (min(n), max(n)) for task, n in counts.items()},
    levels=[
      _level(name, seeds, tasks, has_mean=has_mean)
      for name, seeds in scores.items()
      if seeds
    ],
    changes=changes,
  )


def contrasts(
  arms: Sequence[Arm], stage: str, mode: str, pairs: Pairs
) -> list[Change]:
  """Compares two sides for each of the pairs, by seed.

  A side is an arm, or the sum of several that each have some of the tasks, as
  in "only_x/x + only_y/y". "arm@warm_start" is the arm at another stage, and
  "arm@rise" its difference of RL and warm start. If all sides are arms, they
  are tested as in `finals`, else each pair by itself. Pairs of which no seed
  has both sides are left out. Raises `ConfigError` for an arm that there is
  not.
  """
  sides = {
    side: _side(arms, stage, mode, side) for pair in pairs for side in pair
  }
  if sides.keys() <= {arm.name for arm in arms}:
    of = finals(arms, stage, mode, pairs)
    return list(of.changes) if of else []
  changes = []
  for pair in pairs:
    tasks, others = (
      list(dict.fromkeys(t for of in sides[side].values() for t in of))
      for side in pair
    )
    changes += _changes(
      [pair],
      {side: sides[side] for side in pair},
      tasks,
      has_mean=len(tasks) > 1 and {*tasks} == {*others},
      is_pooled=False,
    )
  return changes


def _side(
  arms: Sequence[Arm], stage: str, mode: str, side: str
) -> dict[int, Scores]:
  by_name = {arm.name: arm for arm in arms}
  parts = []
  for term in side.split(" + "):
    name, own_stage, task = split_term(term)
    if name not in by_name:
      raise ConfigError(f"no arm {name!r} in {', '.join(by_name)}")
    scores_of_arm = _scores(by_name[name], own_stage or stage, mode)
    parts.append(
      {
        seed: {t: score for t, score in scores.items() if not task or t == task}
        for seed, scores in scores_of_arm.items()
      }
    )
  joint: dict[int, Scores] = {}
  for seed in parts[0]:
    if all(seed in part for part in parts):
      tasks = [task for part in parts for task in part[seed]]
      if twice := {task for task in tasks if tasks.count(task) > 1}:
        raise ConfigError(
          f"{side}: two of its arms have {', '.join(sorted(twice))}, and a sum "
          "has each task of one arm: write arm/task"
        )
      joint[seed] = {t: s for part in parts for t, s in part[seed].items()}
  return joint


def _scores(arm: Arm, stage: str, mode: str) -> dict[int, Scores]:
  """Returns the scores of every seed that was evaluated at the stage."""
  if stage == "rise":
    before, after = (_scores(arm, each, mode) for each in ("warm_start", "rl"))
    return {
      seed: {task: _rise(before[seed][task], of[task]) for task in of}
      for seed, of in after.items()
      if seed in before and of.keys() <= before[seed].keys()
    }
  evaluations = {s: run.evaluation(stage, mode) for s, run in arm.runs.items()}
  return {
    seed: {
      name: Share(s.success, binomial_variance(s.success, s.n), s.n)
      for name, s in evaluation.tasks.items()
    }
    for seed, evaluation in evaluations.items()
    if evaluation is not None
  }


def missing_lines(arms: Sequence[Arm], stage: str, mode: str) -> list[str]:
  """Says which seeds lack a task that other seeds of their arm have."""
  lines = []
  for arm in arms:
    seeds = _scores(arm, stage, mode)
    every = dict.fromkeys(task for scores in seeds.values() for task in scores)
    for seed, scores in seeds.items():
      if lacks := [task for task in every if task not in scores]:
        lines.append(
          f"seed {seed} of {arm.name} has no {mode} score of {', '.join(lacks)}"
        )
  return lines


def _rise(before: Share, after: Share) -> Share:
  return Share(
    after.success - before.success,
    before.variance + after.variance,
    after.num_episodes,
    (before.success,),
    before.variance,
  )


def _mean(scores: Scores, tasks: Sequence[str]) -> Share:
  """Returns the mean of tasks, with equal weights."""
  shares = [scores[task] for task in tasks]
  return Share(
    math.fsum(share.success for share in shares) / len(shares),
    math.fsum(share.variance for share in shares) / len(shares) ** 2,
    sum(share.num_episodes for share in shares),
    tuple(start for share in shares for start in share.start),
    math.fsum(share.start_variance for share in shares) / len(shares) ** 2,
  )


def _shared(tasks: Sequence[str], scores: Iterable[Scores]) -> list[str]:
  """Returns those of the tasks that all scores have."""
  each = list(scores)
  return [task for task in tasks if all(task in found for found in each)]


def _of_column(
  scores: Scores, column: str, tasks: Sequence[str]
) -> Share | None:
  """Returns a task's score, or the mean of all; None if it is not known."""
  if column != MEAN:
    return scores.get(column)
  return _mean(scores, tasks) if all(t in scores for t in tasks) else None


def _level(
  name: str,
  seeds: Mapping[int, Scores],
  tasks: Sequence[str],
  *,
  has_mean: bool,
) -> Level:
  own = _shared(tasks, seeds.values())
  is_whole = own == tasks and has_mean
  estimates = {}
  for column in (*own, *([MEAN] if is_whole else [])):
    shares = [_of_column(scores, column, tasks) for scores in seeds.values()]
    estimates[column] = mean_over_seeds(
      [share.success for share in shares if share],
      [share.variance for share in shares if share],
    )
  middle = None
  if is_whole:
    middle = interquartile_mean(
      [scores[task].success for scores in seeds.values() for task in tasks]
    )
  return Level(name, len(seeds), estimates, middle)


def _changes(
  pairs: Pairs,
  scores: Mapping[str, Mapping[int, Scores]],
  tasks: Sequence[str],
  *,
  has_mean: bool,
  is_pooled: bool,
) -> list[Change]:
  """Compares the pairs in every column that both have in all of their seeds.

  Sides that share runs or a warm start have no noise of their own each, and
  theirs must not be pooled.
  """
  found: dict[tuple[str, str], dict[str, Tests]] = {pair: {} for pair in pairs}
  for column in (*tasks, *([MEAN] if has_mean else [])):
    known = {
      name: {
        seed: share
        for seed, of in seeds.items()
        if (share := _of_column(of, column, tasks))
      }
      for name, seeds in scores.items()
    }
    known = {
      name: of for name, of in known.items() if len(of) == len(scores[name])
    }
    for pair, tests in column_tests(pairs, known, is_pooled=is_pooled).items():
      found[pair][column] = tests
  return [Change(*pair, tests) for pair, tests in found.items() if tests]


def column_tests(
  pairs: Pairs, scores: Mapping[str, Mapping[int, Share]], *, is_pooled: bool
) -> dict[tuple[str, str], Tests]:
  """Tests all pairs that have common seeds, in one column."""
  seeds_of = {
    pair: sorted(scores[pair[0]].keys() & scores[pair[1]].keys())
    for pair in pairs
    if pair[0] in scores and pair[1] in scores
  }
  seeds_of = {pair: seeds for pair, seeds in seeds_of.items() if seeds}
  noise = None
  if is_pooled and seeds_of:
    shares = [share for of in scores.values() for share in of.values()]
    noise = pooled_noise(
      {
        arm: {seed: share.success for seed, share in of.items()}
        for arm, of in scores.items()
        if of
      },
      math.fsum(share.variance for share in shares) / len(shares),
    )
  is_many_to_one = (
    len({before for _, before in seeds_of}) == 1
    and len(set(map(tuple, seeds_of.values()))) == 1
  )
  return {
    pair: _tests(
      *([scores[side][seed] for seed in seeds] for side in pair),
      noise=noise if noise and noise.arms.issuperset(pair) else None,
      num_tests=len(seeds_of),
      is_many_to_one=is_many_to_one,
    )
    for pair, seeds in seeds_of.items()
  }


def _tests(
  after: Sequence[Share],
  before: Sequence[Share],
  *,
  noise: SeedNoise | None,
  num_tests: int,
  is_many_to_one: bool,
) -> Tests:
  old, new = ([share.success for share in side] for side in (before, after))
  is_one_start = [s.start for s in after] == [s.start for s in before]
  variances = [
    share.variance - (share.start_variance if is_one_start else 0.0)
    for share in (*before, *after)
  ]
  error = math.sqrt(math.fsum(variances)) / len(before)
  paired = paired_difference(old, new, episode_error=error)
  is_pooled = noise is not None and len(noise.arms) > 2 and len(before) > 1
  if noise is not None and is_pooled:
    first = pooled_difference(
      old,
      new,
      noise,
      num_tests=num_tests,
      is_many_to_one=is_many_to_one,
      episode_error=error,
    )
  else:
    first = paired_difference(
      old, new, episode_error=error, num_tests=num_tests
    )
  return Tests(first, paired, is_pooled)
