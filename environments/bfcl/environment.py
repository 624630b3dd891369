"""BFCL: the multi-turn tasks of the Berkeley Function-Calling Leaderboard.

A user makes one request after another, and the policy calls functions of a file
system, a car, a stock broker and the like. Tasks, data and functions come from
the package `bfcl-eval`.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError
from environments.bfcl.expert import MISTAKES, gold_expert
from environments.bfcl.scripted import POLICIES
from environments.bfcl.session import BFCLSession
from environments.bfcl.suite import (
  CATEGORIES,
  Problem,
  data_folder,
  function_docs,
  load_problems,
)


class BFCL(Environment):
  """One split for each category; `train` and `test` are halves of all tasks.

  All tasks of one scenario are in the same half, across categories. `source` is
  a folder with BFCL's files; empty takes the installed package's.
  """

  name = "bfcl"
  mistakes = MISTAKES

  def __init__(
    self,
    *,
    source: str = "",
    categories: Sequence[str] = CATEGORIES,
    max_steps: int = 20,
  ):
    unknown = sorted(set(categories) - set(CATEGORIES))
    if isinstance(categories, str) or unknown or not categories:
      raise ConfigError(
        f"categories={categories!r} must be some of {', '.join(CATEGORIES)}"
      )
    if max_steps < 1:
      raise ConfigError(f"max_steps={max_steps} must be 1 or more")
    self._max_steps = max_steps
    self._folder = data_folder(source)
    self._splits: dict[str, tuple[Problem, ...]] = {
      category: load_problems(self._folder, category)
      for category in CATEGORIES
      if category in categories
    }
    self._splits.update(_halves(self._splits))

  def indices(self, split: str) -> Sequence[int]:
    """Returns 200 indices per category; train and test share all 800 tasks."""
    return range(len(self._problems(split)))

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with its own functions; ignores the seed."""
    del seed
    problem = self._problem(task)
    docs = [
      doc
      for class_name in problem.classes
      for doc in function_docs(self._folder, class_name)
    ]
    yield BFCLSession(problem, docs, self._max_steps)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that plays the gold calls; see `expert.MISTAKES`."""
    return gold_expert(self._problem(task), seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    """Lists baselines that do not read the messages; see `scripted`."""
    return POLICIES

  def _problem(self, task: Task) -> Problem:
    problems = self._problems(task.split)
    if not 0 <= task.index < len(problems):
      raise ConfigError(
        f"{task} is outside the {len(problems)} tasks of its split"
      )
    return problems[task.index]

  def _problems(self, split: str) -> tuple[Problem, ...]:
    if split not in self._splits:
      raise ConfigError(
        f"BFCL has no split {split!r}, only {', '.join(self._splits)}"
      )
    return self._splits[split]


def _halves(
  categories: Mapping[str, Sequence[Problem]],
) -> dict[str, tuple[Problem, ...]]:
  """Assigns all tasks to train or test, by scenario.

  A hash of the scenario's first message, in the first category that has it,
  decides. Two scenarios with equal first messages are in one half.
  """
  splits: dict[str, str] = {}
  halves: dict[str, list[Problem]] = {split: [] for split in SPLITS}
  for problems in categories.values():
    for problem in problems:
      opening = "\n".join(problem.questions[0])
      split = splits.setdefault(problem.scenario, split_of(opening))
      halves[split].append(problem)
  return {split: tuple(problems) for split, problems in halves.items()}
