"""Counts what happens in the pipeline, per task, and names it for plots.

Plain numbers and no opinions: nothing here waits, decides or is read back by
the pipeline. Owned by the controller's event loop.
"""

import collections
import dataclasses
from collections.abc import Iterable

from agentrl_jax.controller import policies
from agentrl_jax.data.trajectory import Group, Status, Task, Trajectory

WINDOW = 512  # attempts that a running mean looks back on


def _window() -> collections.deque[float]:
  return collections.deque(maxlen=WINDOW)


@dataclasses.dataclass
class TaskCounts:
  """What happened to the attempts at one kind of task since the start."""

  started: int = 0
  finished: int = 0
  retried: int = 0
  masked: int = 0  # attempts lost to faults of ours, after their retries
  late: int = 0  # attempts cut off by their group's deadline
  groups: int = 0
  identical: int = 0  # attempts whose tokens were checked and agreed
  faults: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  dropped: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  stale_lengths: collections.Counter[int] = dataclasses.field(
    default_factory=collections.Counter
  )  # of the longest member, in tokens, rounded up to a power of two
  statuses: collections.Counter[Status] = dataclasses.field(
    default_factory=collections.Counter
  )
  success: collections.deque[float] = dataclasses.field(default_factory=_window)
  reward: collections.deque[float] = dataclasses.field(default_factory=_window)
  episode_s: collections.deque[float] = dataclasses.field(
    default_factory=_window
  )
  turns: collections.deque[float] = dataclasses.field(default_factory=_window)
  tokens: collections.deque[float] = dataclasses.field(default_factory=_window)
  sampled: int = 0  # tokens, in all


class Monitor:
  """The counters of one controller."""

  def __init__(self) -> None:
    self.tasks: dict[str, TaskCounts] = collections.defaultdict(TaskCounts)
    self.staleness: collections.Counter[int] = collections.Counter()
    self.queued = 0
    self.capacity = 0

  def started(self, task: Task) -> None:
    """An attempt begins."""
    self.tasks[task.name].started += 1

  def finished(self, trajectory: Trajectory, seconds: float) -> None:
    """An attempt ended by the policy's doing."""
    counts = self.tasks[trajectory.task.name]
    counts.finished += 1
    counts.identical += 1  # a recorder that disagrees raises instead
    counts.statuses[trajectory.status] += 1
    counts.success.append(float(policies.succeeded(trajectory)))
    counts.reward.append(trajectory.reward)
    counts.episode_s.append(seconds)
    counts.turns.append(len(trajectory.turns))
    counts.tokens.append(trajectory.num_tokens)
    counts.sampled += trajectory.num_sampled

  def faulted(self, task: Task, kind: str) -> None:
    """An attempt broke, and not by the policy's doing."""
    self.tasks[task.name].faults[kind] += 1

  def retried(self, task: Task) -> None:
    """A broken attempt is made again."""
    self.tasks[task.name].retried += 1

  def masked(self, task: Task) -> None:
    """An attempt was given up, its retries spent."""
    self.tasks[task.name].masked += 1

  def cut_off(self, task: Task, num_attempts: int) -> None:
    """A group's deadline passed with so many attempts unfinished."""
    self.tasks[task.name].late += num_attempts

  def grouped(self, group: Group) -> None:
    """A group is ready for the queue."""
    self.tasks[group.task.name].groups += 1

  def dropped(self, task: Task, reason: str) -> None:
    """A group is lost, after its work was begun."""
    self.tasks[task.name].dropped[reason] += 1

  def dropped_stale(self, group: Group) -> None:
    """A finished group is too old; counted by length too, to show the bias."""
    num_tokens = max(t.num_tokens for t in group.trajectories)
    ceiling = 1 << (num_tokens - 1).bit_length() if num_tokens else 0
    self.dropped(group.task, "stale")
    self.tasks[group.task.name].stale_lengths[ceiling] += 1

  def taken(self, groups: Iterable[Group], version: int) -> None:
    """The learner has taken these groups to train `version` on."""
    for group in groups:
      self.staleness[version - group.oldest_version] += 1

  def queue(self, num_groups: int, capacity: int) -> None:
    """How full the queue is."""
    self.queued, self.capacity = num_groups, capacity

  def snapshot(self) -> dict[str, float]:
    """Every number by its name, `place/what/task`."""
    numbers: dict[str, float] = {}
    for name, counts in sorted(self.tasks.items()):
      numbers |= {f"{k}/{name}": float(v) for k, v in _numbers(counts).items()}
    numbers["queue/groups"] = float(self.queued)
    if self.capacity:
      numbers["queue/fill"] = self.queued / self.capacity
    numbers |= _staleness(self.staleness)
    return numbers


def _numbers(counts: TaskCounts) -> dict[str, float]:
  numbers: dict[str, float] = {
    "rollout/started": counts.started,
    "rollout/finished": counts.finished,
    "rollout/retried": counts.retried,
    "rollout/masked": counts.masked,
    "rollout/late": counts.late,
    "rollout/faults": counts.faults.total(),
    "rollout/sampled_tokens": counts.sampled,
    "groups/finished": counts.groups,
    "groups/dropped": counts.dropped.total(),
  }
  for kind, n in counts.faults.items():
    numbers[f"rollout/fault/{kind}"] = n
  for reason, n in counts.dropped.items():
    numbers[f"groups/dropped/{reason}"] = n
  for ceiling, n in counts.stale_lengths.items():
    numbers[f"groups/dropped/stale/up_to_{ceiling}_tokens"] = n
  for status, n in counts.statuses.items():
    numbers[f"rollout/status/{status.value.replace(' ', '_')}"] = n
  if counts.finished:
    numbers["rollout/token_identity"] = counts.identical / counts.finished
  for what in ("success", "reward", "episode_s", "turns", "tokens"):
    window = getattr(counts, what)
    if window:
      numbers[f"rollout/{what}"] = sum(window) / len(window)
  return numbers


def _staleness(counts: collections.Counter[int]) -> dict[str, float]:
  if not counts:
    return {}
  total = sum(age * n for age, n in counts.items())
  numbers: dict[str, float] = {
    f"staleness/groups/{age}": float(n) for age, n in sorted(counts.items())
  }
  numbers["staleness/mean"] = total / counts.total()
  numbers["staleness/max"] = float(max(counts))
  return numbers
