"""Counts what the answers of a batch do: tool calls, their flaws, and cuts.

The counts are of `Turn.calls` and `Turn.is_cut`, which the recorder of an
episode writes, whether our own players or agents elsewhere play it.
"""

import collections
import dataclasses
import statistics
from collections.abc import Iterable, Mapping

from agentrl_jax.data.records import Trajectory
from agentrl_jax.data.tool_calls import Flaw

_MOST_NAMES = 64  # of an environment's metrics

# Metrics of the shares of calls, by their flaw.
_FLAWS = {
  Flaw.MALFORMED_JSON: "calls/malformed",
  Flaw.UNKNOWN_TOOL: "calls/unknown_tool",
  Flaw.WRONG_ARGUMENTS: "calls/refused",
}


@dataclasses.dataclass
class AnswerCounts:
  """Counts of the answers in episodes of one environment."""

  answers: int = 0
  cut: int = 0  # by a number of tokens
  offered: int = 0  # answers that tools were offered to
  calling: int = 0  # those of them with a call
  calls: int = 0
  flaws: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )

  @property
  def readable(self) -> int:
    """Calls that name a tool and have arguments, which may be wrong."""
    unread = (Flaw.MALFORMED_JSON, Flaw.UNKNOWN_TOOL)
    return self.calls - sum(self.flaws[flaw.value] for flaw in unread)

  def shares(self) -> dict[str, float]:
    """Returns the metrics, without those of which nothing was counted."""
    shares: dict[str, float] = {}
    if self.answers:
      shares["answers/cut"] = self.cut / self.answers
    if self.offered:
      shares["calls/share_of_answers"] = self.calling / self.offered
    if self.calls:
      shares |= {
        name: self.flaws[flaw.value] / self.calls
        for flaw, name in _FLAWS.items()
      }
    return shares


def count_answers(played: Iterable[Trajectory]) -> dict[str, AnswerCounts]:
  """Counts the answers of episodes, by the name of their environment."""
  by_task: dict[str, AnswerCounts] = collections.defaultdict(AnswerCounts)
  for trajectory in played:
    counts = by_task[trajectory.task.name]
    for turn in trajectory.turns:
      counts.answers += 1
      counts.cut += turn.is_cut
      if turn.calls is not None:
        counts.offered += 1
        counts.calling += bool(turn.calls)
        counts.calls += len(turn.calls)
        counts.flaws.update(filter(None, turn.calls))
  return dict(by_task)


def answer_metrics(counts: Mapping[str, AnswerCounts]) -> dict[str, float]:
  """Returns the metrics of each environment, as `<metric>/<task>`."""
  return {
    f"{name}/{task}": share
    for task, each in sorted(counts.items())
    for name, share in each.shares().items()
  }


def episode_metrics(played: Iterable[Trajectory]) -> dict[str, float]:
  """Returns means of the episodes' own metrics, as `episode/<metric>/<task>`.

  Only of those that end with the metric, and of the first `_MOST_NAMES` names
  of a task: external agents choose them.
  """
  values: dict[str, dict[str, list[float]]] = {}
  for trajectory in played:
    by_name = values.setdefault(trajectory.task.name, {})
    for name, value in trajectory.metrics.items():
      if name in by_name or len(by_name) < _MOST_NAMES:
        by_name.setdefault(name, []).append(value)
  return {
    f"episode/{name}/{task}": statistics.fmean(each)
    for task, by_name in values.items()
    for name, each in by_name.items()
    if name != "success"  # which `success/<task>` has
  }
