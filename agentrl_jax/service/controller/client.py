"""Environment that is played on the workers of a controller.

  ControllerEnvironment(controller="http://127.0.0.1:5020/api", name="dbbench")

A config names it like any environment:
`agentrl_jax.service.controller.client:ControllerEnvironment`, with these
arguments as its options. It uses AgentRL's controller API, so the controller
and the workers may be AgentRL's own. Sessions beyond the workers' capacity wait
at the controller.

Gold solutions are not sent. Where an expert is needed, an environment like the
workers' own is made in this process, for the expert alone.
"""

import asyncio
import contextlib
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from agentrl_jax import tracing
from agentrl_jax.bearer_token import bearer, read_token
from agentrl_jax.data.records import (
  Message,
  Status,
  Task,
  Tool,
  message_to_json,
)
from agentrl_jax.env.interface import Environment, Expert, Session, Step
from agentrl_jax.env.loading import find_class, load_environment
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.controller.registry import CUSTOM
from agentrl_jax.service.protocol import wire
from agentrl_jax.service.protocol.client import ClientDeadlines
from agentrl_jax.service.protocol.link import (
  HttpLink,
  WorkerLost,
  WorkerRefusal,
  reading,
)
from agentrl_jax.service.protocol.shares import Shares
from agentrl_jax.waits import Backoff

# Texts in the refusals of both controllers.
_FULL = "no workers available"
_MISSING = "does not exist"  # no worker serves the task yet
_UNKNOWN = "not found"  # the session
_BACKOFF_S = 0.1, 2.0  # the first, and the longest
_SPILL_S = 10.0  # at a controller without a place, before the next is asked


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
    reattach_s: float = 120.0,
    token_file: str = "",
    expert: str | None = None,
    expert_options: Mapping[str, Any] | None = None,
  ):
    """Opens no connection yet.

    Args:
      controller: its URL, as http://host:5020/api; of several controllers with
        workers of their own, separated by commas. Tasks are shared among them
        by hash; while one is away or has no workers, the others take its share.
      name: the task that our workers announced: their `--name`, or else the
        environment's own name. They know their splits.
      tasks: the task that serves each split, for AgentRL's workers, which know
        no splits: {"train": "dbbench-train", "test": "dbbench-std"}.
      place_s: timeout of a session's wait for a place.
      step_s: timeout of the first report, and of each reply; a little more than
        the controller's own.
      ready_s: timeout of the start of controller and workers.
      reattach_s: timeout of a controller that died to be back. Our workers keep
        their sessions meanwhile, and an episode goes on as if nothing had been.
      token_file: a file with the controller's token of clients, or env:NAME.
      expert: the environment whose expert knows these tasks, as module:Class.
      expert_options: the options that the workers were started with.

    Raises `ConfigError` for a timeout out of range, and for a token that cannot
    be read.
    """
    ClientDeadlines(place_s=place_s, start_timeout_s=step_s, step_s=step_s)
    for key, value in (("ready_s", ready_s), ("reattach_s", reattach_s)):
      if not value >= 0:
        raise ConfigError(f"{key}={value} must not be below 0")
    self.name = name
    self._shares = Shares(_addresses(controller))
    self._headers = bearer(read_token(token_file, "token_file="))
    self._tasks = tasks
    self._place_s, self._step_s, self._ready_s = place_s, step_s, ready_s
    self._reattach_s = reattach_s
    self._indices: dict[str, Sequence[int]] = {}
    self._expert, self._expert_options = expert, expert_options
    self.mistakes = find_class(expert).mistakes if expert else ()
    self._expert_environment: Environment | None = None

  def indices(self, split: str) -> Sequence[int]:
    """Asks the workers. Blocks for `ready_s` at most, until there are some.

    Raises `ConfigError` for an unknown split, or one that no worker serves.
    """
    if split not in self._indices:
      self._indices[split] = self._find_indices(split)
    return self._indices[split]

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Waits for a place; cancels a session that has not ended by the exit.

    Raises `EnvironmentFault` if no place is free within `place_s`.
    """
    async with aiohttp.ClientSession(headers=self._headers) as http:
      session = await self._start(http, task, seed)
      try:
        yield session
      finally:
        if session.is_running:
          await session.cancel()

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Returns the expert of the environment that `expert` names."""
    if self._expert is None:
      return super().expert(task, seed=seed, mistakes=mistakes)
    if self._expert_environment is None:
      self._expert_environment = load_environment(
        self._expert, self._expert_options
      )
    environment = self._expert_environment
    return environment.expert(
      Task(environment.name, task.split, task.index),
      seed=seed,
      mistakes=mistakes,
    )

  async def close(self) -> None:
    """Closes the environment of the experts."""
    if self._expert_environment is not None:
      await self._expert_environment.close()

  async def _start(
    self, http: aiohttp.ClientSession, task: Task, seed: int
  ) -> "_ControllerSession":
    """Starts a session; retries, because AgentRL's controller has no queue.

    With several controllers, the first one that has a place within `_SPILL_S`
    gets the session.
    """
    key, num_refused = f"{task.name}/{task.split}/{task.index}", 0
    longest_s = self._place_s if self._shares.is_one else _SPILL_S
    ends_at = time.monotonic() + self._place_s
    lost_until = math.inf  # when a controller that is away is given up
    backoff = Backoff(*_BACKOFF_S)
    request = {
      **self._task_fields(task.split),
      "index": task.index,
      "seed": seed,
    }
    while True:
      wait_s = max(min(ends_at - time.monotonic(), longest_s), 0)
      address = self._shares.choose(key, num_refused)
      link = HttpLink(http, address, whom="controller")
      try:
        body, headers = await link.request(
          "POST",
          "start_sample",
          json=request | {"wait_s": wait_s},
          deadline_s=wait_s + self._step_s,
        )
      except WorkerRefusal as refusal:
        is_temporary = _FULL in str(refusal) or _MISSING in str(refusal)
        if not is_temporary or not backoff.fits(ends_at):
          raise
        lost_until = math.inf
        num_refused += 1
      except WorkerLost:
        self._shares.lose(address)
        # A session that was begun without our knowledge expires.
        lost_until = min(
          lost_until, ends_at, time.monotonic() + self._reattach_s
        )
        if not backoff.fits(lost_until):
          raise
      else:
        self._shares.find(address)
        return _ControllerSession(
          link, headers, body, step_s=self._step_s, reattach_s=self._reattach_s
        )
      await asyncio.sleep(backoff.next_s())

  def _task_fields(self, split: str) -> dict[str, str]:
    """Returns the request fields that name the split's tasks."""
    if self._tasks is None:
      return {"name": self.name, "split": split}
    if split not in self._tasks:
      raise ConfigError(
        f"environment {self.name} has no split {split!r}; its tasks serve "
        f"{', '.join(self._tasks)}"
      )
    return {"name": self._tasks[split]}

  @property
  def _whom(self) -> str:
    return f"controller {', '.join(self._shares.addresses)}"

  def _find_indices(self, split: str) -> Sequence[int]:
    fields = self._task_fields(split)
    if self._tasks is None:
      body = self._get("describe", fields)
      with reading(self._whom, "describe", body):
        return wire.indices_from_json(body["indices"])
    body = self._get("get_indices", fields)
    with reading(self._whom, "get_indices", body):
      return _playable(body)

  def _get(self, endpoint: str, query: Mapping[str, str]) -> Any:
    """Sends a blocking GET, and retries until the controller can answer."""
    ends_at = time.monotonic() + self._ready_s
    backoff = Backoff(*_BACKOFF_S)
    while True:
      address = self._shares.choose(endpoint)
      request = urllib.request.Request(
        f"{address}/{endpoint}?{urllib.parse.urlencode(query)}",
        headers=dict(self._headers),
      )
      try:
        with urllib.request.urlopen(request, timeout=self._step_s) as response:
          return json.load(response)
      except urllib.error.HTTPError as error:
        with error:
          reason = error.read().decode(errors="replace")[:1000]
        is_temporary = error.code == 400 and _MISSING in reason
      except (OSError, ValueError) as error:
        reason, is_temporary = repr(error), True
      if not is_temporary or not backoff.fits(ends_at):
        raise ConfigError(
          f"{self._whom} does not list the tasks of {dict(query)}: "
          f"{reason}. See whether controller and workers run; workers that "
          "are not ours need tasks={split: task}"
        )
      self._shares.lose(address)
      time.sleep(backoff.next_s())


class _ControllerSession(Session):
  """One session; its id is sent in a header."""

  def __init__(
    self,
    link: HttpLink,
    headers: Mapping[str, str],
    body: Any,
    *,
    step_s: float,
    reattach_s: float,
  ):
    self._link = link
    self._step_s, self._reattach_s = step_s, reattach_s
    self._turn = 0
    with reading("controller " + link.url, "start_sample", body):
      self._id = str(int(headers[wire.SESSION_HEADER]))
      tracing.note({"agentrl.session.id": self._id})
      self._first = wire.step_from_json(body)
      self.tools: tuple[Tool, ...] = wire.tools_from_json(body)
      self._plays_once = body.get(wire.PLAYS_ONCE) is True
    self.is_running = self._first.status is Status.RUNNING

  async def reset(self) -> Step:
    return self._first

  async def step(self, answer: Message) -> Step:
    body = await self._interact([message_to_json(answer)])
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
    """Cancels the session."""
    with contextlib.suppress(WorkerRefusal):  # the session has ended
      await self._post("cancel", deadline_s=ClientDeadlines().ask_s)

  async def _interact(self, messages: Sequence[Any]) -> Any:
    """Plays a turn; asks again while the controller is away.

    A worker that plays a turn twice is not asked again.
    """
    self._turn += 1
    request: dict[str, Any] = {"messages": messages}
    if self._plays_once:
      request["turn"] = self._turn
    given_up_at = math.inf  # until the controller was lost
    backoff = Backoff(*_BACKOFF_S)
    while True:
      try:
        return await self._post(
          "interact", deadline_s=self._step_s, json=request
        )
      except WorkerLost:
        if not self._plays_once:
          raise
        given_up_at = min(given_up_at, time.monotonic() + self._reattach_s)
        if not backoff.fits(given_up_at):
          raise
      except WorkerRefusal as refusal:
        # The next controller may not have heard of the session's worker yet.
        is_back = given_up_at < math.inf and _UNKNOWN in str(refusal)
        if not is_back or not backoff.fits(given_up_at):
          raise
      await asyncio.sleep(backoff.next_s())

  async def _post(
    self, endpoint: str, *, deadline_s: float, **request: Any
  ) -> Any:
    headers = {wire.SESSION_HEADER: self._id}
    body, _ = await self._link.request(
      "POST", endpoint, deadline_s=deadline_s, headers=headers, **request
    )
    return body


def _addresses(controller: str) -> list[str]:
  addresses = [word.strip().rstrip("/") for word in controller.split(",")]
  if not all(addresses) or len(set(addresses)) < len(addresses):
    raise ConfigError(
      f"controller={controller!r} must be a URL, as http://host:5020/api, or "
      "several different ones, separated by commas"
    )
  return addresses


def _playable(indices: Sequence[int | str]) -> Sequence[int]:
  """Returns the numbers that the controller accepts as a task's indices.

  These are positions where all indices are text; the custom task has none.
  """
  if all(isinstance(i, str) or i == CUSTOM for i in indices):
    return tuple(n for n, index in enumerate(indices) if index != CUSTOM)
  return tuple(i for i in indices if isinstance(i, int) and i != CUSTOM)
