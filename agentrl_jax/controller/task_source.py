"""Endless streams of tasks: a shuffled, weighted mix of environments.

The stream is a grain dataset with random access: the task at a position is a
pure function of seed and position, so the position is the whole state.
"""

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import overload

import grain

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError


class TaskStream:
  """Yields (position, task) without end; weights stay as they are."""

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

    Without `shuffle` an environment's tasks come in its own order, in which
    neighbours may share data that is expensive to generate. Raises
    `ConfigError` for weights that are not above 0, and for an environment
    without tasks.
    """
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
    total = sum(weights.values())
    self._shares = {name: weights[name] / total for name in indices}
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

  def shares(self) -> dict[str, float]:
    """Returns each environment's share of the tasks; they sum to 1."""
    return self._shares

  def state(self) -> dict[str, int]:
    """Returns the state for `restore`."""
    return {"position": self._position}

  def restore(self, state: Mapping[str, int]) -> None:
    """Continues from `state`."""
    self._position = int(state["position"])


class IndicesWithout(Sequence[int]):
  """The indices of a split without those that are held out.

  Takes no memory for the indices that are left: a split may have billions.
  """

  def __init__(self, indices: Sequence[int], held_out: Collection[int]):
    """`held_out` are indices of the split; those that it lacks do nothing."""
    self._indices = indices
    places = sorted(indices.index(n) for n in held_out if n in indices)
    # The number of indices that are left before each that is held out.
    self._left_before = [place - n for n, place in enumerate(places)]

  def __len__(self) -> int:
    return len(self._indices) - len(self._left_before)

  @overload
  def __getitem__(self, place: int) -> int: ...

  @overload
  def __getitem__(self, place: slice) -> Sequence[int]: ...

  def __getitem__(self, place: int | slice) -> int | Sequence[int]:
    if isinstance(place, slice):
      return [self[n] for n in range(*place.indices(len(self)))]
    place = range(len(self))[place]  # raises `IndexError`, counts from the end
    return self._indices[place + bisect.bisect_right(self._left_before, place)]


def _tasks(
  name: str, split: str, indices: Sequence[int], seed: int | None
) -> grain.MapDataset:
  ordered = grain.MapDataset.source(indices)
  if seed is not None:
    ordered = ordered.shuffle(seed=seed % 2**32)
  return ordered.map(lambda index: Task(name, split, int(index))).repeat()
