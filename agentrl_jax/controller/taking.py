"""Decides which finished groups the learner takes together, or that it waits.

Taken as they finish, a slow group is overtaken without end and grows old; taken
as they started, every slow group holds up a step. Between the two lies an age
that no group may pass: here overtaking is allowed as long as all that is
outstanding can still be taken in time, so many at each version to come.
A pure function: no clock, no `await`.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

Name = TypeVar("Name")  # of a group


def select_groups(
  finished: Collection[Name],
  born: Mapping[Name, int],
  *,
  num_groups: int,
  version: int,
  max_age: int,
  versions_per_step: int = 1,
) -> list[Name] | None:
  """The first finished that leave no other too old; None to wait for others.

  `born` maps every outstanding group, finished or not, to the version that it
  was started at. The learner takes `num_groups` now and at every
  `versions_per_step` versions from now on. With Q_k the groups that must be
  taken by the k-th time from now, at least |Q_k| - k num_groups of Q_k are
  taken now, for every k. Under an admission whose `max_staleness` is at most
  `max_age` that can always be had by waiting, so no group is taken at an age
  above `max_age`. Where it cannot, as many as possible are.
  """
  last_chance = {  # as a number of takings from now
    g: (since + max_age - version) // versions_per_step
    for g, since in born.items()
  }
  horizon = max_age // versions_per_step
  needs = []  # how many more of Q_k must be taken now
  for k in range(horizon + 1):
    num_due = sum(chance <= k for chance in last_chance.values())
    needs.append(num_due - k * num_groups)
  chosen: list[Name] = []
  for group in finished:
    num_free = num_groups - len(chosen)
    if num_free == 0:
      break
    urgency = max(0, min(last_chance[group], horizon + 1))
    if all(need < num_free for need in needs[:urgency]):
      chosen.append(group)
      needs = [need - (k >= urgency) for k, need in enumerate(needs)]
  return chosen if len(chosen) == num_groups else None
