"""Base of environments whose tasks are functions of split and index."""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import SPLITS
from agentrl_jax.env.interface import Environment, Session
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import ConfigError, EnvironmentFault

C = TypeVar("C")


class Engine(Protocol):
  """Runs the sessions of an environment."""

  async def close(self) -> None:
    """Frees everything that outlives sessions."""


class IndexedEnvironment(Environment, Generic[C]):
  """Finds the content of a task by its split and index, and caches it.

  A subclass defines `generate`, which must be a pure function, unless all its
  tasks are loaded, and `open`, which gets the content by `find`. Sets of tasks
  that were read from files are splits of their own; a subclass overrides `load`
  if such a task has to be prepared.

  Args:
    num_tasks: length of each split, or of train and of test.
    loaded: tasks of further splits; see `env.task_sets`. A set called train or
      test replaces the generated tasks of that split.
  """

  cache_size = 4096  # tasks; the episodes of a group share one
  split_hint = ""  # for the error message about a split that is missing
  _engine: Engine | None = None  # closed with the environment

  def __init__(
    self,
    *,
    num_tasks: int | Mapping[str, int] = 1 << 20,
    loaded: Mapping[str, Sequence[Any]] | None = None,
  ):
    if isinstance(num_tasks, int):
      require_positive(num_tasks=num_tasks)
      num_tasks = dict.fromkeys(SPLITS, num_tasks)
    self._num_tasks = num_tasks
    self._loaded = {
      name: tasks for name, tasks in (loaded or {}).items() if tasks
    }
    self._content = functools.lru_cache(self.cache_size)(self._make)

  def generate(self, split: str, index: int) -> C:
    """Makes the content of a task from nothing but the arguments."""
    raise NotImplementedError(f"{type(self).__name__} defines no generate()")

  def load(self, loaded: Any) -> C:
    """Prepares the content of a loaded task."""
    content: C = loaded
    return content

  def splits(self) -> Mapping[str, int]:
    """Returns the number of tasks of each split."""
    loaded = {name: len(tasks) for name, tasks in self._loaded.items()}
    return {**self._num_tasks, **loaded}

  def indices(self, split: str) -> Sequence[int]:
    """Returns a range of indices; raises `ConfigError` if there is no split."""
    splits = self.splits()
    if split in splits:
      return range(splits[split])
    hint = f"; {self.split_hint}" if self.split_hint else ""
    raise ConfigError(
      f"{self.name} has no split {split!r}, only {', '.join(splits) or 'none'}"
      f"{hint}"
    )

  def find(self, task: Task) -> C:
    """Returns the task's content; raises `ConfigError` if there is no task."""
    indices = self.indices(task.split)
    if task.index not in indices:
      raise ConfigError(
        f"{self.name} has {len(indices)} tasks in split {task.split}, and no "
        f"task {task.index}"
      )
    return self._content(task.split, task.index)

  async def close(self) -> None:
    if self._engine is not None:
      await self._engine.close()

  def _make(self, split: str, index: int) -> C:
    if split in self._loaded:
      return self.load(self._loaded[split][index])
    return self.generate(split, index)


class OfAgents(Environment):
  """Indices of tasks that exist in the programs of external agents only.

  The run draws indices, and agents know what they mean: see docs/serving.md.
  Evaluations are offered to agents, too.

  Args:
    num_train: tasks to train on.
    num_test: tasks of the split test.
  """

  name = "of_agents"
  is_of_agents = True

  def __init__(self, *, num_train: int, num_test: int):
    require_positive(num_train=num_train, num_test=num_test)
    self._sizes = {"train": num_train, "test": num_test}

  def indices(self, split: str) -> Sequence[int]:
    """Returns the indices of a split; raises `ConfigError` for another."""
    if split not in self._sizes:
      raise ConfigError(
        f"tasks of agents have no split {split!r}, only train and test"
      )
    return range(self._sizes[split])

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Raises `EnvironmentFault`: agents alone can play the task."""
    raise EnvironmentFault(
      f"{task.name} is a task of external agents, and no session of it opens "
      "here: set --config.agents.port, and --config.agents.program; to "
      "evaluate, --policy=agents"
    )
    yield
