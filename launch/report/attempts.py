"""What became of the attempts in training, per task: how many, how long, lost.

The last row of the RL stage holds the counts of the whole stage. What was lost
to faults is shown beside what was trained on, so that nobody has to guess.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from agentrl_jax.metrics import Row
from launch.report.curves import RL
from launch.report.numbers import count, duration, percent

_FINISHED = "rollout/finished"
_STATUS = "rollout/status/"


@dataclasses.dataclass(frozen=True)
class AttemptsTable:
  """A row per count, a column per task; empty texts where nothing was said."""

  tasks: tuple[str, ...]
  rows: tuple[tuple[str, tuple[str, ...]], ...]


_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
  (_FINISHED, "attempts", count),
  ("rollout/sampled_tokens", "sampled tokens", count),
  ("rollout/turns", "turns per attempt*", lambda value: f"{value:.1f}"),
  ("rollout/tokens", "tokens per attempt*", lambda value: f"{value:.0f}"),
  ("rollout/episode_s", "time per attempt*", duration),
  ("rollout/token_identity", "token identity held", percent),
  ("rollout/retried", "retried after a fault", count),
  ("rollout/masked", "lost to faults", count),
  ("rollout/late", "cut off by a deadline", count),
  ("groups/finished", "groups", count),
  ("groups/dropped", "groups dropped", count),
)


def attempts_table(rows: Sequence[Row]) -> AttemptsTable | None:
  """The counts at the end of RL; None if none were recorded."""
  last = [row.values for row in rows if row.stage == RL][-1:]
  if not last:
    return None
  (values,) = last
  tasks = tuple(
    sorted(
      name.removeprefix(f"{_FINISHED}/")
      for name in values
      if name.startswith(f"{_FINISHED}/")
    )
  )
  if not tasks:
    return None
  shown = [*_SHOWN[:1], *_statuses(values), *_SHOWN[1:]]
  drawn = [
    (label, tuple(_text(values.get(f"{m}/{t}"), write) for t in tasks))
    for m, label, write in shown
  ]
  return AttemptsTable(
    tasks, tuple((label, texts) for label, texts in drawn if any(texts))
  )


def _statuses(
  names: Iterable[str],
) -> list[tuple[str, str, Callable[[float], str]]]:
  """How the attempts ended, as far as any ended so."""
  found = {
    name.removeprefix(_STATUS).split("/")[0]
    for name in names
    if name.startswith(_STATUS)
  }
  return [
    (f"{_STATUS}{status}", status.replace("_", " "), count)
    for status in sorted(found)
  ]


def _text(value: float | None, write: Callable[[float], str]) -> str:
  return "" if value is None or not math.isfinite(value) else write(value)
