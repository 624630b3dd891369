"""Check of a sweep before it costs anything: can it show what it asks?

From one cell that has made a few updates, and attempts of its warm start at
training tasks: success, spread and signal per task, the difference that so many
seeds can show, and the time.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import ml_collections

from agentrl_jax.controller.evaluation import wilson_interval
from agentrl_jax.data.records import Status, Task
from agentrl_jax.metrics import Row
from launch.comparisons.attempts import Attempt, differing_share
from launch.comparisons.statistics import (
  binomial_spread,
  detectable_difference,
)
from launch.reports.curves import RL
from launch.reports.numbers import percent
from launch.sweeps.plan import Cell

LEAST_SIGNAL = 0.1  # share of groups; below, success can hardly be learned
SPREADS = (0.0, 0.03, 0.06)  # of seeds, beyond that of their episodes
NUM_UPDATES = 3  # that the time of an update is taken from
_OF_A_RUN = ("name", "workdir", "seed", "compile_cache")


@dataclasses.dataclass(frozen=True)
class TaskStart:
  """State of one environment at the start of RL."""

  task: str
  success: float
  low: float
  high: float
  reward_spread: float  # standard deviation over attempts
  signal: float  # share of groups whose attempts differ in the trained reward
  differ: float  # share of groups whose attempts differ in success


def starts_of(
  attempts: Mapping[str, Mapping[Task, Sequence[Attempt]]],
  group_size: int,
  *,
  incomplete_reward: float,
) -> list[TaskStart]:
  """Reads the attempts of a warm start, by environment.

  As in training, an attempt that did not complete has `incomplete_reward`.
  """

  def trained_reward(attempt: Attempt) -> float:
    is_complete = attempt.status == Status.COMPLETED.value
    return attempt.reward if is_complete else incomplete_reward

  starts = []
  for name, tasks in sorted(attempts.items()):
    each = [a for tries in tasks.values() for a in tries]
    wins = sum(a.success for a in each)
    low, high = wilson_interval(wins, len(each))
    starts.append(
      TaskStart(
        task=name,
        success=wins / len(each),
        low=low,
        high=high,
        reward_spread=statistics.pstdev(map(trained_reward, each)),
        signal=differing_share(
          [list(map(trained_reward, tries)) for tries in tasks.values()],
          group_size,
        ),
        differ=differing_share(
          [[a.success for a in tries] for tries in tasks.values()], group_size
        ),
      )
    )
  return starts


def hopeless_tasks(starts: Sequence[TaskStart]) -> list[str]:
  """Says of each task from which an arm can hardly learn, and why."""
  sentences = []
  for each in starts:
    if each.differ >= LEAST_SIGNAL:
      continue
    if each.success < 0.1:
      how, remedy = "almost never", "more demonstrations, or easier tasks"
    elif each.success > 0.9:
      how, remedy = "almost always", "harder tasks"
    else:
      how, remedy = "always or never, by task", "tasks of other difficulty"
    sentences.append(
      f"{each.task} is solved {how} at the start ({percent(each.success)}): "
      f"only {percent(each.differ)} of its groups differ in success. No arm "
      f"can show much there; try {remedy}."
    )
  return sentences


def configs_that_are_equal(
  configs: Mapping[Cell, ml_collections.ConfigDict],
) -> set[frozenset[str]]:
  """Returns the pairs of arms whose configs differ in nothing."""
  first_seed = min(cell.seed for cell in configs)
  texts: dict[str, str] = {}
  for cell, config in configs.items():
    if cell.seed == first_seed:
      values = {k: v for k, v in config.to_dict().items() if k not in _OF_A_RUN}
      texts[cell.arm] = repr(sorted(values.items()))
  return {
    frozenset(pair)
    for pair in itertools.combinations(texts, 2)
    if texts[pair[0]] == texts[pair[1]]
  }


def equal_arms(
  configs: Mapping[Cell, ml_collections.ConfigDict],
) -> list[str]:
  """Names arms whose config is that of another one."""
  pairs = configs_that_are_equal(configs)
  arms = list(dict.fromkeys(cell.arm for cell in configs))
  sentences = []
  for place, arm in enumerate(arms):
    same = [a for a in arms[:place] if frozenset((a, arm)) in pairs]
    if same:
      sentences.append(
        f"{arm} has the same config as {same[0]}: it can show nothing, unless "
        "it is meant as a negative control."
      )
  return sentences


def detectable_lines(num_tasks: int, num_seeds: int) -> list[str]:
  """Says which difference a test can find, for each of `SPREADS`.

  `num_tasks` are the held-out tasks of all environments; success is taken as a
  half, which is the worst case.
  """
  sentences = []
  for spread in SPREADS:
    noise = math.hypot(binomial_spread(0.5, num_tasks), spread)
    size = detectable_difference(noise, num_seeds)
    what = (
      f"find a difference of {100 * size:.1f} points in four of five cases"
      if size < 1
      else "find no difference at all: take more seeds, or a larger "
      "evaluation.num_tasks"
    )
    sentences.append(
      f"if paired seeds differ by {100 * spread:g} points (sd) beyond the "
      f"noise of {num_tasks} episodes, {num_seeds} seeds {what}"
    )
  return sentences


def update_seconds(rows: Sequence[Row]) -> float:
  """Returns the median time of an update, without the first; NaN if unknown."""
  each = [
    row.values["seconds/wait"] + row.values["seconds/train"]
    for row in rows
    if row.stage == RL
  ]
  return statistics.median(each[1:]) if len(each) > 1 else math.nan


def sweep_hours(
  *,
  before_rl_s: float,
  evaluation_s: float,
  update_s: float,
  steps: int,
  num_arms: int,
  num_seeds: int,
  at_once: int,
) -> float:
  """Estimates the hours of a sweep; the stages before RL are made per seed."""
  cell_s = steps * update_s + evaluation_s
  total_s = num_seeds * (before_rl_s + num_arms * cell_s)
  return total_s / at_once / 3600
