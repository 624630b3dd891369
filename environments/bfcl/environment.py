"""BFCL: the multi-turn tasks of the Berkeley Function-Calling Leaderboard.

A user makes one request after another, and the policy calls functions of a file
system, a car, a stock broker and the like. Tasks, data and functions come from
the package `bfcl-eval`.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS, split_of
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, Session
from agentrl_jax.env.options import require_positive, require_some_of
from environments.bfcl import suite
from environments.bfcl.expert import MISTAKES, gold_expert
from environments.bfcl.session import BFCLSession


class BFCL(IndexedEnvironment[suite.BFCLProblem]):
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
    categories: Sequence[str] = suite.CATEGORIES,
    max_steps: int = 20,
  ):
    require_some_of(suite.CATEGORIES, categories=categories)
    require_positive(max_steps=max_steps)
    self._max_steps = max_steps
    self._folder = suite.data_folder(source)
    self._splits: dict[str, tuple[suite.BFCLProblem, ...]] = {
      category: suite.load_problems(self._folder, category)
      for category in suite.CATEGORIES
      if category in categories
    }
    self._splits.update(_halves(self._splits))
    super().__init__(
      num_tasks={split: len(tasks) for split, tasks in self._splits.items()}
    )

  def generate(self, split: str, index: int) -> suite.BFCLProblem:
    """Returns a task of the suite, of which nothing is generated."""
    return self._splits[split][index]

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with its own functions; ignores the seed."""
    del seed
    problem = self.find(task)
    docs = [
      doc
      for class_name in problem.classes
      for doc in suite.function_docs(self._folder, class_name)
    ]
    yield BFCLSession(problem, docs, self._max_steps)

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that plays the gold calls; see `expert.MISTAKES`."""
    return gold_expert(self.find(task), seed=seed, mistakes=mistakes)


def _halves(
  categories: Mapping[str, Sequence[suite.BFCLProblem]],
) -> dict[str, tuple[suite.BFCLProblem, ...]]:
  """Assigns all tasks to train or test, by scenario.

  A hash of the scenario's first message, in the first category that has it,
  decides. Two scenarios with equal first messages are in one half.
  """
  splits: dict[str, str] = {}
  halves: dict[str, list[suite.BFCLProblem]] = {split: [] for split in SPLITS}
  for problems in categories.values():
    for problem in problems:
      opening = "\n".join(problem.questions[0])
      split = splits.setdefault(problem.scenario, split_of(opening))
      halves[split].append(problem)
  return {split: tuple(problems) for split, problems in halves.items()}
