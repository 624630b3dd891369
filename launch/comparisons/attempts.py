"""Attempts at tasks, kept as they are played; pass@k and shares of statuses.

An evaluation of many attempts appends each to a file, so one that was killed
goes on, and its scores are those of all attempts in the file.
"""

import dataclasses
import itertools
import json
import math
import pathlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.controller.evaluation import TaskScore
from agentrl_jax.data.dataset_file import read_rows
from agentrl_jax.data.records import Task, Trajectory, tool_to_json
from agentrl_jax.errors import ConfigError
from agentrl_jax.files import append_whole, drop_half_line, write_whole
from launch.comparisons.statistics import (
  Estimate,
  binomial_variance,
  mean_and_interval,
  pass_at_k,
)
from launch.reports.summary import PASS, Evaluation, Score

FOLDER = "attempts"  # within a run
SUFFIX = ".attempts.jsonl"
_MOST_NAMED = 5  # keys that a sentence names


@dataclasses.dataclass(frozen=True)
class Attempt:
  """Result of one attempt at a task."""

  name: str
  split: str
  index: int
  attempt: int  # from 0
  success: bool
  reward: float
  status: str
  turns: int
  tokens: int  # sampled ones

  @classmethod
  def of(cls, played: Trajectory) -> "Attempt":
    """Reads the result of an episode."""
    return cls(
      name=played.task.name,
      split=played.task.split,
      index=played.task.index,
      attempt=played.attempt,
      success=played.is_success,
      reward=played.reward,
      status=played.status.value,
      turns=len(played.turns),
      tokens=played.num_sampled,
    )

  @property
  def task(self) -> Task:
    """The task that was attempted."""
    return Task(self.name, self.split, self.index)


class AttemptLog:
  """Appends attempts to a file, whose first line says what is evaluated.

  Raises `ConfigError` for a file of another evaluation. Without a path the
  attempts are kept in memory.
  """

  def __init__(
    self,
    path: pathlib.Path | None,
    identity: Mapping[str, Any],
    chats: "ChatLog | None" = None,
  ) -> None:
    self.path, self.chats = path, chats
    self.attempts: list[Attempt] = []
    if path is None:
      return
    identity = json.loads(json.dumps(identity, default=str))
    if path.exists():
      self._read(path, identity)
    else:
      path.parent.mkdir(parents=True, exist_ok=True)
      write_whole(path, json.dumps(identity) + "\n")

  @property
  def played(self) -> set[tuple[Task, int]]:
    """Tasks and attempts that are there."""
    return {(each.task, each.attempt) for each in self.attempts}

  def add(self, played: Trajectory) -> None:
    """Appends an attempt; it is on disk when this returns."""
    attempt = Attempt.of(played)
    if self.chats is not None:  # first: an attempt that is there is not played
      self.chats.add(played)
    self.attempts.append(attempt)
    if self.path is not None:
      append_whole(self.path, json.dumps(dataclasses.asdict(attempt)) + "\n")

  def _read(self, path: pathlib.Path, identity: Mapping[str, Any]) -> None:
    drop_half_line(path)
    found, self.attempts = _parse(path)
    if found != identity:
      changed = [
        f"{key} was {found.get(key)!r} and is {identity.get(key)!r}"
        for key in sorted({*found, *identity})
        if found.get(key) != identity.get(key)
      ]
      if more := changed[_MOST_NAMED:]:
        changed = [*changed[:_MOST_NAMED], f"and {len(more)} more"]
      raise ConfigError(
        f"{path} has attempts of another evaluation: {'; '.join(changed)}. "
        "Choose another --output, or remove the file to start again"
      )


class ChatLog:
  """Appends the conversations of good attempts to a file of chats.

  Rejection sampling: rows with a reward of `least` or more are demonstrations
  for `warm_start.chats`. An attempt whose row is there is not written again.
  """

  def __init__(self, path: pathlib.Path, least: float) -> None:
    if path.suffix != ".jsonl":
      raise ConfigError(f"--chats={path} must end with .jsonl")
    self.path, self._least = path, least
    self._written: set[tuple[Task, int]] = set()
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      return
    drop_half_line(path)
    for row in read_rows(path):
      try:
        task = Task(**row.columns["task"])
        self._written.add((task, row.columns["attempt"]))
      except (KeyError, TypeError) as error:
        raise ConfigError(
          f"--chats={path}: {row.where} is no attempt at a task; choose "
          "another file"
        ) from error

  @property
  def num_rows(self) -> int:
    """Conversations in the file."""
    return len(self._written)

  def add(self, played: Trajectory) -> None:
    """Appends an attempt, if it is good enough."""
    key = played.task, played.attempt
    if played.reward < self._least or key in self._written:
      return
    row = {
      "messages": list(played.transcript),
      "tools": [tool_to_json(tool) for tool in played.tools],
      "reward": played.reward,
      "task": dataclasses.asdict(played.task),
      "attempt": played.attempt,
    }
    append_whole(self.path, json.dumps(row, ensure_ascii=False) + "\n")
    self._written.add(key)


def read_attempts(path: pathlib.Path) -> list[Attempt]:
  """Reads the attempts of a file that another process may be writing."""
  return _parse(path)[1]


def _parse(path: pathlib.Path) -> tuple[dict[str, Any], list[Attempt]]:
  """Returns identity and attempts, without a last line that is not whole."""
  whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
  first, *rest = whole.splitlines() or [""]
  try:
    found = json.loads(first)
    if not isinstance(found, dict):
      raise ValueError(f"its first line is {first!r:.80}")
    attempts = [Attempt(**json.loads(line)) for line in rest]
    # Two processes may have played the same ones.
    return found, list({(x.task, x.attempt): x for x in attempts}.values())
  except (ValueError, TypeError) as error:
    raise ConfigError(
      f"{path} cannot be read as attempts of an evaluation: {error}. Choose "
      "another --output, or remove the file"
    ) from error


def by_environment(
  attempts: Sequence[Attempt], tasks: Iterable[Task] = ()
) -> dict[str, dict[Task, list[Attempt]]]:
  """Groups attempts by environment as `labels_of` has it, and there by task.

  Of `tasks`, those whose attempts were all lost have an empty list.
  """
  asked = [*tasks, *(each.task for each in attempts)]
  labels = labels_of(asked)
  found: dict[str, dict[Task, list[Attempt]]] = defaultdict(dict)
  for task in asked:
    found[labels[task.name, task.split]].setdefault(task, [])
  for each in attempts:
    found[labels[each.task.name, each.task.split]][each.task].append(each)
  return dict(found)


@dataclasses.dataclass(frozen=True)
class Lost:
  """Tasks and attempts of an environment that were lost to faults."""

  num_tasks: int  # without any attempt that was scored
  num_attempts: int

  @classmethod
  def of(
    cls, tasks: Mapping[Task, Sequence[Attempt]], num_samples: int
  ) -> "Lost":
    """Counts what is missing of `num_samples` attempts at each task."""
    counts = [len(attempts) for attempts in tasks.values()]
    return cls(
      counts.count(0), sum(max(num_samples - count, 0) for count in counts)
    )


def labels_of(tasks: Iterable[Task]) -> dict[tuple[str, str], str]:
  """Returns a label of each environment and split, in order of appearance.

  It is the environment's name, and name/split where several splits of one
  environment are among the tasks: they are never pooled.
  """
  pairs = dict.fromkeys((task.name, task.split) for task in tasks)
  splits = Counter(name for name, _ in pairs)
  return {
    (name, split): name if splits[name] == 1 else f"{name}/{split}"
    for name, split in pairs
  }


def one_split_each(tasks: Iterable[Task]) -> list[list[Task]]:
  """Divides the tasks, so that no part has two splits of an environment."""
  parts: dict[str, dict[str, list[Task]]] = {}
  for task in tasks:
    parts.setdefault(task.name, {}).setdefault(task.split, []).append(task)
  rounds = itertools.zip_longest(*(of.values() for of in parts.values()))
  return [[task for part in each if part for task in part] for each in rounds]


def pass_rates(tasks: Mapping[Task, Sequence[Attempt]]) -> dict[int, Estimate]:
  """Returns pass@k for k = 1, 2, 4, ... up to what a task has.

  The mean of the unbiased estimate over the `n` tasks that have k attempts,
  with Student's interval over tasks; where all tasks agree, that of as many
  successes or failures.
  """
  most = max(map(len, tasks.values()), default=0)
  rates = {}
  k = 1
  while k <= most:
    each = [
      pass_at_k(len(attempts), sum(a.success for a in attempts), k)
      for attempts in tasks.values()
      if len(attempts) >= k
    ]
    error = 0.0
    if min(each) == max(each):
      error = math.sqrt(binomial_variance(each[0], len(each)))
    rates[k] = mean_and_interval(each, error)
    k *= 2
  return rates


def pass_evaluation(path: pathlib.Path) -> Evaluation | None:
  """Reads attempts of RL's policy as pass@k, the mean of the environments.

  For each k that all tasks have, as another process may be adding attempts.
  None without an attempt, and if some are not of the test split.
  """
  attempts = read_attempts(path)
  if any(each.split != "test" for each in attempts):
    return None
  tried = by_environment(attempts)
  rates = [
    {k: rate for k, rate in pass_rates(of).items() if rate.n == len(of)}
    for of in tried.values()
  ]
  if not rates or not all(rates):
    return None
  scores = {}
  for k in min(rates, key=len):
    each = [of[k] for of in rates]
    mean = float(np.mean([rate.mean for rate in each]))
    scores[f"pass@{k}"] = Score(
      n=sum(rate.n for rate in each),
      success=mean,
      low=float(np.mean([rate.low for rate in each])),
      high=float(np.mean([rate.high for rate in each])),
      reward=mean,
    )
  return Evaluation("rl", PASS, scores)


def with_attempts(
  score: TaskScore, tasks: Mapping[Task, Sequence[Attempt]]
) -> TaskScore:
  """Returns the score of the first attempt at each task, of all starts.

  What was lost, and to which faults, is of this start: it is played again.
  """
  first = [a for tries in tasks.values() for a in tries if a.attempt == 0]
  if not first:
    return score
  return dataclasses.replace(
    score,
    num_tasks=len(first),
    num_successes=sum(each.success for each in first),
    mean_reward=float(np.mean([each.reward for each in first])),
    statuses=Counter(each.status.replace(" ", "_") for each in first),
  )


def attempts_to_json(
  attempts: Mapping[str, Mapping[Task, Sequence[Attempt]]], num_samples: int
) -> dict[str, object]:
  """Returns pass@k, statuses and what was lost, by environment."""
  return {
    name: {
      "tasks": sum(map(bool, tasks.values())),
      "lost": lost.num_tasks,
      "lost_attempts": lost.num_attempts,
      "pass_at": {
        str(k): dataclasses.asdict(rate)
        for k, rate in pass_rates(tasks).items()
      },
      "statuses": status_shares(tasks),
    }
    for name, tasks in attempts.items()
    for lost in (Lost.of(tasks, num_samples),)
  }


def status_shares(tasks: Mapping[Task, Sequence[Attempt]]) -> dict[str, float]:
  """Returns the share of attempts that ended with each status.

  AgentBench's statuses (arXiv:2308.03688, Table 7).
  """
  counts = Counter(
    each.status for attempts in tasks.values() for each in attempts
  )
  total = counts.total()  # 0 gives no share
  return {status: count / total for status, count in sorted(counts.items())}
