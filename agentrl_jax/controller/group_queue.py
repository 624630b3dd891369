"""The bounded hand-over of finished groups from environments to the learner.

What is finished is in the queue at once, so that a snapshot has it. What is
bounded is who may go on: a producer waits until its group is within the limit.
"""

import dataclasses
import itertools

from agentrl_jax.controller import taking
from agentrl_jax.controller.changes import Condition
from agentrl_jax.controller.learner_watch import LearnerWatch
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.trajectory import Group
from agentrl_jax.errors import ConfigError, QueueClosed

ORDERS = ("finished", "started")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueLimits:
  """The `queue` section of the config.

  `order` decides which groups are taken first. "finished" lets others overtake
  a slow group: admission then bounds staleness on average, and `max_age` bounds
  it for each group, by waiting for those that would pass it; where the learner
  makes several updates of a batch, its age is that at the first. "started"
  takes them as they were begun: no group is older than admission allows and
  batches do not depend on timing, but one slow group holds up a step. What each
  costs,
  `bench/admission.py` shows.
  """

  max_groups: int
  max_staleness: int | None = None  # versions; older is dropped. None: nothing
  order: str = "finished"
  max_age: int | None = None  # versions, from starting to taking. None: any

  def __post_init__(self) -> None:
    if self.order not in ORDERS:
      raise ConfigError(
        f"queue.order is {self.order!r}; choose one of {', '.join(ORDERS)}"
      )
    if self.max_groups < 1:
      raise ConfigError(
        f"queue.max_groups is {self.max_groups}; it must be at least 1"
      )
    if self.max_age is not None and self.max_age < 0:
      raise ConfigError(
        f"queue.max_age is {self.max_age}; it must be at least the"
        " admission.max_staleness, or None"
      )


class GroupQueue:
  """First in, first out, with back-pressure and, if asked for, an expiry date.

  Belongs to one event loop. Its state changes in plain methods only, so it is
  whole whenever no method runs.
  """

  def __init__(
    self,
    limits: QueueLimits,
    monitor: Monitor,
    *,
    versions_per_step: int = 1,
    watch: LearnerWatch | None = None,
  ) -> None:
    """The learner makes `versions_per_step` updates of what it takes."""
    self._limits = limits
    self._versions_per_step = versions_per_step
    self._watch = watch or LearnerWatch()
    self._monitor = monitor
    self._begun: dict[str, int] = {}  # not yet taken; since which version
    self._groups: dict[str, Group] = {}  # in order of finishing
    self._over: dict[str, None] = {}  # in the queue, but beyond the limit
    self._changes = Condition()
    self._closed = False

  def __len__(self) -> int:
    return len(self._groups)

  def begin(self, group_id: str, version: int = 0) -> None:
    """A group starts at this version; it will be offered or given up."""
    self._begun[group_id] = version

  def give_up(self, group_id: str) -> None:
    """A group that was begun will not come."""
    del self._begun[group_id]
    self._changed()

  def offer(self, group: Group) -> None:
    """Adds a group that was begun, full or not; `room` is the back-pressure."""
    self._groups[group.id] = group
    self._over[group.id] = None
    self._changed()

  async def room(self, group_id: str) -> None:
    """Waits until the group is within the limit, was taken, or all is closed.

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
    """Waits for so many groups and takes them together, to train `version` on.

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

  def drop_stale(self, version: int) -> int:
    """Drops and counts what is too old to train `version` on; returns how many.

    Does nothing unless `max_staleness` is set.
    """
    if self._limits.max_staleness is None:
      return 0
    oldest = version - self._limits.max_staleness
    stale = [g for g in self._groups.values() if g.oldest_version < oldest]
    for group in stale:
      self._monitor.dropped_stale(group)
    self._remove(stale)
    return len(stale)

  def close(self) -> None:
    """No group will come any more: lets `take` drain, then raise."""
    self._closed = True
    self._changed()

  def snapshot(self) -> tuple[Group, ...]:
    """The finished groups, those beyond the limit too, as they finished."""
    return tuple(self._groups.values())

  def _choose(self, num_groups: int, version: int) -> list[str] | None:
    """What to take next; None if it has not all come."""
    if len(self._groups) < num_groups:
      return None
    if self._limits.order == "started":
      first = list(itertools.islice(self._begun, num_groups))
      return first if all(id in self._groups for id in first) else None
    if self._limits.max_age is None:
      return list(itertools.islice(self._groups, num_groups))
    return taking.select_groups(
      self._groups,
      self._begun,
      num_groups=num_groups,
      version=version,
      max_age=self._limits.max_age,
      versions_per_step=self._versions_per_step,
    )

  def _remove(self, groups: list[Group]) -> None:
    for group in groups:
      del self._groups[group.id]
      del self._begun[group.id]
      self._over.pop(group.id, None)
    self._changed()

  def _changed(self) -> None:
    num_within = len(self._groups) - len(self._over)
    num_free = max(0, self._limits.max_groups - num_within)
    for group_id in list(itertools.islice(self._over, num_free)):
      del self._over[group_id]
    self._monitor.queue(len(self._groups), self._limits.max_groups)
    self._changes.notify()
