"""Dispatches sessions to workers, for AgentRL's controller protocol.

Custom tasks and answers of the policy are passed on as they are. A worker's
report is read first, as a client reads it: one that no client could use is the
worker's fault, and ends its session.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.controller.capacity import MAX_WAITING, CapacityQueue
from agentrl_jax.service.controller.reconciler import SessionReconciler, Spawn
from agentrl_jax.service.controller.registry import (
  CUSTOM,
  Index,
  Refused,
  Registry,
  TaskEntry,
  Timers,
  Worker,
  now,
)
from agentrl_jax.service.controller.session_table import (
  SessionEntry,
  SessionTable,
)
from agentrl_jax.service.protocol import wire
from agentrl_jax.service.protocol.link import (
  WorkerFull,
  WorkerLink,
  WorkerLost,
  WorkerRefusal,
  reading,
)
from agentrl_jax.waits import Condition

_log = logging.getLogger(__name__)

FULL_S = 1.0  # before a worker that refused a session as full is tried again
SYNC_SPREAD_S = 2.0  # over which requests to all workers are spread
RUNNING = "running"


class Dispatcher:
  """Combines registry, session table and capacity; made by `dispatching`."""

  def __init__(
    self,
    timers: Timers,
    connect: Callable[[str], WorkerLink],
    spawn: Spawn,
    *,
    max_waiting: int = MAX_WAITING,
  ):
    self.timers = timers
    self.registry = Registry(timers, connect)
    self.table = SessionTable()
    self.places = CapacityQueue(
      self.registry, self.table, max_waiting=max_waiting
    )
    self._reconciler = SessionReconciler(
      self.registry, self.table, self.places, spawn, ask_s=timers.ask_s
    )
    self._spawn = spawn
    self._begun_at = now()
    self._is_stopping = False
    self._tasks_changed = Condition()

  def receive_heartbeat(self, announcement: Mapping[str, Any]) -> None:
    """Registers a heartbeat; asks a new or returning worker for its sessions.

    Raises `Refused` for one that no worker of the task would send.
    """
    is_new = self.registry.add_heartbeat(announcement, now())
    for worker in self.registry.find(announcement["address"]):
      if worker.task != announcement["name"]:
        _log.warning("%s now serves %s", worker, announcement["name"])
        self.registry.remove(worker)
        self._reconciler.end_all(worker)
      elif is_new:
        self._spawn(self._reconciler.sync(worker))
    self.places.offer(announcement["name"])
    self._tasks_changed.notify()

  def lose_worker(self, address: str) -> None:
    """Sends the worker no more sessions: its connection has broken."""
    for worker in self.registry.find(address):
      self._reconciler.put_in_coma(worker, "its stream broke")

  async def start(
    self,
    task: str,
    index: Index,
    *,
    custom_task: Any = None,
    extras: Mapping[str, Any],
    wait_s: float,
  ) -> tuple[SessionEntry, dict[str, Any]]:
    """Opens a session on the worker with the most free capacity.

    Returns the session and its first report. Waits up to `wait_s` for a worker
    that serves the task and has capacity. `extras` go to the worker unchanged.
    A failure or cancellation leaves no session open. Raises `Refused` or
    `EnvironmentFault`.
    """
    if index == CUSTOM and custom_task is None:
      raise Refused("no custom task provided")
    ends_at = now() + wait_s
    custom_task = custom_task if index == CUSTOM else None
    entry = await self._await_task(task, wait_s)
    if "split" in extras:
      await self.describe(task, extras["split"])  # refuses unknown splits
    else:
      index = entry.resolve(index)

    def open_in(worker: Worker) -> SessionEntry:
      session = self.table.open(worker, index, custom_task)
      session.is_busy = True
      return session

    tries = 0
    while True:
      room_s = max(ends_at - now(), 0)
      session = await self.places.take(
        task, open_in, wait_s=room_s, first=tries > 0
      )
      try:
        return session, await self._begin(session, extras)
      except WorkerFull:
        self._mark_full(session)
        tries += 1

  async def interact(
    self, id: int, messages: Any, *, turn: int | None = None
  ) -> dict[str, Any]:
    """Plays an answer; returns the report. A worker's fault ends the session.

    With its `turn`, from 1, an answer may come again after a controller died.
    Raises `Refused` or `EnvironmentFault`.
    """
    request = {"messages": messages, "session_id": id}
    if turn is not None:
      request["turn"] = turn
      if self.table.find(id) is None and self._may_be_unknown(id):
        return await self._ask_all(id, request)
    session = self.table.get(id)
    if session.is_busy or session.is_cancelling:
      doing = "being cancelled" if session.is_cancelling else "interacting"
      raise Refused(f"session {id} is already {doing}")
    session.is_busy = True
    try:
      body = await self._ask(session, "interact", request)
    except (WorkerRefusal, WorkerFull):
      session.is_busy = False
      # The worker may not have the session any more.
      self._spawn(self._reconciler.sync(session.worker))
      raise
    return self._settle(session, "interact", body)

  def cancel(self, id: int) -> None:
    """Cancels a session, which counts until the worker confirms its end."""
    self._reconciler.drop(self.table.get(id))

  def cancel_all(self, task: str | None = None) -> None:
    """Cancels all sessions, or all of a task."""
    for session in self.table:
      if task is None or session.worker.task == task:
        self._reconciler.drop(session)

  def end_session(self, id: int, sender: str | None = None) -> None:
    """Ends a session, after the notice of the worker at the address `sender`.

    Over HTTP nobody knows which worker sends. Such a notice ends a session that
    was to be cancelled. After any other one the session's own worker is asked,
    so that no worker ends the sessions of another.
    """
    session = self.table.find(id)
    if session is None:
      _log.info("notice of the end of session %d, which is not known", id)
    elif sender == session.worker.address or (
      sender is None and session.is_cancelling
    ):
      self._reconciler.end(session)
    else:
      _log.warning(
        "a notice of %s says that session %d is free; its worker %s is asked",
        sender or "a worker",
        id,
        session.worker,
      )
      self._spawn(self._reconciler.sync(session.worker))

  def stop(self) -> None:
    """Leaves sessions with their workers from now on, for the next controller.

    A request that is cut off is one of a client that will ask again.
    """
    self._is_stopping = True

  async def describe(self, task: str, split: str) -> Any:
    """Returns a worker's description of a split; only our workers have any."""
    entry = self.registry.task(task)
    if split not in entry.described:
      workers = entry.workers.values()
      worker = max(workers, key=lambda worker: worker.last_visit)
      body = await worker.link.ask(
        "GET", "describe", {"split": split}, deadline_s=self.timers.ask_s
      )
      with reading(f"worker {worker}", "describe", body):
        wire.indices_from_json(body["indices"])
      entry.described[split] = body
    return entry.described[split]

  def mark_stale(self, task: str, worker_id: int, *, stale: bool) -> None:
    """Drains a worker, or admits sessions to it again."""
    self.registry.mark_stale(task, worker_id, stale=stale)
    self.places.offer(task)

  def sync_all(self, spread_s: float = 0.0) -> None:
    """Reconciles sessions with every worker, spread over about `spread_s`."""
    self._reconciler.sync_all(spread_s)

  def check_timers(self) -> None:
    """Removes silent workers, and cancels sessions that have expired."""
    moment = now()
    for worker in self.registry.tick(moment):
      _log.warning("%s sent no heartbeat in time and is removed", worker)
      self._reconciler.end_all(worker)
    for session in self.table:
      if moment - session.updated > self.timers.expire_s:
        self._expire(session)

  def _expire(self, session: SessionEntry) -> None:
    if session.is_cancelling:
      session.updated = now()
      _log.error(
        "%s was told at least %g s ago to free session %d, and still holds it: "
        "its place is lost until it does",
        session.worker,
        self.timers.expire_s,
        session.id,
      )
    elif not session.is_busy:
      _log.warning("session %d expired: it had no request", session.id)
      self._reconciler.drop(session)

  def _may_be_unknown(self, id: int) -> bool:
    """Returns whether a session may be of the controller before this one."""
    is_young = now() - self._begun_at < self.timers.expire_s
    return is_young and self.table.ended_at(id) is None

  async def _ask_all(
    self, id: int, request: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Plays a numbered turn at the worker that has the session, or had it.

    Before a worker has listed its sessions nobody else knows which it is, and a
    session whose last report was lost is listed no more. The others refuse.
    Raises `Refused` if all do.
    """

    async def ask(worker: Worker) -> dict[str, Any] | None:
      with contextlib.suppress(EnvironmentFault):
        body = await worker.link.ask(
          "POST", "interact", request, deadline_s=self.timers.interaction_s
        )
        return _read_report(worker, "interact", body)
      return None

    asking = {
      asyncio.ensure_future(ask(worker)) for worker in self.registry.workers()
    }
    try:
      for answer in asyncio.as_completed(asking):
        if (report := await answer) is not None:
          return report
    finally:
      for each in asking:
        each.cancel()
    self.table.get(id)  # its worker may have listed it meanwhile
    raise Refused(f"session {id} not found: no worker has it yet")

  async def _begin(
    self, session: SessionEntry, extras: Mapping[str, Any]
  ) -> dict[str, Any]:
    request = {**extras, "index": session.index, "session_id": session.id}
    if session.custom_task is not None:
      request["custom_task"] = session.custom_task
    body = await self._ask(session, "start_sample", request)
    return self._settle(session, "start_sample", body)

  async def _ask(
    self, session: SessionEntry, endpoint: str, body: Mapping[str, Any]
  ) -> Any:
    """Sends a request to the session's worker; a failure ends the session.

    After a refused answer the session stays open for another one.
    """
    worker = session.worker
    session.updated = now()
    try:
      return await worker.link.ask(
        "POST", endpoint, body, deadline_s=self.timers.interaction_s
      )
    except WorkerFull:
      raise  # the session has not started
    except WorkerRefusal:
      if endpoint == "start_sample":
        self._reconciler.end(session)
      raise
    except WorkerLost as fault:
      self._reconciler.put_in_coma(worker, str(fault))
      self._reconciler.drop(session)
      raise
    except BaseException:  # a fault of the worker, or a client that hung up
      if not self._is_stopping:
        self._reconciler.drop(session)
      raise
    finally:
      session.updated = now()

  def _settle(
    self, session: SessionEntry, endpoint: str, body: Any
  ) -> dict[str, Any]:
    """Returns the checked report; ends the session if it is over."""
    session.is_busy = False
    try:
      report = _read_report(session.worker, endpoint, body)
      if report["status"] == RUNNING and not report["messages"]:
        raise EnvironmentFault(
          f"worker {session.worker} returned no messages for session "
          f"{session.id}: {body!r:.300}"
        )
    except EnvironmentFault:
      self._reconciler.drop(session)
      raise
    if report["status"] != RUNNING:
      self._reconciler.end(session)
    return report

  async def _await_task(self, name: str, wait_s: float) -> TaskEntry:
    """Returns the task's entry, as soon as a worker serves it."""
    with contextlib.suppress(TimeoutError):  # `task` then raises `Refused`
      async with asyncio.timeout(wait_s):
        await self._tasks_changed.wait_until(
          lambda: name in self.registry.tasks
        )
    return self.registry.task(name)

  def _mark_full(self, session: SessionEntry) -> None:
    """Notes that the worker is full of other controllers' sessions."""
    worker = session.worker
    self._reconciler.end(session)
    worker.full_until = now() + FULL_S
    loop = asyncio.get_running_loop()
    loop.call_later(FULL_S + 0.01, self.places.offer, worker.task)
    self._spawn(self._reconciler.sync(worker))


def _read_report(worker: Worker, endpoint: str, body: Any) -> dict[str, Any]:
  """Returns a worker's report as it came, with the numbers that it means.

  Raises `EnvironmentFault` for what is none of AgentRL's protocol.
  """
  with reading(f"worker {worker}", endpoint, body):
    report = body["env_out"] if endpoint == "interact" else body
    ended = report.get("status", RUNNING) != RUNNING
    report = {"messages": None, **report} if ended else dict(report)
    step = wire.step_from_json(report)
    wire.tools_from_json(report)
  return report | {"status": step.status.value, "reward": step.reward}


@contextlib.asynccontextmanager
async def dispatching(
  timers: Timers,
  connect: Callable[[str], WorkerLink],
  *,
  max_waiting: int = MAX_WAITING,
) -> AsyncIterator[Dispatcher]:
  """Runs a dispatcher and its timers until the context is left.

  Sessions stay with their workers, where the next controller finds them.
  """
  async with running_background_tasks() as background:
    dispatcher = Dispatcher(
      timers, connect, background.start, max_waiting=max_waiting
    )
    background.repeat(dispatcher.check_timers, period_s=timers.tend_s)
    background.repeat(
      lambda: dispatcher.sync_all(SYNC_SPREAD_S), period_s=timers.sync_s
    )
    yield dispatcher


class BackgroundTasks:
  """Tasks that nobody awaits; made by `running_background_tasks`."""

  def __init__(self) -> None:
    self.running: set[asyncio.Task[None]] = set()

  def start(self, work: Coroutine[Any, Any, None]) -> None:
    """Starts a task. Its failure is logged and affects no other task."""
    task = asyncio.create_task(work)
    self.running.add(task)
    task.add_done_callback(self._finish)

  def repeat(self, act: Callable[[], None], *, period_s: float) -> None:
    """Calls `act` at the end of every period."""

    async def every_period() -> None:
      while True:
        await asyncio.sleep(period_s)
        act()

    self.start(every_period())

  def _finish(self, task: asyncio.Task[None]) -> None:
    self.running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
      _log.error("a background task of the controller failed", exc_info=error)


@contextlib.asynccontextmanager
async def running_background_tasks() -> AsyncIterator[BackgroundTasks]:
  """Cancels and awaits the tasks when the context is left."""
  background = BackgroundTasks()
  try:
    yield background
  finally:
    for task in background.running:
      task.cancel()
    await asyncio.gather(*background.running, return_exceptions=True)
