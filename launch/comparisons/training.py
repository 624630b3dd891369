"""Success while runs learn, at equal costs: the mean over a budget.

Evaluations say where runs ended, after equal numbers of updates. How fast they
learned is the mean success of the training rollouts from the first to the last
update that a budget pays for: the area under the learning curve. The budget of
each cost is the largest that all finished runs have spent, so that none is
compared with more episodes, trained tokens or minutes than another.

The rollouts are those of all policy slots: where older versions play a part of
the turns, success is lower than that of the policy that learns from them.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from agentrl_jax.controller.evaluation import wilson_interval
from agentrl_jax.metrics import Row
from launch.comparisons.bands import (
  EPISODES,
  MINUTES,
  TOKENS,
  costs_of,
  counted,
)
from launch.comparisons.runs import Arm, Run
from launch.reports.curves import RL, SUCCESS
from launch.reports.summary import TRAINING, Evaluation, Score
from launch.sweeps.cells import CellState

_FINISHED = "rollout/finished"
# The mode of each cost.
_COSTS = dict(zip(TRAINING, (EPISODES, TOKENS, MINUTES), strict=True))


def with_training(arms: Sequence[Arm]) -> list[Arm]:
  """Adds an evaluation per cost to every finished run.

  Arms are returned as they are if a finished run has no curves, as those that
  are read from a finals.csv: what it has spent is not known.
  """
  finished = [
    run
    for arm in arms
    for run in arm.runs.values()
    if run.state is CellState.FINISHED
  ]
  if not all(map(_has_curves, finished)):
    return list(arms)
  budgets = {
    mode: min((_curves(run)[cost][-1] for run in finished), default=0.0)
    for mode, cost in _COSTS.items()
  }
  return [_added(arm, budgets) for arm in arms]


def _has_curves(run: Run) -> bool:
  return any(row.stage == RL for row in run.rows)


def _curves(run: Run) -> dict[str, list[float]]:
  return costs_of([row for row in run.rows if row.stage == RL])


def _added(arm: Arm, budgets: dict[str, float]) -> Arm:
  runs = {}
  for seed, run in arm.runs.items():
    found = list(run.evaluations)
    if run.state is CellState.FINISHED:
      found += [
        evaluation
        for mode, budget in budgets.items()
        if (evaluation := training_evaluation(run, mode, budget))
      ]
    runs[seed] = dataclasses.replace(run, evaluations=found)
  return dataclasses.replace(arm, runs=runs)


def training_evaluation(
  run: Run, mode: str, budget: float
) -> Evaluation | None:
  """Averages the success of a run's batches over the budget of a cost.

  A batch weighs as much as its update cost; the update that exceeds the budget
  counts in part. A task weighs by the batches that it has. The intervals count
  the episodes as if they were independent. None if no task has a batch.
  """
  rows = [row for row in run.rows if row.stage == RL]
  ends = np.minimum(_curves(run)[_COSTS[mode]], budget)
  weights = np.diff(ends, prepend=0.0)
  prefix = f"{SUCCESS}/"
  names = sorted(
    {key for row in rows for key in row.values if key.startswith(prefix)}
  )
  episodes = np.array([r.values.get("batch/trajectories", 0.0) for r in rows])
  num_played = episodes[weights > 0].sum() * _shares(rows, names)
  scores = {}
  for name, number in zip(names, num_played, strict=True):
    played = max(round(number), 1)
    success = np.array([row.values.get(name, math.nan) for row in rows])
    has = np.isfinite(success) & (weights > 0)
    if not has.any():
      continue
    mean = float(np.average(success[has], weights=weights[has]))
    low, high = wilson_interval(round(mean * played), played)
    scores[name.removeprefix(prefix)] = Score(
      n=played, success=mean, low=low, high=high, reward=mean
    )
  return Evaluation(RL, mode, scores) if scores else None


def _shares(rows: Sequence[Row], names: Sequence[str]) -> np.ndarray:
  """Returns each task's share of the finished episodes; equal if unknown."""
  found = [
    counted(rows, f"{_FINISHED}/{name.partition('/')[2]}") for name in names
  ]
  weights = np.array(found if any(found) else [1.0] * len(names))
  shares: np.ndarray = weights / weights.sum()
  return shares
