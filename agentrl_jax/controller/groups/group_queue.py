"""Bounded queue of finished groups, from the environments to the learner.

A finished group enters the queue at once, so that a snapshot has it. The bound
is on its producer, who waits until the group is within the limit.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping
from typing import TypeVar

from agentrl_jax.controller.metrics import DropReason, Monitor
from agentrl_jax.controller.waiting import LearnerWatch
from agentrl_jax.data.records import Group
from agentrl_jax.errors import ConfigError, QueueClosed
from agentrl_jax.keys import Section, key
from agentrl_jax.waits import Condition

ORDERS = ("finished", "started")
ANY_AGE = -1

Name = TypeVar("Name")  # of a group


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueLimits(Section, section="queue"):
  """The `queue` section of the config.

  `order` decides which groups are taken first. With "finished", others overtake
  a slow group: admission then bounds staleness on average, and `max_age` bounds
  it for each group, by waiting for those that would exceed it, for `patience`
  steps at most (`OverdueGroups`). Where the learner makes several
  updates of a batch, the age is that at the first. With
  "started", groups are taken in the order in which they started: no group is
  older than admission allows and batches do not depend on timing, but one slow
  group delays a step.
  """

  max_groups: int = key(
    256, "capacity; a full queue holds back groups", at_least=1
  )
  order: str = key(
    "finished",
    "order of a batch's groups; started: batches do not depend on timing, at "
    "the price of waiting",
    one_of=ORDERS,
  )
  max_age: int = key(
    8,
    "versions from the start of a group to its use, at most; not below "
    "admission.max_staleness. The learner waits for a group that would be "
    "older. -1: any age, and no wait",
    at_least=ANY_AGE,
  )
  patience: float = key(
    0.25,
    "steps that the learner waits for such a group at most: it is then handed "
    "over with the episodes that have ended. So is one of the last quarter of "
    "a batch, once it has been played three times as long as the longest of "
    "its task's latest",
  )


class GroupQueue:
  """Finished groups until they are taken, with back-pressure.

  Belongs to one event loop. Its state changes in plain methods only, so it is
  consistent whenever no method runs.
  """

  def __init__(
    self,
    limits: QueueLimits,
    monitor: Monitor,
    *,
    versions_per_step: int = 1,
    watch: LearnerWatch | None = None,
  ) -> None:
    """Expects a learner that makes `versions_per_step` updates of a batch."""
    self._limits = limits
    self._versions_per_step = versions_per_step
    self._watch = watch or LearnerWatch()
    self._monitor = monitor
    self._started: dict[str, int] = {}  # version at the start; not yet taken
    self._groups: dict[str, Group] = {}  # in order of finishing
    self._over: dict[str, None] = {}  # in the queue, but beyond the limit
    self._changes = Condition()
    self._num_changes = 0
    self._closed = False

  def __len__(self) -> int:
    return len(self._groups)

  def begin(self, group_id: str, version: int = 0) -> None:
    """Notes a group that starts; `offer` or `give_up` must follow."""
    self._started[group_id] = version

  def give_up(self, group_id: str) -> None:
    """Forgets a group that has started and will not finish."""
    del self._started[group_id]
    self._changed()

  def replace(self, group: Group) -> None:
    """Forgets a group that has finished, for another that takes its place."""
    self._monitor.dropped(group.task, DropReason.NO_SIGNAL)
    self.give_up(group.id)

  def offer(self, group: Group) -> None:
    """Adds a group, even to a full queue; `room` is the back-pressure."""
    self._groups[group.id] = group
    self._over[group.id] = None
    self._changed()

  async def room(self, group_id: str) -> None:
    """Waits until the group is within the limit or taken, or the queue closed.

    Cancelling leaves the group in the queue.
    """
    async with self._watch.wait(
      waiter=f"group {group_id}, finished and beyond queue.max_groups,",
      holder="the learner to take groups",
      look_at=lambda: "the time of a training step, and queue/fill",
    ):
      await self._changes.wait_until(
        lambda: self._closed or group_id not in self._over
      )

  async def take(self, num_groups: int, *, version: int) -> list[Group]:
    """Waits for `num_groups` groups and takes them, to train `version` on.

    Takes all or none, so cancelling leaves every group in the queue. Raises
    `QueueClosed` if the queue is closed with fewer in it. The caller sets the
    deadline.
    """
    if num_groups > self._limits.max_groups:
      raise ConfigError(
        f"the learner takes {num_groups} groups at a time, but the queue holds"
        f" {self._limits.max_groups}; raise queue.max_groups"
      )
    await self._changes.wait_until(
      lambda: self._closed or self._choose(num_groups, version) is not None
    )
    chosen = self._choose(num_groups, version)
    if chosen is None:
      raise QueueClosed(
        f"the queue was closed with {len(self)} groups in it, of which the"
        f" {num_groups} that are due are not all there"
      )
    taken = [self._groups[group_id] for group_id in chosen]
    self._remove(taken)
    self._monitor.taken(taken, version)
    return taken

  def held_by(self, num_groups: int, version: int) -> list[str]:
    """Returns the unfinished groups that alone hold such a `take` back.

    As many others have finished as are to be taken, and `max_age` demands that
    these be waited for. The oldest come first.
    """
    if (
      self._limits.order == "started"
      or self._limits.max_age == ANY_AGE
      or len(self._groups) < num_groups
      or self._choose(num_groups, version) is not None
    ):
      return []
    others, held = dict(self._started), []
    for group_id in self._started:
      if group_id not in self._groups:
        del others[group_id]
        held.append(group_id)
        if self._in_time(others, num_groups, version) is not None:
          break
    return held

  def lacked_by(self, num_groups: int) -> list[str]:
    """Returns the unfinished groups while such a `take` lacks a few of them.

    A few are a quarter of those that it takes. The oldest come first.
    """
    num_lacking = num_groups - len(self._groups)
    if (
      self._limits.order == "started"
      or self._limits.max_age == ANY_AGE
      or not 0 < num_lacking <= few(num_groups)
    ):
      return []
    return [id for id in self._started if id not in self._groups]

  async def changed(self) -> None:
    """Waits until a group has come or gone, or the queue was closed."""
    before = self._num_changes
    await self._changes.wait_until(lambda: self._num_changes != before)

  def close(self) -> None:
    """Announces the last group: `take` drains the queue, and then raises."""
    self._closed = True
    self._changed()

  def snapshot(self) -> tuple[Group, ...]:
    """Returns all finished groups, those beyond the limit too, in order."""
    return tuple(self._groups.values())

  def _choose(self, num_groups: int, version: int) -> list[str] | None:
    """Returns the groups to take next; None if one of them has not finished."""
    if len(self._groups) < num_groups:
      return None
    if self._limits.order == "started":
      first = list(itertools.islice(self._started, num_groups))
      return first if all(id in self._groups for id in first) else None
    if self._limits.max_age == ANY_AGE:
      return list(itertools.islice(self._groups, num_groups))
    return self._in_time(self._started, num_groups, version)

  def _in_time(
    self, started: Mapping[str, int], num_groups: int, version: int
  ) -> list[str] | None:
    return select_groups(
      self._groups,
      started,
      num_groups=num_groups,
      version=version,
      max_age=self._limits.max_age,
      versions_per_step=self._versions_per_step,
    )

  def _remove(self, groups: list[Group]) -> None:
    for group in groups:
      del self._groups[group.id]
      del self._started[group.id]
      self._over.pop(group.id, None)
    self._changed()

  def _changed(self) -> None:
    num_within = len(self._groups) - len(self._over)
    num_free = max(0, self._limits.max_groups - num_within)
    for group_id in list(itertools.islice(self._over, num_free)):
      del self._over[group_id]
    self._monitor.queue(len(self._groups), self._limits.max_groups)
    self._num_changes += 1
    self._changes.notify()


def select_groups(
  finished: Collection[Name],
  started: Mapping[Name, int],
  *,
  num_groups: int,
  version: int,
  max_age: int,
  versions_per_step: int = 1,
) -> list[Name] | None:
  """Selects the first finished groups that leave no other too old.

  Taken in order of finishing, a slow group is overtaken without end and grows
  old; taken in order of starting, every slow group delays a step. This allows
  overtaking as long as all outstanding groups can still be taken in time.
  Returns None to wait for others.

  `started` maps every outstanding group, finished or not, to the version that
  it started at. The learner takes `num_groups` now and at every
  `versions_per_step` versions from now on. With Q_k the groups that must be
  taken by the k-th time from now, at least |Q_k| - k num_groups of Q_k are
  taken now, for every k. Under an admission whose `max_staleness` is at most
  `max_age` waiting always makes that possible, so no group is taken at an age
  above `max_age`. Elsewhere, as many as possible are taken in time.
  """
  last_chance = {  # as a number of batches from now
    g: (since + max_age - version) // versions_per_step
    for g, since in started.items()
  }
  # So many batches take all, so that later ones forbid nothing.
  enough = math.ceil(len(started) / num_groups)
  horizon = min(max_age // versions_per_step, enough)
  needs = []  # entry k: groups of Q_k that must still be taken now
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


def few(num_groups: int) -> int:
  """Returns a quarter of so many groups, rounded up."""
  return math.ceil(num_groups / 4)
