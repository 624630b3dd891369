"""Counts of training episodes per task: number, length, losses to faults.

Counted over the whole RL stage, including every restart. Episodes that were
lost to faults are shown beside those that were trained on.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.metrics import Row
from launch.reports.curves import RL, curves_below
from launch.reports.numbers import count, duration, percent

_FINISHED = "rollout/finished"
_STATUS = "rollout/status"
Values = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class AttemptsTable:
  """A row per count, a column per task; empty texts for missing values."""

  tasks: tuple[str, ...]
  rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class _Line:
  """A row of the table: its metric, label and format."""

  metric: str
  label: str
  write: Callable[[float], str] = count
  is_total: bool = True  # a counter, which begins anew when a run is resumed


_ENDED = _Line(_FINISHED, "attempts")
_OTHERS = (
  _Line("rollout/sampled_tokens", "sampled tokens"),
  _Line("rollout/turns", "turns per attempt*", "{:.1f}".format, False),
  _Line("rollout/tokens", "tokens per attempt*", "{:.0f}".format, False),
  _Line("rollout/episode_s", "time per attempt*", duration, False),
  _Line("rollout/token_identity", "token identity held*", percent, False),
  _Line("rollout/retried", "retried after a fault"),
  _Line("rollout/masked", "lost to faults"),
  _Line("rollout/late", "cut off by a deadline"),
  _Line("groups/finished", "groups"),
  _Line("groups/dropped", "groups dropped"),
)


def attempts_table(rows: Sequence[Row]) -> AttemptsTable | None:
  """Builds the table at the end of RL; None without records."""
  tasks = tuple(c.name for c in curves_below(rows, RL, _FINISHED))
  if not tasks:
    return None
  starts = _starts([row.values for row in rows if row.stage == RL])
  drawn = [
    (line.label, tuple(_text(starts, line, task) for task in tasks))
    for line in (_ENDED, *_statuses(rows), *_OTHERS)
  ]
  return AttemptsTable(
    tasks, tuple((label, texts) for label, texts in drawn if any(texts))
  )


def _statuses(rows: Sequence[Row]) -> list[_Line]:
  """Shares of the episodes' final statuses, for those that occur."""
  found = {c.name.split("/")[0] for c in curves_below(rows, RL, _STATUS)}
  return [
    _Line(f"{_STATUS}/{status}", status.replace("_", " "))
    for status in sorted(found)
  ]


def _starts(rows: Sequence[Values]) -> list[Values]:
  """Returns the last row of each start of the run; the next counts from 0
  again.

  A new start shows in any of its counters: they only rise during one start.
  """
  counters = [line.metric for line in (_ENDED, *_OTHERS) if line.is_total]
  return [
    row
    for row, later in itertools.zip_longest(rows, rows[1:])
    if later is None or _began_anew(row, later, counters)
  ]


def _began_anew(row: Values, later: Values, counters: Sequence[str]) -> bool:
  return any(
    name in later and later[name] < value
    for name, value in row.items()
    if name.startswith(tuple(f"{counter}/" for counter in counters))
  )


def _text(starts: Sequence[Values], line: _Line, task: str) -> str:
  name = f"{line.metric}/{task}"
  found = [values[name] for values in starts if name in values]
  if not found:
    return ""
  value = math.fsum(found) if line.is_total else found[-1]
  return line.write(value) if math.isfinite(value) else ""
