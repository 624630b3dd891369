"""Counts the events of the pipeline, per task, and names them as metrics.

Nothing here waits or decides, and the pipeline reads none of it back. Belongs
to the controller's event loop.
"""

import collections
import dataclasses
import enum
import traceback
from collections.abc import Iterable, Mapping

from agentrl_jax.data.records import Group, Status, Task, Trajectory

WINDOW = 512  # episodes of a running mean
BREAKER_OPEN = "groups/breaker_open"  # 1 while no groups of a task start


class DropReason(enum.StrEnum):
  """Why the learner never gets a group; `groups/dropped/<reason>/<task>`.

  Two are lost while they are played, with fewer than two episodes left: by
  `FAULTS`, after all retries, or `TOO_LATE`, at `group.deadline_s` or because
  it alone held the learner back (`OverdueGroups`). `NO_SIGNAL` finished with
  equal rewards, and another is played in its place. Two are drawn and not
  played (`Breakers`): the environment of the task has died or hangs, or the
  task has its share of places and has not finished a group yet.
  """

  FAULTS = "faults"
  TOO_LATE = "too_late"
  NO_SIGNAL = "no_signal"
  BREAKER_OPEN = "breaker_open"
  NO_PLACE = "no_place"


def _window() -> collections.deque[float]:
  return collections.deque(maxlen=WINDOW)


@dataclasses.dataclass
class TaskCounts:
  """Counts of the episodes of one environment since the start."""

  started: int = 0
  finished: int = 0
  retried: int = 0
  masked: int = 0  # episodes lost to faults, after their retries
  late: int = 0  # episodes cut off by their group's deadline
  groups: int = 0
  is_open: bool = False  # its breaker: no groups start
  identical: int = 0  # episodes whose tokens were checked and agreed
  faults: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  latest_fault: str = ""
  dropped: collections.Counter[DropReason] = dataclasses.field(
    default_factory=collections.Counter
  )
  statuses: collections.Counter[Status] = dataclasses.field(
    default_factory=collections.Counter
  )
  success: collections.deque[float] = dataclasses.field(default_factory=_window)
  reward: collections.deque[float] = dataclasses.field(default_factory=_window)
  episode_s: collections.deque[float] = dataclasses.field(
    default_factory=_window
  )
  group_s: collections.deque[float] = dataclasses.field(default_factory=_window)
  turns: collections.deque[float] = dataclasses.field(default_factory=_window)
  tokens: collections.deque[float] = dataclasses.field(default_factory=_window)
  sampled: int = 0  # tokens, in all


def stopped_tasks(values: Mapping[str, float]) -> list[str]:
  """Returns the tasks whose breakers are open, by the metrics of a run."""
  prefix = f"{BREAKER_OPEN}/"
  return [
    name.removeprefix(prefix)
    for name, is_open in values.items()
    if name.startswith(prefix) and is_open
  ]


class Monitor:
  """The counters of one controller."""

  def __init__(self) -> None:
    self.tasks: dict[str, TaskCounts] = collections.defaultdict(TaskCounts)
    self.staleness: collections.Counter[int] = collections.Counter()
    self._causes: set[tuple[object, ...]] = set()  # that `is_new` has seen
    self.queued = 0
    self.capacity = 0

  def started(self, task: Task) -> None:
    """Counts an episode that starts."""
    self.tasks[task.name].started += 1

  def finished(self, trajectory: Trajectory, seconds: float) -> None:
    """Counts an episode that the policy ended."""
    counts = self.tasks[trajectory.task.name]
    counts.finished += 1
    counts.identical += 1  # a recorder that disagrees raises instead
    counts.statuses[trajectory.status] += 1
    counts.success.append(float(trajectory.is_success))
    counts.reward.append(trajectory.reward)
    counts.episode_s.append(seconds)
    counts.turns.append(len(trajectory.turns))
    counts.tokens.append(trajectory.num_tokens)
    counts.sampled += trajectory.num_sampled

  def faulted(self, task: Task, kind: str, what: str = "") -> None:
    """Counts an episode that a fault broke; `what` describes the fault."""
    self.tasks[task.name].faults[kind] += 1
    self.tasks[task.name].latest_fault = what or kind

  def is_new(self, task: Task, cause: BaseException) -> bool:
    """Returns True for the first exception of its type and place in a task."""
    places = traceback.extract_tb(cause.__traceback__)
    place = (places[-1].filename, places[-1].lineno) if places else None
    kind = (task.name, type(cause), place)
    is_new = kind not in self._causes
    self._causes.add(kind)
    return is_new

  def latest_faults(self) -> str:
    """Returns the latest fault of each task, as a sentence; "" without any."""
    return "; ".join(
      f"{name}: {counts.faults.total()} faults, the latest: "
      f"{counts.latest_fault:.500}"
      for name, counts in sorted(self.tasks.items())
      if counts.latest_fault
    )

  def retried(self, task: Task) -> None:
    """Counts a broken episode that is played again."""
    self.tasks[task.name].retried += 1

  def masked(self, task: Task) -> None:
    """Counts an episode that was given up, its retries spent."""
    self.tasks[task.name].masked += 1

  def cut_off(self, task: Task, num_episodes: int) -> None:
    """Counts episodes that were unfinished at their group's deadline."""
    self.tasks[task.name].late += num_episodes

  def grouped(self, group: Group, seconds: float) -> None:
    """Counts a group that is ready for the queue, after its slowest episode."""
    counts = self.tasks[group.task.name]
    counts.groups += 1
    counts.group_s.append(seconds)

  def dropped(self, task: Task, reason: DropReason) -> None:
    """Counts a group of which the learner gets nothing."""
    self.tasks[task.name].dropped[reason] += 1

  def breaker(self, task: str, *, is_open: bool) -> None:
    """Notes that a task's breaker has opened, or closed."""
    self.tasks[task].is_open = is_open

  def taken(self, groups: Iterable[Group], version: int) -> None:
    """Counts the staleness of groups that the learner took for `version`."""
    for group in groups:
      self.staleness[version - group.oldest_version] += 1

  def queue(self, num_groups: int, capacity: int) -> None:
    """Sets the fill of the queue."""
    self.queued, self.capacity = num_groups, capacity

  def snapshot(self) -> dict[str, float]:
    """Returns every metric by its name."""
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
    BREAKER_OPEN: counts.is_open,
  }
  for kind, n in counts.faults.items():
    numbers[f"rollout/fault/{kind}"] = n
  for reason, n in counts.dropped.items():
    numbers[f"groups/dropped/{reason}"] = n
  for status, n in counts.statuses.items():
    numbers[f"rollout/status/{status.value.replace(' ', '_')}"] = n
  if counts.finished:
    numbers["rollout/token_identity"] = counts.identical / counts.finished
  for name in ("success", "reward", "episode_s", "group_s", "turns", "tokens"):
    window = getattr(counts, name)
    if window:
      numbers[f"rollout/{name}"] = sum(window) / len(window)
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


# What `launch.metrics` says of these; counts begin at the start of a run.
MEANINGS = {
  "rollout/success/<task>": "mean success over the latest 512 episodes, of "
  "replaced groups too",
  "rollout/reward/<task>": "mean reward over the latest 512 episodes",
  "rollout/turns/<task>": "mean turns over the latest 512 episodes",
  "rollout/tokens/<task>": "mean tokens over the latest 512 episodes",
  "rollout/episode_s/<task>": "seconds of an episode, mean over the latest "
  "ones",
  "rollout/group_s/<task>": "seconds of a group, which ends with its slowest "
  "episode",
  "rollout/stale_turns": "share of the batch's turns that older policy slots "
  "answered",
  "policy_slots/success/policy_slot<k>/<task>": "mean success of the episodes, "
  "once per turn that the policy slot answered",
  "rollout/started/<task>": "episodes that started, since the start",
  "rollout/finished/<task>": "episodes that the policy ended, since the start",
  "rollout/sampled_tokens/<task>": "tokens that their answers sampled, since "
  "the start",
  "rollout/retried/<task>": "episodes that broke and were played again",
  "rollout/masked/<task>": "episodes that were given up after "
  "retry.max_retries and left out of their group",
  "rollout/late/<task>": "episodes that were cut off with their group, at its "
  "deadline or because it held the learner back",
  "rollout/faults/<task>": "faults in all",
  "rollout/fault/<kind>/<task>": "faults of one kind",
  "rollout/status/<status>/<task>": "episodes by how they ended",
  "rollout/token_identity/<task>": "share of the episodes whose record has "
  "exactly the sampled tokens; always 1",
  "groups/finished/<task>": "groups that finished, since the start",
  "groups/dropped/<task>": "groups that were drawn or played and are not "
  "trained on",
  "groups/dropped/faults/<task>": "fewer than two episodes were left after "
  "all retries: faults.jsonl and the log name the exception",
  "groups/dropped/too_late/<task>": "ended before its last episode, at "
  "group.deadline_s or because it alone held the learner back "
  "(queue.max_age, queue.patience)",
  "groups/dropped/no_signal/<task>": "all rewards were equal, and "
  "admission.refills_per_step replaced it",
  "groups/dropped/breaker_open/<task>": "drawn while no groups of its task "
  "start, since its environment has died or hangs",
  "groups/dropped/no_place/<task>": "drawn while the task had its share of "
  "places and had not finished a group yet",
  "groups/breaker_open/<task>": "1 while no groups of the task start, since "
  "its environment has died or hangs",
  "queue/groups": "groups that wait for the learner",
  "queue/fill": "these, as a share of what the queue holds",
  "staleness/mean": "versions between a group's oldest token and its use, "
  "mean since the start",
  "staleness/max": "the largest of these",
  "staleness/groups/<age>": "groups that were so many versions old when they "
  "were used",
  "eval/success": "mean over tasks of eval/success/<task>",
  "eval/success/<task>": "share of successes in an evaluation during RL",
  "eval/success_low/<task>": "lower end of its 95 % interval",
  "eval/success_high/<task>": "upper end of its 95 % interval",
  "eval/reward/<task>": "mean reward",
  "eval/tasks/<task>": "tasks that were scored",
  "eval/lost/<task>": "tasks lost to faults, which count in no rate",
  "eval/status/<status>/<task>": "episodes by how they ended",
}
