"""Registry of tasks and their workers.

A state machine without waits: its owner passes in heartbeats and the time
(`now`). A worker's link knows how to reach it.
"""

import asyncio
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.service.protocol.link import WorkerLink

MAX_CAPACITY = (1 << 32) - 1  # which a heartbeat over gRPC can carry
MAX_NAME, MAX_ADDRESS = 200, 2000  # characters
CUSTOM = -1  # the index of a task that comes with the request

Index = int | str


def now() -> float:
  """Returns the time on the event loop's clock, as its timers have it."""
  return asyncio.get_running_loop().time()


class Refused(AgentRLError):
  """A request of a client or a worker is refused; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timers:
  """Timeouts and periods in seconds; the defaults are AgentRL's."""

  coma_s: float = 11.0  # without a heartbeat, until it gets no new sessions
  reconnect_s: float = 5.0  # for a worker whose stream broke to connect again
  remove_s: float = 300.0  # without a heartbeat, until the worker is removed
  expire_s: float = 300.0  # without a request, until a session is cancelled
  interaction_s: float = 240.0  # for a worker to start a session or play a turn
  ask_s: float = 5.0  # for a worker's answer that needs no environment
  queue_s: float = 30.0  # to wait for a place, unless the client gives a time
  tend_s: float = 20.0  # between two checks of the timers above
  sync_s: float = 60.0  # between two reconciliations with the workers

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if not value > 0:
        raise ConfigError(f"{name}={value} must be more than 0")


class Health(enum.Enum):
  """Health of a worker, in AgentRL's words."""

  ALIVE = "ALIVE"
  COMA = "COMA"
  DEAD = "DEAD"


@dataclasses.dataclass(eq=False)
class Worker:
  """One worker of one task."""

  id: int
  task: str
  address: str
  link: WorkerLink
  capacity: int
  last_visit: float
  health: Health = Health.COMA  # until it has listed its sessions
  is_stale: bool = False  # being drained: it gets no new sessions
  num_sessions: int = 0  # in the session table
  full_until: float = 0.0  # set after it has refused a session as full

  def __str__(self) -> str:
    return f"{self.task}#{self.id} at {self.address}"


@dataclasses.dataclass
class TaskEntry:
  """One task and the workers that serve it."""

  name: str
  indices: list[Index]
  workers: dict[int, Worker] = dataclasses.field(default_factory=dict)
  next_id: int = 1
  described: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    self._known = frozenset(self.indices)  # a task may have a million
    self._are_text = all(
      isinstance(i, str) or i == CUSTOM for i in self.indices
    )

  def resolve(self, index: Index) -> Index:
    """Checks an index; maps a position to it if all indices are text."""
    is_position = self._are_text and isinstance(index, int)
    if is_position and 0 <= int(index) < len(self.indices):
      return self.indices[int(index)]
    if index not in self._known:
      raise Refused(f"task {self.name} does not support index {index!s:.200}")
    return index


class Registry:
  """The tasks and their workers."""

  def __init__(self, timers: Timers, connect: Callable[[str], WorkerLink]):
    self.tasks: dict[str, TaskEntry] = {}
    self._timers = timers
    self._connect = connect  # makes the link to an address

  def add_heartbeat(self, announcement: Mapping[str, Any], now: float) -> bool:
    """Registers a heartbeat; returns whether the worker is new or returning.

    Such a worker gets sessions after it has listed its own, and the registry's
    owner has set its health to alive.

    Raises `Refused` for one that no worker of the task would send, and for one
    with the address of a worker of another task that is alive: two workers
    that are given one address would end each other's sessions.
    """
    name, address, capacity, indices = _read(announcement)
    for other in self.find(address):
      silent_s = now - other.last_visit
      if other.task != name and silent_s <= self._timers.coma_s:
        raise Refused(
          f"{address} is the address of a worker of task {other.task}, which "
          f"was heard {silent_s:.1f} s ago: give each worker its own --address"
        )
    entry = self.tasks.get(name)
    if entry is None or not entry.workers:
      entry = self.tasks[name] = TaskEntry(name, indices)
    elif entry.indices != indices:
      raise Refused(f"task {name} already exists with different indices")
    worker = self._at(entry, address)
    if worker is None:
      self._add(entry, address, capacity, now)
      return True
    worker.capacity, worker.last_visit = capacity, now
    return worker.health is not Health.ALIVE

  def find(self, address: str) -> list[Worker]:
    """Returns the workers at an address; several if it has changed its task."""
    return [worker for worker in self.workers() if worker.address == address]

  def workers(self) -> list[Worker]:
    """Returns all workers of all tasks."""
    return [w for entry in self.tasks.values() for w in entry.workers.values()]

  def task(self, name: str) -> TaskEntry:
    """Returns the task's entry. Raises `Refused` if there is none."""
    if name not in self.tasks:
      raise Refused(f"task {name:.200} does not exist")
    return self.tasks[name]

  def pick(self, name: str, now: float) -> Worker | None:
    """Returns the worker with the most free places; None if all are full."""
    entry = self.tasks.get(name)
    if entry is None:
      return None
    able = [w for w in entry.workers.values() if self._is_able(w, now)]
    return max(able, key=lambda w: w.capacity - w.num_sessions, default=None)

  def mark_stale(self, name: str, worker_id: int, *, stale: bool) -> None:
    """Drains a worker, or admits sessions to it again."""
    workers = self.task(name).workers
    if worker_id not in workers:
      raise Refused(f"worker {name}#{worker_id} does not exist")
    workers[worker_id].is_stale = stale

  def tick(self, now: float) -> list[Worker]:
    """Puts silent workers into coma; removes and returns the long silent."""
    removed = []
    for worker in self.workers():
      silence_s = now - worker.last_visit
      if worker.health is Health.ALIVE and silence_s > self._timers.coma_s:
        worker.health = Health.COMA
      if silence_s > self._timers.remove_s:
        self.remove(worker)
        removed.append(worker)
    return removed

  def remove(self, worker: Worker) -> None:
    """Removes a worker, and its task with the last worker."""
    worker.health = Health.DEAD
    entry = self.tasks[worker.task]
    del entry.workers[worker.id]
    if not entry.workers:
      del self.tasks[worker.task]

  def _add(
    self, entry: TaskEntry, address: str, capacity: int, now: float
  ) -> None:
    worker = Worker(
      id=entry.next_id,
      task=entry.name,
      address=address,
      link=self._connect(address),
      capacity=capacity,
      last_visit=now,
    )
    entry.next_id += 1
    entry.workers[worker.id] = worker

  def _at(self, entry: TaskEntry, address: str) -> Worker | None:
    workers = (w for w in entry.workers.values() if w.address == address)
    return next(workers, None)

  def _is_able(self, worker: Worker, now: float) -> bool:
    return (
      worker.health is Health.ALIVE
      and not worker.is_stale
      and now - worker.last_visit <= self._timers.coma_s
      and worker.num_sessions < worker.capacity
      and now >= worker.full_until
    )


def _read(announcement: Mapping[str, Any]) -> tuple[str, str, int, list[Index]]:
  """Checks a heartbeat; returns name, address, capacity and indices."""
  name, address = announcement.get("name"), announcement.get("address")
  capacity = announcement.get("concurrency")
  indices = announcement.get("indices")
  if not isinstance(name, str) or not isinstance(indices, list):
    raise Refused("a heartbeat needs a task's name and its indices")
  if not name or not indices:
    raise Refused("task name and indices cannot be empty")
  odd = [i for i in indices if type(i) not in (int, str)]
  if odd:
    raise Refused(f"an index is a number or a text, not {odd[0]!r:.80}")
  if not isinstance(address, str) or not address:
    raise Refused("worker address cannot be empty")
  for what, text, most in (
    ("task name", name, MAX_NAME),
    ("worker address", address, MAX_ADDRESS),
  ):
    if len(text) > most or not text.isprintable():  # they stand in logs
      raise Refused(
        f"{what} must be at most {most} printable characters, found "
        f"{text!r:.80}"
      )
  if type(capacity) is not int or not 0 < capacity <= MAX_CAPACITY:
    raise Refused(
      "worker capacity must be a positive integer of at most "
      f"{MAX_CAPACITY}, found {capacity!r:.80}"
    )
  return name, address, capacity, indices
