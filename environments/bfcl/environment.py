"""BFCL: the multi-turn tasks of the Berkeley Function-Calling Leaderboard.

A user asks for one thing after another, and the policy serves them by calling
the functions of a file system, a car, a stock broker and the like. Tasks, data
and functions are those of the package `bfcl-eval`, which is not ours.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.interface import Environment, Expert, Session
from agentrl_jax.env.scripted import ScriptedPolicies
from agentrl_jax.errors import ConfigError
from environments.bfcl.expert import MISTAKES, gold_player
from environments.bfcl.scripted import POLICIES
from environments.bfcl.session import BFCLSession, Functions
from environments.bfcl.suite import (
  CATEGORIES,
  Problem,
  data_folder,
  function_docs,
  load_problems,
)


class BFCL(Environment):
  """Each category is a split; `train` and `test` are halves of them all.

  What was made from one scenario is on one side, in whatever category. `source`
  is a folder with BFCL's files, and the installed package's where it is empty.
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
    """As many as there are: 200 to a category, 800 in train and test."""
    return range(len(self._problems(split)))

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """A session with functions of its own; the seed changes nothing."""
    del seed
    problem = self._problem(task)
    yield BFCLSession(problem, self._functions(problem), self._max_steps)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Plays the gold calls; see `expert.MISTAKES` for what can go wrong."""
    return gold_player(self._problem(task), seed=seed, mistakes=mistakes)

  def scripted_policies(self) -> ScriptedPolicies:
    """Answerers who do not read what is asked; see `scripted`."""
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

  def _functions(self, problem: Problem) -> Functions:
    """The functions of the task's classes, those withheld apart."""
    docs = [
      doc
      for name in problem.classes
      for doc in function_docs(self._folder, name)
    ]
    withheld = {n for names in problem.withheld.values() for n in names}
    by_name = {doc["name"]: doc for doc in docs}
    return Functions(
      first=[doc for doc in docs if doc["name"] not in withheld],
      added={
        turn: [by_name[name] for name in names if name in by_name]
        for turn, names in problem.withheld.items()
      },
    )


def _halves(
  categories: Mapping[str, Sequence[Problem]],
) -> dict[str, tuple[Problem, ...]]:
  """All tasks by the side of the line that their scenario falls on.

  A scenario is known by what is said first in the first category that has it:
  two that begin alike go together.
  """
  sides: dict[str, str] = {}
  halves: dict[str, list[Problem]] = {split: [] for split in SPLITS}
  for problems in categories.values():
    for problem in problems:
      opening = "\n".join(problem.questions[0])
      side = sides.setdefault(problem.number, split_of(opening))
      halves[side].append(problem)
  return {split: tuple(problems) for split, problems in halves.items()}
