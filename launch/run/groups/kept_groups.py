"""Chooses the groups whose trajectories a run keeps.

The first groups of a batch are those that ended first: short ones, of quick
tasks. So those are kept of which the run has the fewest, by task and by whether
none, some or all of a group's episodes succeeded.
"""

import collections
import random
from collections.abc import Sequence

from agentrl_jax.data.records import Group

Stratum = tuple[str, str]  # a task's name; none, some or all


class KeptGroups:
  """Keeps `number` groups of each batch; begins anew when a run resumes."""

  def __init__(self, number: int, *, seed: int):
    self._number, self._seed = number, seed
    self._kept: collections.Counter[Stratum] = collections.Counter()

  def choose(self, groups: Sequence[Group], version: int) -> list[Group]:
    """Returns `number` of the groups, or all, in their order.

    Within a task and an outcome the draw is even, and the same for the same
    batch.
    """
    waiting = list(enumerate(groups))
    random.Random(f"{self._seed}/{version}").shuffle(waiting)
    chosen: list[tuple[int, Group]] = []
    while waiting and len(chosen) < self._number:
      next_one = min(waiting, key=lambda pair: self._kept[_stratum(pair[1])])
      waiting.remove(next_one)
      chosen.append(next_one)
      self._kept[_stratum(next_one[1])] += 1
    return [group for _, group in sorted(chosen, key=lambda pair: pair[0])]


def _stratum(group: Group) -> Stratum:
  wins = {trajectory.is_success for trajectory in group.trajectories}
  return group.task.name, {
    frozenset(): "none",
    frozenset({False}): "none",
    frozenset({True}): "all",
  }.get(frozenset(wins), "some")
