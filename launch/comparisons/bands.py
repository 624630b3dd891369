"""Curves of an arm: the mean over seeds, with a band, over several costs."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from agentrl_jax.metrics import Row
from launch.comparisons.runs import Arm, Run
from launch.comparisons.statistics import FEW_SEEDS, LEVEL, seeds_text
from launch.reports.curves import RL
from launch.reports.plots import PlotLine

UPDATES, EPISODES, TOKENS, MINUTES = (
  "updates",
  "episodes",
  "trained tokens",
  "minutes of RL",
)
COSTS = (UPDATES, EPISODES, TOKENS, MINUTES)
_POINTS = 60
_WINDOW = 5  # updates that a curve is smoothed over


def band(
  arm: Arm,
  metrics: Sequence[str],
  cost: str,
  *,
  place: int,
  stage: str = RL,
  is_share: bool = False,
) -> PlotLine | None:
  """Returns the mean of the metrics over seeds; None if no run has them.

  Each seed's curve of RL is smoothed over 5 updates. Another `stage` has its
  cost in updates alone. The line ends where the first seed ends. Around it is
  the 95 % interval of the mean, within 0 and 1 for shares, or each seed if
  there are fewer than `FEW_SEEDS`: the interval of two is wider than any plot.
  """
  curves = [
    curve
    for run in arm.runs.values()
    if (curve := smoothed(run, metrics, cost, stage)) is not None
  ]
  if not curves:
    return None
  begin = max(float(x[0]) for x, _ in curves)
  end = min(float(x[-1]) for x, _ in curves)
  if end < begin:
    return None
  at = np.linspace(begin, end, _POINTS)
  values = np.array([np.interp(at, x, y) for x, y in curves])
  mean, is_band = values.mean(0), len(curves) >= FEW_SEEDS
  low = high = np.zeros(0)
  if is_band:
    error = values.std(0, ddof=1) / math.sqrt(len(curves))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(curves) - 1)) * error
    ends = (0.0, 1.0) if is_share else (-math.inf, math.inf)
    low, high = np.clip([mean - reach, mean + reach], *ends)
  return PlotLine(
    label=f"{arm.name} ({seeds_text(len(curves))})",
    place=place,
    x=at.tolist(),
    y=mean.tolist(),
    thin=[] if is_band else values.tolist(),
    low=low.tolist(),
    high=high.tolist(),
  )


def costs_of(rows: Sequence[Row]) -> dict[str, list[float]]:
  """Returns what each update of RL had cost by its end."""

  def total(*names: str) -> list[float]:
    each = (sum(row.values.get(name, 0.0) for name in names) for row in rows)
    return list(itertools.accumulate(each))

  seconds = total("seconds/wait", "seconds/train")
  return {
    UPDATES: [float(row.step) for row in rows],
    EPISODES: total("batch/trajectories"),
    TOKENS: total("batch/trained_tokens"),
    MINUTES: [second / 60 for second in seconds],
  }


def counted(rows: Sequence[Row], name: str) -> float:
  """Returns what a counter has counted in all starts of a run.

  Each start counts from 0, so a counter that has fallen has begun again.
  """
  values = [0.0, *(row.values[name] for row in rows if name in row.values)]
  return sum(
    now - before if now >= before else now
    for before, now in itertools.pairwise(values)
  )


def smoothed(
  run: Run, metrics: Sequence[str], cost: str, stage: str = RL
) -> tuple[np.ndarray, np.ndarray] | None:
  """Returns costs, and the mean of the metrics over 5 updates around each.

  Of other stages than RL each row is alone. None for a run of which no row of
  the stage has all metrics.
  """
  rows = [row for row in run.rows if row.stage == stage]
  at = costs_of(rows)[cost]
  points = [
    (x, math.fsum(row.values[m] for m in metrics) / len(metrics))
    for x, row in zip(at, rows, strict=True)
    if all(math.isfinite(row.values.get(m, math.nan)) for m in metrics)
  ]
  if not points:
    return None
  x, y = map(np.array, zip(*points, strict=True))
  width = min(_WINDOW, len(y)) if stage == RL else 1
  summed = np.cumsum(np.insert(y, 0, 0.0))
  low = np.maximum(np.arange(len(y)) - width // 2, 0)
  high = np.minimum(np.arange(len(y)) + width // 2 + 1, len(y))
  return x, (summed[high] - summed[low]) / (high - low)
