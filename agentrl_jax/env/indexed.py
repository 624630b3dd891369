"""Base of environments whose tasks are functions of split and index."""

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from agentrl_jax.data.records import Task
from agentrl_jax.data.split import LOADED_SPLIT, SPLITS
from agentrl_jax.env.interface import Environment
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import ConfigError

C = TypeVar("C")


class Engine(Protocol):
  """Runs the sessions of an environment."""

  async def close(self) -> None:
    """Frees everything that outlives sessions."""


class IndexedEnvironment(Environment, Generic[C]):
  """Finds the content of a task by its split and index, and caches it.

  A subclass defines `generate`, which must be a pure function, and `open`,
  which gets the content by `find`. Tasks read from files are the split dev; a
  subclass overrides `load` if such a task has to be prepared.

  Args:
    num_tasks: length of each split, or of train and of test.
    loaded: the tasks of the split dev, which exists if there are any.
  """

  cache_size = 4096  # tasks; the episodes of a group share one
  split_hint = ""  # for the error message about a split that is missing
  _engine: Engine | None = None  # closed with the environment

  def __init__(
    self,
    *,
    num_tasks: int | Mapping[str, int] = 1 << 20,
    loaded: Sequence[Any] = (),
  ):
    if isinstance(num_tasks, int):
      require_positive(num_tasks=num_tasks)
      num_tasks = dict.fromkeys(SPLITS, num_tasks)
    self._num_tasks = num_tasks
    self._loaded = loaded
    self._content = functools.lru_cache(self.cache_size)(self._make)

  @abc.abstractmethod
  def generate(self, split: str, index: int) -> C:
    """Makes the content of a task from nothing but the arguments."""

  def load(self, index: int) -> C:
    """Prepares the content of a loaded task."""
    content: C = self._loaded[index]
    return content

  def splits(self) -> Mapping[str, int]:
    """Returns the number of tasks of each split."""
    loaded = {LOADED_SPLIT: len(self._loaded)} if self._loaded else {}
    return {**self._num_tasks, **loaded}

  def indices(self, split: str) -> Sequence[int]:
    """Returns a range of indices; raises `ConfigError` if there is no split."""
    splits = self.splits()
    if split in splits:
      return range(splits[split])
    is_missing = split in (*SPLITS, LOADED_SPLIT) and self.split_hint
    hint = f"; {self.split_hint}" if is_missing else ""
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
    if split == LOADED_SPLIT:
      return self.load(index)
    return self.generate(split, index)
