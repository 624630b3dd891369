"""Open sessions of one environment, kept between the requests of a worker.

Each session lives in a task of its own, which opens its context, plays answers,
and closes it: the context is always left in the task that entered it, whatever
happens to a request. A session that fails does not affect the others.
"""

import asyncio
import dataclasses
import logging
from typing import Any

from agentrl_jax.data.records import Message, Status, Task, Tool
from agentrl_jax.env.interface import Environment, Step
from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import AgentRLError, EnvironmentFault

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostLimits:
  """Capacity of a worker, and its timeouts."""

  concurrency: int = 32  # open sessions
  start_timeout_s: float = 120.0  # for the environment to open and reset
  step_s: float = 240.0  # for the environment to play an answer
  idle_timeout_s: float = 600.0  # for the policy's next answer
  close_s: float = 30.0  # for the environment to free a session

  def __post_init__(self) -> None:
    require_positive(**dataclasses.asdict(self))


class HostFull(AgentRLError):
  """All places are taken."""


class SessionRefused(AgentRLError):
  """There is no such session, or it is busy or over."""


class HostedSession:
  """One session, alive between requests. Used by `Host` alone."""

  def __init__(self, task: Task):
    self.task = task
    self.tools: tuple[Tool, ...] = ()
    self.status = Status.RUNNING
    self._reply: asyncio.Future[Step] = _future()
    self._answers: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)

  @property
  def is_busy(self) -> bool:
    """Returns whether the environment owes a step."""
    return not self._reply.done()

  async def live(
    self, environment: Environment, *, seed: int, idle_timeout_s: float
  ) -> None:
    """Plays until the episode ends, no answer comes, or it is cancelled."""
    async with environment.open(self.task, seed=seed) as session:
      self.tools = tuple(session.tools)
      self._say(await session.reset())
      while self.status is Status.RUNNING:
        answer = await self._next_answer(idle_timeout_s)
        if answer is None:
          self.status = Status.CANCELLED
        else:
          step = await session.step(answer)
          self.tools = tuple(session.tools)
          self._say(step)

  def ask(self, answer: Message) -> None:
    """Passes an answer to the session; `reply` waits for its step."""
    self._reply = _future()
    self._answers.put_nowait(answer)

  async def reply(self, life: asyncio.Task[None], *, deadline_s: float) -> Step:
    """Waits for the step that is owed, or for the session's end.

    Raises `EnvironmentFault` if the session fails or does not answer in time.
    """
    either: set[asyncio.Future[Any]] = {self._reply, life}
    await asyncio.wait(
      either, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
    )
    if self._reply.done():
      return self._reply.result()
    self.status = Status.TASK_ERROR
    raise _fault(self.task, life, deadline_s)

  def _say(self, step: Step) -> None:
    self.status = step.status
    self._reply.set_result(step)

  async def _next_answer(self, idle_timeout_s: float) -> Message | None:
    try:
      async with asyncio.timeout(idle_timeout_s):
        return await self._answers.get()
    except TimeoutError:
      _log.warning(
        "%s: no answer for %g s, session freed", self.task, idle_timeout_s
      )
      return None


class Host:
  """The open sessions of one environment, by id."""

  def __init__(self, environment: Environment, limits: HostLimits):
    self.environment = environment
    self.limits = limits
    self._sessions: dict[int, HostedSession] = {}
    # Tasks of sessions, until they are freed.
    self._lives: dict[int, asyncio.Task[None]] = {}
    self._is_draining = False

  @property
  def num_open(self) -> int:
    """Number of places taken, including sessions that are being freed."""
    return len(self._lives)

  def tasks(self) -> dict[int, Task]:
    """Returns the task of each session that can be asked."""
    return {
      id: session.task
      for id, session in self._sessions.items()
      if session.status is Status.RUNNING
    }

  def is_open(self, id: int) -> bool:
    """Returns whether the session can be asked."""
    session = self._sessions.get(id)
    return session is not None and session.status is Status.RUNNING

  def get(self, id: int) -> HostedSession:
    """Returns the session, or raises `SessionRefused`."""
    if id not in self._sessions:
      raise SessionRefused(f"there is no session {id}: it ended, or never was")
    return self._sessions[id]

  async def start(
    self, id: int, task: Task, *, seed: int
  ) -> tuple[HostedSession, Step]:
    """Opens a session and waits for its first step."""
    if id in self._lives:
      raise SessionRefused(f"session {id} is already there")
    if self._is_draining:
      raise HostFull("this worker will end soon: start the session at another")
    if self.num_open >= self.limits.concurrency:
      raise HostFull(
        f"all {self.limits.concurrency} places are taken; try again later, or "
        "start the worker with a larger --concurrency"
      )
    session = HostedSession(task)
    life = asyncio.create_task(
      session.live(
        self.environment, seed=seed, idle_timeout_s=self.limits.idle_timeout_s
      ),
      name=f"session-{id}",
    )
    self._sessions[id], self._lives[id] = session, life
    life.add_done_callback(lambda life: self._forget(id, life))
    return session, await self._reply(
      id, deadline_s=self.limits.start_timeout_s
    )

  async def step(self, id: int, answer: Message) -> Step:
    """Plays an answer and waits for the environment's reply."""
    session = self.get(id)
    if session.is_busy or session.status is not Status.RUNNING:
      state = "busy with an answer" if session.is_busy else "over"
      raise SessionRefused(f"session {id} cannot be asked: it is {state}")
    session.ask(answer)
    return await self._reply(id, deadline_s=self.limits.step_s)

  async def drain(self) -> None:
    """Opens no more sessions, and waits until all have ended."""
    self._is_draining = True
    if self._lives:
      await asyncio.wait(self._lives.values())

  async def cancel(self, id: int) -> None:
    """Frees a session and waits until it is free; ignores unknown ids."""
    await self._free([id])

  async def cancel_all(self) -> None:
    """Frees every session and waits until they are free."""
    await self._free(list(self._lives))

  async def _reply(self, id: int, *, deadline_s: float) -> Step:
    life = self._lives[id]
    try:
      return await self._sessions[id].reply(life, deadline_s=deadline_s)
    except (EnvironmentFault, asyncio.CancelledError):
      life.cancel()
      raise

  async def _free(self, ids: list[int]) -> None:
    lives = {self._lives[id] for id in ids if id in self._lives}
    for life in lives:
      life.cancel()
    if lives:
      _, stuck = await asyncio.wait(lives, timeout=self.limits.close_s)
      for life in stuck:
        _log.error(
          "%s: the environment has not freed it within %g s; its place is "
          "lost until it does",
          life.get_name(),
          self.limits.close_s,
        )

  def _forget(self, id: int, life: asyncio.Task[None]) -> None:
    del self._sessions[id], self._lives[id]
    if not life.cancelled() and (error := life.exception()) is not None:
      _log.error("%s broke", life.get_name(), exc_info=error)


def _future() -> asyncio.Future[Step]:
  return asyncio.get_running_loop().create_future()


def _fault(
  task: Task, life: asyncio.Task[None], deadline_s: float
) -> EnvironmentFault:
  """Explains why `life` gave no step; chains the environment's own error."""
  if not life.done():
    return EnvironmentFault(
      f"{task}: the environment has not answered within {deadline_s:g} s; "
      "see what its step waits for"
    )
  error = None if life.cancelled() else life.exception()
  if error is None:
    return EnvironmentFault(f"{task}: the session was cancelled")
  fault = EnvironmentFault(f"{task}: {type(error).__name__}: {error}")
  fault.__cause__ = error
  return fault
