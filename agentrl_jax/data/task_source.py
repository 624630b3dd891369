"""Endless stream of tasks: a shuffled, weighted mix of environments.

The stream is a grain dataset with random access: the task at a position is a
pure function of seed and position, so the position is the whole state.
"""

from collections.abc import Mapping, Sequence

import grain

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError


class TaskStream:
  """Yields (position, task) without end."""

  def __init__(
    self,
    indices: Mapping[str, Sequence[int]],
    *,
    weights: Mapping[str, float],
    split: str,
    seed: int,
    shuffle: bool = True,
  ):
    """`indices` and `weights` are by environment; weights need not sum to 1.

    Without `shuffle` each environment's tasks come in its own order, in which
    neighbours may share data that is expensive to generate.
    """
    if set(indices) != set(weights):
      raise ConfigError(
        f"tasks.weights names {sorted(weights)} and the environments are "
        f"{sorted(indices)}: give each one a weight"
      )
    bad = {name: w for name, w in weights.items() if not w > 0}
    if bad:
      raise ConfigError(
        f"tasks.weights must be positive, found {bad}; leave an environment "
        "out of tasks.names to play without it"
      )
    empty = [name for name, tasks in indices.items() if not len(tasks)]
    if empty:
      raise ConfigError(f"{empty} have no task in split {split!r}")
    self._dataset = grain.MapDataset.mix(
      [
        _tasks(name, split, indices[name], seed + n if shuffle else None)
        for n, name in enumerate(indices)
      ],
      weights=[float(weights[name]) for name in indices],
    )
    self._position = 0

  def __iter__(self) -> "TaskStream":
    return self

  def __next__(self) -> tuple[int, Task]:
    position = self._position
    self._position += 1
    return position, self.at(position)

  def at(self, position: int) -> Task:
    """Returns the task at a position, without moving."""
    task: Task = self._dataset[position]
    return task

  def state(self) -> dict[str, int]:
    """Returns the state for `restore`."""
    return {"position": self._position}

  def restore(self, state: Mapping[str, int]) -> None:
    """Continues from `state`."""
    self._position = int(state["position"])


def _tasks(
  name: str, split: str, indices: Sequence[int], seed: int | None
) -> grain.MapDataset:
  ordered = grain.MapDataset.source(indices)
  if seed is not None:
    ordered = ordered.shuffle(seed=seed % 2**32)
  return ordered.map(lambda index: Task(name, split, int(index))).repeat()
