"""Converts rows of metrics to curves for plots; knows the metrics' names.

The names are those of the learner's and the controller's metrics.
"""

import dataclasses
import math
from collections.abc import Sequence

from launch.reports.metrics_file import Row

RL = "rl"  # the stage that is plotted
VALIDATION = "validation"  # followed by _greedy or _sampled: stages beside it

EVALUATED = "eval/success"  # of an evaluation; by task, or their mean
LOSS = "loss"
HELD_OUT_LOSS = "loss/held_out"  # of chats that are not learned from
SUCCESS = "success"  # followed by the task's name; of one batch
REWARD = "rollout/reward"  # followed by the task's name; of the latest attempts
MEAN_REWARD = "reward/mean"  # of one batch
QUEUE_FILL = "queue/fill"  # a share of what the queue holds
STALENESS_MEAN = "staleness/mean"  # policy versions
STALENESS_MAX = "staleness/max"
# Of the fresh policy slot, nats per token. Over all policy slots, or as a KL,
# it would be the doing of a few tokens of the oldest version.
DISTANCE = "policy/abs_log_ratio/policy_slot0"
ENTROPY = "policy/entropy"  # nats per token
GRADIENT_NORM = "gradient_norm"
# Updates of a step that were skipped, and how pages call why.
SKIPPED = {"updates/no_signal": "no signal", "updates/not_finite": "not finite"}
GROUP_STD = "reward/group_std"  # of a group's rewards, mean of a batch
COLLAPSED = "reward/collapsed"  # 1 while the alarm of rewards holds
ALARMS = (COLLAPSED, "calls/collapsed", "policy/collapsed")  # likewise


@dataclasses.dataclass(frozen=True)
class Curve:
  """One quantity over the steps of a stage."""

  name: str
  steps: tuple[int, ...]
  values: tuple[float, ...]  # NaN leaves a gap

  def at(self, steps: Sequence[int]) -> tuple[float, ...]:
    """Returns the values at these steps, NaN where there is none."""
    known = dict(zip(self.steps, self.values, strict=True))
    return tuple(known.get(step, math.nan) for step in steps)

  @property
  def smooth(self) -> "Curve":
    """Means over a twentieth of the points, at least 5, for the bold line."""
    return self.smoothed(max(len(self.values) // 20, 5))

  def smoothed(self, width: int) -> "Curve":
    """Means over `width` points around each, fewer at the ends.

    At the beginning, where curves are steep, a point looks ahead no further
    than back (2 points at least), so that the mean does not include the future.
    """
    means = []
    for i in range(len(self.values)):
      reach = min(width // 2, max(i, 2))
      means.append(_mean(self.values[max(i - reach, 0) : i + reach + 1]))
    return dataclasses.replace(self, values=tuple(means))


def curve(rows: Sequence[Row], stage: str, name: str) -> Curve | None:
  """Returns the named metric over its stage, or None if it was not recorded."""
  points = [
    (row.step, row.values[name])
    for row in rows
    if row.stage == stage and name in row.values
  ]
  if not points:
    return None
  steps, values = zip(*points, strict=True)
  return Curve(name, steps, values)


def curves_below(rows: Sequence[Row], stage: str, prefix: str) -> list[Curve]:
  """Returns a curve for each metric `prefix/<name>`, by name."""
  names = sorted(
    {
      name
      for row in rows
      if row.stage == stage
      for name in row.values
      if name.startswith(f"{prefix}/")
    }
  )
  found = [curve(rows, stage, name) for name in names]
  return [
    dataclasses.replace(each, name=each.name.removeprefix(f"{prefix}/"))
    for each in found
    if each is not None
  ]


def skipped_updates(rows: Sequence[Row]) -> dict[str, float]:
  """Returns the number of RL's skipped updates by reason, where there are."""
  found = {
    text: math.fsum(row.values.get(name, 0) for row in rows if row.stage == RL)
    for name, text in SKIPPED.items()
  }
  return {f"updates skipped: {text}": n for text, n in found.items() if n}


def validation(rows: Sequence[Row], mode: str, end: str = "") -> list[Curve]:
  """Returns success in the evaluations during RL, by task.

  `end` is _low or _high for an end of the 95 % interval.
  """
  return curves_below(rows, f"{VALIDATION}_{mode}", f"{EVALUATED}{end}")


def _mean(values: Sequence[float]) -> float:
  finite = [value for value in values if math.isfinite(value)]
  return math.fsum(finite) / len(finite) if finite else math.nan
