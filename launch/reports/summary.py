"""Summary of a run in numbers, printed and saved from the same values.

Reads evaluations in the JSON form that `Evaluation.from_json` describes, and
compares them: each change has an interval. Runs and draws nothing.

All success rates and differences are shares (0.43, not 43 %).
"""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentrl_jax.files import reading, write_whole

MODES = ("greedy", "sampled")
PASS = (
  "pass@k"  # many sampled attempts; its tasks are pass@1, pass@2, pass@4...
)


@dataclasses.dataclass(frozen=True)
class Score:
  """Success on `n` held-out episodes, its 95 % interval, and mean reward."""

  n: int
  success: float
  low: float
  high: float
  reward: float

  def __post_init__(self) -> None:
    if not all(map(math.isfinite, dataclasses.astuple(self))):
      raise ValueError(
        f"a score must be of numbers, found {self}: no attempt was scored; "
        "the evaluation's own file counts the faults that they were lost to"
      )


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The scores of one policy on the held-out tasks of every environment."""

  stage: str  # untrained, warm_start, rl, scripted, expert: whose policy
  mode: str  # one of MODES, or PASS; a script is "greedy"
  tasks: Mapping[str, Score]

  def __post_init__(self) -> None:
    if not self.tasks:
      raise ValueError(
        f"the {self.mode} evaluation of {self.stage} has no task: evaluate one"
      )

  @classmethod
  def from_json(cls, body: Mapping[str, Any]) -> "Evaluation":
    """Reads what an evaluation reports.

    {"stage": "rl", "mode": "greedy", "tasks": {"dbbench": {"n": 256,
    "success": 0.74, "low": 0.68, "high": 0.79, "reward": 0.74}}}

    Keys beside these are left alone: an evaluation may report more.
    """
    names = [field.name for field in dataclasses.fields(Score)]
    tasks = {
      name: Score(**{key: score[key] for key in names})
      for name, score in body["tasks"].items()
    }
    return cls(body["stage"], body["mode"], tasks)

  def among(self, tasks: Collection[str]) -> "Evaluation | None":
    """Returns the scores at some tasks; None if it has none of them."""
    shared = {name: s for name, s in self.tasks.items() if name in tasks}
    return dataclasses.replace(self, tasks=shared) if shared else None

  @property
  def mean(self) -> Score:
    """Computes the mean over tasks, with equal weights.

    The interval combines those of the tasks, which are independent: the square
    roots of the summed squares of their arms (Zou & Donner 2008).
    """
    scores = list(self.tasks.values())
    success = statistics.fmean(score.success for score in scores)
    below = math.hypot(*(score.success - score.low for score in scores))
    above = math.hypot(*(score.high - score.success for score in scores))
    return Score(
      n=sum(score.n for score in scores),
      success=success,
      # Within [0, 1] but for rounding.
      low=max(success - below / len(scores), 0.0),
      high=min(success + above / len(scores), 1.0),
      reward=statistics.fmean(score.reward for score in scores),
    )

  def to_json(self) -> dict[str, Any]:
    """The form that `from_json` reads, with the mean beside the tasks."""
    body = dataclasses.asdict(self)
    return {**body, "mean": dataclasses.asdict(self.mean)}


@dataclasses.dataclass(frozen=True)
class Difference:
  """Difference of two success rates.

  The interval is Newcombe's hybrid of the two intervals (1998, method 10). It
  takes the two for independent: episodes of the same tasks are not, and then
  the true interval is, if anything, narrower.
  """

  before: float
  after: float
  difference: float
  low: float
  high: float
  disjoint: bool  # the two intervals do not touch: stricter than low > 0


def difference(before: Score, after: Score) -> Difference:
  """The change of success from `before` to `after`, with its interval."""
  change = after.success - before.success
  below = math.hypot(after.success - after.low, before.high - before.success)
  above = math.hypot(after.high - after.success, before.success - before.low)
  return Difference(
    before=before.success,
    after=after.success,
    difference=change,
    low=change - below,
    high=change + above,
    disjoint=after.low > before.high or after.high < before.low,
  )


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One policy against another: per task, and their means over tasks."""

  before: str  # stage
  after: str  # stage
  mode: str  # of `after`
  tasks: Mapping[str, Difference]
  mean: Difference


def compare(before: Evaluation, after: Evaluation) -> Comparison:
  """Compares two evaluations of the same environments."""
  if before.tasks.keys() != after.tasks.keys():
    raise ValueError(
      f"{after.stage} was evaluated on {', '.join(sorted(after.tasks))} but "
      f"{before.stage} on {', '.join(sorted(before.tasks))}; to compare them, "
      "evaluate both on the same tasks"
    )
  return Comparison(
    before=before.stage,
    after=after.stage,
    mode=after.mode,
    tasks={
      name: difference(before.tasks[name], score)
      for name, score in after.tasks.items()
    },
    mean=difference(before.mean, after.mean),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """All results of a finished run."""

  name: str
  evaluations: Sequence[Evaluation]
  wall_s: Mapping[str, float]  # by stage, in the order in which they ran
  facts: Mapping[str, Any]  # see report.facts
  config_changes: Mapping[str, Sequence[Any]]  # key: (base's value, the run's)
  is_finished: bool = True  # False: stopped, and the rest is still to come

  @property
  def has_warm_start(self) -> bool:
    """False if reinforcement learning began with the pretrained weights."""
    changed = self.config_changes.get("warm_start.epochs")
    return changed is None or bool(changed[1])

  def evaluation(self, stage: str, mode: str) -> Evaluation | None:
    """Returns the evaluation of that policy, or None if there is none."""
    found = [
      evaluation
      for evaluation in self.evaluations
      if (evaluation.stage, evaluation.mode) == (stage, mode)
    ]
    return found[-1] if found else None

  @property
  def comparisons(self) -> list[Comparison]:
    """Compares RL with the stages before it, with the expert and the scripts.

    The policy's advantage over the expert that it learned from is the greedy
    policy's success minus the expert's, on the same held-out tasks. An expert
    does not sample, so there is no sampled counterpart. Scripted baselines are
    compared on the tasks of environments that have one.
    """
    pairs = (
      [(("warm_start", mode), ("rl", mode)) for mode in MODES]
      + [(("untrained", mode), ("rl", mode)) for mode in MODES]
      + [(("expert", "greedy"), ("rl", "greedy"))]
      + [(("scripted", "greedy"), ("rl", "greedy"))]
    )
    found = [
      (self.evaluation(*before), self.evaluation(*after))
      for before, after in pairs
    ]
    compared = []
    for before, after in found:
      if before and after and before.stage == "scripted":
        after = after.among(before.tasks)
      if before and after:
        compared.append(compare(before, after))
    return compared

  def comparison(self, before: str, mode: str) -> Comparison | None:
    """Compares RL with stage `before`; None if one was not evaluated."""
    for comparison in self.comparisons:
      if (comparison.before, comparison.mode) == (before, mode):
        return comparison
    return None

  @property
  def total_wall_s(self) -> float:
    """The time of all stages, and of what is between them."""
    return math.fsum(self.wall_s.values())

  def to_json(self) -> dict[str, Any]:
    """Returns the content of `summary.json`."""
    return {
      "name": self.name,
      "is_finished": self.is_finished,
      "evaluations": [e.to_json() for e in self.evaluations],
      "comparisons": [dataclasses.asdict(c) for c in self.comparisons],
      "wall_s": {**self.wall_s, "total": self.total_wall_s},
      "facts": dict(self.facts),
      "config_changes": {k: list(v) for k, v in self.config_changes.items()},
    }

  @classmethod
  def from_json(cls, body: Mapping[str, Any]) -> "Summary":
    """Reads `summary.json`; derived values are computed again."""
    wall_s = {k: v for k, v in body["wall_s"].items() if k != "total"}
    return cls(
      name=body["name"],
      evaluations=[Evaluation.from_json(e) for e in body["evaluations"]],
      wall_s=wall_s,
      facts=body["facts"],
      config_changes=body["config_changes"],
      is_finished=body["is_finished"],
    )


def write_summary(summary: Summary, path: pathlib.Path) -> None:
  """Writes the summary as JSON. Raises `NotWritten`."""
  text = json.dumps(summary.to_json(), indent=2, allow_nan=False)
  write_whole(path, text + "\n")


def read_summary(path: pathlib.Path) -> Summary:
  """Reads a saved summary. Raises `ConfigError` for a damaged one."""
  with reading(path):
    return Summary.from_json(json.loads(path.read_text(encoding="utf-8")))


def read_evaluation(path: pathlib.Path) -> Evaluation:
  """Reads a saved evaluation. Raises `ConfigError` for a damaged one."""
  with reading(path):
    return Evaluation.from_json(json.loads(path.read_text(encoding="utf-8")))
