"""The controller of AgentRL's protocol: sessions on whatever workers there are.

What travels is JSON and is passed through as it came: messages, tools and
custom tasks are for the client and the worker to understand.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from agentrl_jax.controller.service.capacity import CapacityQueue
from agentrl_jax.controller.service.reconciler import SessionReconciler, Spawn
from agentrl_jax.controller.service.registry import (
  CUSTOM,
  Index,
  Refused,
  Registry,
  TaskEntry,
  Timers,
  Worker,
)
from agentrl_jax.controller.service.session_table import (
  SessionEntry,
  SessionTable,
)
from agentrl_jax.env.protocol.link import (
  Link,
  WorkerFull,
  WorkerLost,
  WorkerRefusal,
)
from agentrl_jax.errors import EnvironmentFault

_log = logging.getLogger(__name__)

FULL_S = 1.0  # before a worker that refused for want of room is tried again
SYNC_SPREAD_S = 2.0  # so that not all workers are asked at one moment
RUNNING = "running"


class Dispatcher:
  """Registry, sessions and places, in one; made by `dispatching`."""

  def __init__(
    self,
    timers: Timers,
    connect: Callable[[str], Link],
    spawn: Spawn,
  ):
    self.timers = timers
    self.registry = Registry(timers, connect)
    self.table = SessionTable()
    self.places = CapacityQueue(self.registry, self.table)
    self._custody = SessionReconciler(
      self.registry, self.table, self.places, spawn, ask_s=timers.ask_s
    )
    self._spawn = spawn
    self._changed = asyncio.Event()  # replaced each time a task appears

  def heard(self, announcement: Mapping[str, Any]) -> None:
    """Takes a heartbeat in. One that is new or was away is asked what it holds.

    Raises `Refused` for one that no worker of the task would send.
    """
    is_news = self.registry.heard(announcement, time.monotonic())
    for worker in self.registry.find(announcement["address"]):
      if worker.task != announcement["name"]:
        _log.warning("%s now serves %s", worker, announcement["name"])
        self._forget(worker)
      elif is_news:
        self._spawn(self._custody.sync(worker))
    self.places.offer(announcement["name"])
    self._announce_change()

  def lost(self, address: str) -> None:
    """Takes in that the way to a worker is broken."""
    for worker in self.registry.find(address):
      self._custody.put_in_coma(worker, "its stream broke")

  async def start(
    self,
    task: str,
    index: Index,
    *,
    custom_task: Any = None,
    extras: Mapping[str, Any],
    wait_s: float,
  ) -> tuple[SessionEntry, dict[str, Any]]:
    """Opens a session on the worker with the most room; its first report.

    Waits up to `wait_s` for the task to be served and for a place. `extras` go
    to the worker as they are. Whatever fails, cancellation included, leaves no
    session behind. Raises `Refused` or `EnvironmentFault`.
    """
    if index == CUSTOM and custom_task is None:
      raise Refused("no custom task provided")
    ends_at = time.monotonic() + wait_s
    custom_task = custom_task if index == CUSTOM else None
    entry = await self._await_task(task, wait_s)
    if "split" in extras:
      await self.describe(task, extras["split"])  # or its workers know none
    else:
      index = entry.resolve(index)

    def open_in(worker: Worker) -> SessionEntry:
      session = self.table.open(worker, index, custom_task)
      session.is_busy = True
      return session

    tries = 0
    while True:
      room_s = max(ends_at - time.monotonic(), 0)
      session = await self.places.take(
        task, open_in, wait_s=room_s, first=tries > 0
      )
      try:
        return session, await self._begin(session, extras)
      except WorkerFull:
        self._mark_full(session)
        tries += 1

  async def interact(self, id: int, messages: Any) -> dict[str, Any]:
    """Plays an answer and reports. A worker that fails ends the session.

    Raises `Refused` or `EnvironmentFault`.
    """
    session = self.table.get(id)
    if session.is_busy or session.is_cancelling:
      doing = "being cancelled" if session.is_cancelling else "interacting"
      raise Refused(f"session {id} is already {doing}")
    session.is_busy = True
    try:
      body = await self._ask(
        session, "interact", {"messages": messages, "session_id": id}
      )
    except (WorkerRefusal, WorkerFull):
      session.is_busy = False
      self._spawn(
        self._custody.sync(session.worker)
      )  # does it know the session?
      raise
    return self._settle(session, body, "env_out")

  def cancel(self, id: int) -> None:
    """Has a session freed; its place is taken until the worker says so."""
    self._custody.drop(self.table.get(id))

  def cancel_all(self, task: str | None = None) -> None:
    """Has all sessions freed, or all of a task."""
    for session in self.table:
      if task is None or session.worker.task == task:
        self._custody.drop(session)

  def freed(self, id: int) -> None:
    """Takes in a worker's notice that a session is free."""
    session = self.table.find(id)
    if session is None:
      _log.info("session %d is freed, and was not known", id)
    else:
      self._custody.end(session)

  async def describe(self, task: str, split: str) -> Any:
    """What a task's workers say of a split; only ours know splits."""
    entry = self.registry.task(task)
    if split not in entry.described:
      workers = entry.workers.values()
      worker = max(workers, key=lambda worker: worker.last_visit)
      entry.described[split] = await worker.link.ask(
        "GET", "describe", {"split": split}, deadline_s=self.timers.ask_s
      )
    return entry.described[split]

  def mark_stale(self, task: str, worker_id: int, *, stale: bool) -> None:
    """Drains a worker, or sends it sessions again."""
    self.registry.mark_stale(task, worker_id, stale=stale)
    self.places.offer(task)

  def sync_all(self, spread_s: float = 0.0) -> None:
    """Compares our sessions with every worker's, within about `spread_s`."""
    self._custody.sync_all(spread_s)

  def tend(self) -> None:
    """Looks at every timer once."""
    now = time.monotonic()
    for worker in self.registry.tick(now):
      _log.warning("%s was silent for long and is removed", worker)
      self._custody.end_all(worker)
    for session in self.table:
      if now - session.updated > self.timers.expire_s:
        self._expire(session)

  def _expire(self, session: SessionEntry) -> None:
    if session.is_cancelling:
      session.updated = time.monotonic()
      _log.error(
        "%s was told %g s ago and more to free session %d, and still holds it: "
        "its place is lost until it does",
        session.worker,
        self.timers.expire_s,
        session.id,
      )
    elif not session.is_busy:
      _log.warning("session %d expired: no request for it", session.id)
      self._custody.drop(session)

  async def _begin(
    self, session: SessionEntry, extras: Mapping[str, Any]
  ) -> dict[str, Any]:
    request = {**extras, "index": session.index, "session_id": session.id}
    if session.custom_task is not None:
      request["custom_task"] = session.custom_task
    body = await self._ask(session, "start_sample", request)
    return self._settle(session, body)

  async def _ask(
    self, session: SessionEntry, endpoint: str, body: Mapping[str, Any]
  ) -> Any:
    """Asks the session's worker; if that fails the session is not kept.

    Only a refusal of an answer leaves it to be answered better.
    """
    worker = session.worker
    session.updated = time.monotonic()
    try:
      return await worker.link.ask(
        "POST", endpoint, body, deadline_s=self.timers.interaction_s
      )
    except WorkerFull:
      raise  # it never began
    except WorkerRefusal:
      if endpoint == "start_sample":
        self._custody.end(session)
      raise
    except WorkerLost as fault:
      self._custody.put_in_coma(worker, str(fault))
      self._custody.drop(session)
      raise
    except BaseException:  # a fault of the worker, or a client that hung up
      self._custody.drop(session)
      raise
    finally:
      session.updated = time.monotonic()

  def _settle(
    self, session: SessionEntry, body: Any, key: str | None = None
  ) -> dict[str, Any]:
    """The report, once it is one; a session that is over gives its place."""
    session.is_busy = False
    report = body.get(key) if key and isinstance(body, dict) else body
    if isinstance(report, dict) and report.get("status", RUNNING) != RUNNING:
      self._custody.end(session)
    elif not isinstance(report, dict) or not report.get("messages"):
      self._custody.drop(session)
      raise EnvironmentFault(
        f"worker {session.worker} returned no messages for session "
        f"{session.id}: {body!r:.300}"
      )
    return report

  async def _await_task(self, name: str, wait_s: float) -> TaskEntry:
    """The task's entry, as soon as somebody serves it."""
    try:
      async with asyncio.timeout(wait_s):
        while name not in self.registry.tasks:
          await self._changed.wait()
    except TimeoutError:
      pass  # the registry says what is wrong
    return self.registry.task(name)

  def _announce_change(self) -> None:
    self._changed.set()
    self._changed = asyncio.Event()

  def _mark_full(self, session: SessionEntry) -> None:
    """Somebody else fills the worker: the session goes to another, or waits."""
    worker = session.worker
    self._custody.end(session)
    worker.full_until = time.monotonic() + FULL_S
    loop = asyncio.get_running_loop()
    loop.call_later(FULL_S + 0.01, self.places.offer, worker.task)
    self._spawn(self._custody.sync(worker))

  def _forget(self, worker: Worker) -> None:
    self.registry.remove(worker)
    self._custody.end_all(worker)


@contextlib.asynccontextmanager
async def dispatching(
  timers: Timers, connect: Callable[[str], Link]
) -> AsyncIterator[Dispatcher]:
  """A dispatcher that tends to its timers until the context is left.

  Sessions stay with their workers, where the next controller finds them.
  """
  async with performing() as duties:
    dispatcher = Dispatcher(timers, connect, duties.begin)
    duties.repeat(dispatcher.tend, period_s=timers.tend_s)
    duties.repeat(
      lambda: dispatcher.sync_all(SYNC_SPREAD_S), period_s=timers.sync_s
    )
    yield dispatcher


_log = logging.getLogger(__name__)


class BackgroundTasks:
  """Tasks that nobody waits for; made by `performing`."""

  def __init__(self) -> None:
    self.running: set[asyncio.Task[None]] = set()

  def begin(self, work: Coroutine[Any, Any, None]) -> None:
    """Does something, soon. What fails is logged, and fails alone."""
    task = asyncio.create_task(work)
    self.running.add(task)
    task.add_done_callback(self._finish)

  def repeat(self, act: Callable[[], None], *, period_s: float) -> None:
    """Does something over and over, first after a period."""
    self.begin(_every(period_s, act))

  def _finish(self, task: asyncio.Task[None]) -> None:
    self.running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
      _log.error("a duty of the controller failed", exc_info=error)


@contextlib.asynccontextmanager
async def performing() -> AsyncIterator[BackgroundTasks]:
  """Leaving cancels what is still being done, and waits until it has ended."""
  duties = BackgroundTasks()
  try:
    yield duties
  finally:
    for task in duties.running:
      task.cancel()
    await asyncio.gather(*duties.running, return_exceptions=True)


async def _every(period_s: float, act: Callable[[], None]) -> None:
  while True:
    await asyncio.sleep(period_s)
    act()
