"""An environment that is played on whichever workers have registered for it.

  Fleet(controller="http://127.0.0.1:5020/api", name="dbbench")

A config names it like any environment:
`agentrl_jax.controller.service.client:ControllerEnvironment`, with
these arguments as its options. The controller is ours or AgentRL's, and the
workers are whoever's: what is asked here is AgentRL's controller API. Sessions
of a fleet that outnumber its places wait at the controller.

Gold solutions do not travel. Where an expert is needed, it is that of an
environment like the workers' own, made in this process for that alone.
"""

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from agentrl_jax.controller.service.registry import CUSTOM
from agentrl_jax.data.messages import Message, Tool, message_to_json
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.env.loading import find_class, load_environment
from agentrl_jax.env.protocol import wire
from agentrl_jax.env.protocol.client import ClientDeadlines
from agentrl_jax.env.protocol.link import HttpLink, WorkerRefusal, reading
from agentrl_jax.errors import ConfigError, EnvironmentFault

_FULL = "no workers available"  # how both controllers begin to say so
_MISSING = "does not exist"  # and that nobody serves a task yet
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0  # between two tries


class ControllerEnvironment(Environment):
  """All workers of a task, through their controller."""

  def __init__(
    self,
    *,
    controller: str,
    name: str,
    tasks: Mapping[str, str] | None = None,
    place_s: float = 240.0,
    step_s: float = 270.0,
    ready_s: float = 60.0,
    expert: str | None = None,
    expert_options: Mapping[str, Any] | None = None,
  ):
    """Connects to nothing yet.

    Args:
      controller: its URL, as http://host:5020/api.
      name: of the task that our workers announced (their `--name`, or else
        the environment's own), which know their splits.
      tasks: the task that serves each split, for AgentRL's workers, which know
        no splits: {"train": "dbbench-train", "test": "dbbench-std"}.
      place_s: how long a session waits for a place.
      step_s: how long it waits for the first report, and for each reply; a
        little more than the controller does.
      ready_s: how long controller and workers may take to come up.
      expert: the environment whose expert knows these tasks, as module:Class.
      expert_options: those that the workers were started with.

    Raises `ConfigError` for a wait that is none.
    """
    ClientDeadlines(place_s=place_s, start_timeout_s=step_s, step_s=step_s)
    if ready_s < 0:
      raise ConfigError(f"ready_s={ready_s} must not be below 0")
    self.name = name
    self._url = controller.rstrip("/")
    self._tasks = tasks
    self._place_s, self._step_s, self._ready_s = place_s, step_s, ready_s
    self._indices: dict[str, Sequence[int]] = {}
    self._expert, self._expert_options = expert, expert_options
    self.mistakes = find_class(expert).mistakes if expert else ()
    self._expert_environment: Environment | None = None

  def indices(self, split: str) -> Sequence[int]:
    """As the workers say. Blocks until there are some, for `ready_s` at most.

    Raises `ConfigError` if there is no such split or nobody serves it.
    """
    if split not in self._indices:
      self._indices[split] = self._find_indices(split)
    return self._indices[split]

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Waits for a place; a session that has not ended is cancelled on leaving.

    Raises `EnvironmentFault` if there is no place within `place_s`.
    """
    async with aiohttp.ClientSession() as http:
      link = HttpLink(http, self._url, whom="controller")
      session = await self._start(link, task, seed)
      try:
        yield session
      finally:
        if session.is_running:
          await session.cancel()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """As the environment that was named for it; without one, there is none."""
    if self._expert is None:
      return super().expert(task, seed=seed, mistakes=mistakes)
    if self._expert_environment is None:
      self._expert_environment = load_environment(
        self._expert, self._expert_options
      )
    known = self._expert_environment
    return known.expert(
      Task(known.name, task.split, task.index), seed=seed, mistakes=mistakes
    )

  async def close(self) -> None:
    """Closes the environment that experts came from."""
    if self._expert_environment is not None:
      await self._expert_environment.close()

  async def _start(
    self, link: HttpLink, task: Task, seed: int
  ) -> "_ControllerSession":
    """Starts a session; AgentRL's controller has no queue, so ask it again."""
    given_up_at = time.monotonic() + self._place_s
    backoff_s = _FIRST_PAUSE_S
    request = {**self._where(task.split), "index": task.index, "seed": seed}
    while True:
      wait_s = max(given_up_at - time.monotonic(), 0)
      try:
        body, headers = await link.request(
          "POST",
          "start_sample",
          json=request | {"wait_s": wait_s},
          deadline_s=wait_s + self._step_s,
        )
      except WorkerRefusal as refusal:
        may_come = _FULL in str(refusal) or _MISSING in str(refusal)
        if not may_come or time.monotonic() + backoff_s > given_up_at:
          raise
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _LONGEST_PAUSE_S)
      else:
        return _ControllerSession(link, headers, body, step_s=self._step_s)

  def _where(self, split: str) -> dict[str, str]:
    """What tells the controller which tasks are meant."""
    if self._tasks is None:
      return {"name": self.name, "split": split}
    if split not in self._tasks:
      raise ConfigError(
        f"fleet {self.name} has no split {split!r}; its tasks serve "
        f"{', '.join(self._tasks)}"
      )
    return {"name": self._tasks[split]}

  def _find_indices(self, split: str) -> Sequence[int]:
    where = self._where(split)
    if self._tasks is None:
      body = self._get("describe", where)
      with reading(f"controller {self._url}", "describe", body):
        return wire.indices_from_json(body["indices"])
    body = self._get("get_indices", where)
    with reading(f"controller {self._url}", "get_indices", body):
      return _playable(body)

  def _get(self, endpoint: str, query: Mapping[str, str]) -> Any:
    """Asks before there is an event loop, until there is somebody to ask."""
    url = f"{self._url}/{endpoint}?{urllib.parse.urlencode(query)}"
    given_up_at = time.monotonic() + self._ready_s
    backoff_s = _FIRST_PAUSE_S
    while True:
      try:
        with urllib.request.urlopen(url, timeout=self._step_s) as response:
          return json.load(response)
      except urllib.error.HTTPError as error:
        with error:
          reason = error.read().decode(errors="replace")[:1000]
        may_come = error.code == 400 and _MISSING in reason
      except (OSError, ValueError) as error:
        reason, may_come = repr(error), True
      if not may_come or time.monotonic() + backoff_s > given_up_at:
        raise ConfigError(
          f"controller {self._url} does not say what {dict(query)} has: "
          f"{reason}. See whether controller and workers run; workers that "
          "are not ours need tasks={split: task}"
        )
      time.sleep(backoff_s)
      backoff_s = min(2 * backoff_s, _LONGEST_PAUSE_S)


class _ControllerSession(Session):
  """One session; its id travels in a header."""

  def __init__(
    self,
    link: HttpLink,
    headers: Mapping[str, str],
    body: Any,
    *,
    step_s: float,
  ):
    self._link = link
    self._step_s = step_s
    with reading("controller " + link.url, "start_sample", body):
      self._id = str(int(headers[wire.SESSION_HEADER]))
      self._first = wire.step_from_json(body)
      self.tools: tuple[Tool, ...] = wire.tools_from_json(body)
    self.is_running = self._first.status is Status.RUNNING

  async def reset(self) -> Step:
    return self._first

  async def step(self, answer: Message) -> Step:
    body = await self._post(
      "interact",
      deadline_s=self._step_s,
      json={"messages": [message_to_json(answer)]},
    )
    with reading("controller " + self._link.url, "interact", body):
      step = wire.step_from_json(body)
      self.tools = wire.tools_from_json(body) or self.tools
    self.is_running = step.status is Status.RUNNING
    if step.status in wire.FAULTS:
      reason = body.get("error", "its worker's log says why")
      raise EnvironmentFault(
        f"session {self._id} ended with {step.status.value!r}: {reason}"
      )
    return step

  async def cancel(self) -> None:
    """Has the session freed."""
    with contextlib.suppress(WorkerRefusal):  # it has ended
      await self._post("cancel", deadline_s=ClientDeadlines().ask_s)

  async def _post(
    self, endpoint: str, *, deadline_s: float, **request: Any
  ) -> Any:
    headers = {wire.SESSION_HEADER: self._id}
    body, _ = await self._link.request(
      "POST", endpoint, deadline_s=deadline_s, headers=headers, **request
    )
    return body


def _playable(indices: Sequence[int | str]) -> Sequence[int]:
  """The numbers by which the controller knows a task's indices.

  Where all are text their positions are; the custom task has no index.
  """
  if all(isinstance(i, str) or i == CUSTOM for i in indices):
    return tuple(n for n, index in enumerate(indices) if index != CUSTOM)
  return tuple(i for i in indices if isinstance(i, int) and i != CUSTOM)
