"""Adapter of OpenEnv's servers to environments.

  c.environments.game = entry(
    "agentrl_jax.env.adapters.openenv:OpenEnv",
    options={"command": "uvicorn game.server.app:app --port {port}"},
  )

The server runs already (`url`), or the run starts and ends it (`command`, which
may be `docker run --rm -p 127.0.0.1:{port}:8000 IMAGE`). Each episode has a
session of its own. The action's JSON schema becomes a tool; an action of one
text is answered in text; a server of MCP tools shows its tools. All else is as
in `reset_step`: a task is a seed, which the server's `reset` must heed.

A socket that drops, an error of the server and a late reply are faults of their
episode. The session is OpenEnv's WebSocket, with three kinds of messages. The
package's own client is not used: it opens another session in place of one that
dropped, whose rewards belong to no task; it imports gradio; and its pins
exclude mcp 2.
"""

import asyncio
import contextlib
import json
import re
import shlex
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TextIO

import aiohttp

from agentrl_jax.data.records import Task, Tool
from agentrl_jax.env.adapters.executors import faults
from agentrl_jax.env.adapters.reset_step import Outcome, ResetStep
from agentrl_jax.env.adapters.servers.commands import (
  bounded,
  cut,
  found_program,
  last_line,
  text_of_result,
)
from agentrl_jax.env.interface import Session
from agentrl_jax.env.options import require_one_of, require_positive
from agentrl_jax.env.tools import require_readable
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.waits import Backoff

ANSWERS = ("auto", "text", "calls")
MAX_MESSAGE = 16 << 20  # bytes
_REQUEST_S = 10.0  # for one request while the server starts
_PAUSE_S = 0.1, 2.0  # between looks at it, first and longest
_LEAVE_S = 2.0  # for the server's goodbye
_CLOSE_S = 10.0  # for the end of its process
_HEARTBEAT_S = 20.0  # between pings of a session
_BASE = frozenset({"metadata"})  # of every action and observation


class OpenEnv(ResetStep):
  """Tasks of a server, by the seed of its `reset`.

  Args:
    url: of a server that runs, as http://127.0.0.1:8000.
    command: starts a server at {port}.
    reset: further arguments of the server's `reset`.
    show: the field of an observation that the policy reads, as "prompt"; "" is
      all of them but metadata.
    instructions: text above the first observation.
    answers: "text" where the action has one text; "calls"; "auto" is text
      where it can be.
    refusals: codes of the server's errors that are the policy's mistake, which
      it reads. VALIDATION_ERROR is an action that does not fit; add
      EXECUTION_ERROR for a server that raises on a wrong action.
    max_sessions: at once; others wait. A server has a bound of its own.
    max_observation_chars: of an observation, whose rest is cut.
    start_limit_s: timeout of the server's start.
    rules: those of `ResetStep`.
  """

  name = "openenv"
  needs_one_loop = True  # of the process and of the bound
  refusals = (ValueError,)

  def __init__(
    self,
    *,
    url: str = "",
    command: str = "",
    reset: Mapping[str, Any] | None = None,
    show: str = "",
    instructions: str = "",
    answers: str = "auto",
    refusals: Sequence[str] = ("VALIDATION_ERROR",),
    max_sessions: int = 8,
    max_observation_chars: int = 10_000,
    start_limit_s: float = 120.0,
    **rules: Any,
  ):
    super().__init__(**rules)
    require_one_of(ANSWERS, answers=answers)
    require_positive(
      max_sessions=max_sessions,
      max_observation_chars=max_observation_chars,
      start_limit_s=start_limit_s,
    )
    if bool(url) == bool(command) or command and "{port}" not in command:
      raise ConfigError(
        f"url={url!r} and command={command!r}: set one of them, the address of "
        "a server that runs, or a command that starts one at {port}"
      )
    self.reset_arguments, self.shown_field = dict(reset or {}), show
    self.instructions, self.codes = instructions, tuple(refusals)
    self.max_observation_chars = max_observation_chars
    self.server = _Server(url, command, start_limit_s)
    self._answers = answers
    self.text_field = ""  # of the action, where it is text
    self.has_mcp_tools = False
    self._is_known = False  # the server has come up once
    self._sessions = asyncio.Semaphore(max_sessions)
    self._starting = asyncio.Lock()

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session at the server, which starts with the first one."""
    async with self._sessions:
      await self._start()
      async with super().open(task, seed=seed) as session:
        yield session

  async def close(self) -> None:
    await self.server.close()

  async def make(self, seed: int) -> "_Episode":
    """Connects to the server."""
    del seed
    return await _Episode.connected(self)

  def begin(self, wrapped: "_Episode", seed: int) -> Any:
    return wrapped.reset(seed)

  def action(self, name: str, arguments: Mapping[str, Any]) -> Any:
    if self.has_mcp_tools:
      return {"type": "call_tool", "tool_name": name, "arguments": arguments}
    return dict(arguments)

  def text_action(self, text: str) -> Any:
    return {self.text_field: text}

  def show(self, wrapped: "_Episode", observation: Mapping[str, Any]) -> str:
    return cut(self._shown(observation), self.max_observation_chars)

  def _shown(self, observation: Mapping[str, Any]) -> str:
    if self.shown_field:
      if self.shown_field not in observation:
        raise KeyError(
          f"show={self.shown_field!r}, and the observation has "
          f"{', '.join(observation)}"
        )
      return _text(observation[self.shown_field])
    if self.has_mcp_tools and "tool_name" in observation:
      error, result = observation.get("error"), observation.get("result")
      if error:
        return f"Error: {error['message']}"
      if isinstance(result, Mapping) and "content" in result:
        return text_of_result(result)
      return _text(result)
    fields = {k: v for k, v in observation.items() if k not in _BASE}
    if not fields:
      return _text(observation.get("metadata", {}))
    return (
      _text(next(iter(fields.values()))) if len(fields) == 1 else _text(fields)
    )

  async def _start(self) -> None:
    """Starts the server where it does not run, and reads its tools once."""
    async with self._starting:
      try:
        await self.server.start()
        if not self._is_known:
          await self._read_tools()
      except EnvironmentFault as error:
        if self._is_known:
          raise
        raise ConfigError(str(error)) from error
      self._is_known = True

  async def _read_tools(self) -> None:
    schema = await self.server.action_schema()
    properties = schema.get("properties", {})
    names = [name for name in properties if name not in _BASE]
    self.has_mcp_tools = not names or schema.get("title") == "CallToolAction"
    texts = [name for name in names if properties[name].get("type") == "string"]
    is_text = len(names) == 1 and names == texts
    if self._answers == "text" and not is_text:
      raise ConfigError(
        "answers='text', and an action of the server is no single text: it has "
        f"{', '.join(names) or 'tools'}; set answers='calls'"
      )
    if self.has_mcp_tools:
      self.tools = await self._listed_tools()
    elif is_text and self._answers != "calls":
      self.tools, self.text_field = (), names[0]
    else:
      self.tools = (_tool_of(schema),)
    require_readable(self.tools)

  async def _listed_tools(self) -> tuple[Tool, ...]:
    episode = await _Episode.connected(self)
    try:
      listed = await episode.list_tools()
    finally:
      await episode.close()
    if not listed:
      raise ConfigError(f"{self.server} has neither an action nor a tool")
    return tuple(
      Tool(tool["name"], tool["description"], tool["input_schema"])
      for tool in listed
    )


def _text(value: Any) -> str:
  """Formats a value: text as it is, anything else as JSON."""
  return (
    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
  )


def _tool_of(schema: Mapping[str, Any]) -> Tool:
  """Returns the tool whose arguments are an action's fields."""
  fields = {k: v for k, v in schema["properties"].items() if k not in _BASE}
  description = schema.get("description") or "Acts in the environment."
  parameters = {k: v for k, v in schema.items() if k != "description"}
  return Tool("act", description, {**parameters, "properties": fields})


class _ServerError(Exception):
  """An error that the server reports, with OpenEnv's code of it."""

  def __init__(self, code: str, message: str):
    super().__init__(message)
    self.code = code


class _Episode:
  """A session at the server, as `ResetStep` plays it."""

  def __init__(self, environment: OpenEnv):
    self._environment = environment
    self._http = aiohttp.ClientSession()
    self._socket: aiohttp.ClientWebSocketResponse | None = None
    self._was_rewarded = False

  @classmethod
  async def connected(cls, environment: OpenEnv) -> "_Episode":
    """Opens a session. Raises `EnvironmentFault`."""
    episode = cls(environment)
    try:
      await episode._connect()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
      await episode.close()
      raise EnvironmentFault(
        f"{environment.server} takes no session: {error}"
      ) from error
    return episode

  async def list_tools(self) -> Sequence[Mapping[str, Any]]:
    """Returns the server's MCP tools. Raises `EnvironmentFault`."""
    with faults(f"{self._environment.server} lists no tools"):
      data = await self._ask("step", {"type": "list_tools"})
      tools: Sequence[Mapping[str, Any]] = data["observation"]["tools"]
    return tools

  async def reset(self, seed: int) -> Any:
    """Begins; waits while the server has as many sessions as it takes."""
    arguments = {**self._environment.reset_arguments, "seed": seed}
    limit_s = self._environment.rules.step_limit_s
    backoff, ends_at = Backoff(*_PAUSE_S), time.monotonic() + limit_s
    while True:
      try:
        return (await self._ask("reset", arguments))["observation"]
      except _ServerError as error:
        if error.code != "CAPACITY_REACHED" or not backoff.fits(ends_at):
          raise
      await asyncio.sleep(backoff.next_s())
      await self._connect()

  async def step(self, action: Mapping[str, Any]) -> Outcome:
    """Plays an action; a refused one raises `ValueError`."""
    try:
      data = await self._ask("step", action)
    except _ServerError as error:
      if error.code not in self._environment.codes:
        raise
      raise ValueError(str(error)) from error
    reward, is_over = data.get("reward"), bool(data.get("done"))
    self._was_rewarded |= reward is not None
    if is_over and not self._was_rewarded:
      raise EnvironmentFault(
        f"{self._environment.server} ended an episode without a reward"
      )
    reward = 0.0 if reward is None else float(reward)
    return Outcome(data["observation"], reward, is_over)

  async def close(self) -> None:
    """Ends the session."""
    try:
      if self._socket is not None:
        await self._socket.close()
    finally:
      await self._http.close()

  async def _connect(self) -> None:
    if self._socket is not None:
      await self._socket.close()
    self._socket = await self._http.ws_connect(
      f"{self._environment.server.url}/ws",
      max_msg_size=MAX_MESSAGE,
      heartbeat=_HEARTBEAT_S,
      timeout=aiohttp.ClientWSTimeout(ws_close=_LEAVE_S),
    )

  async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the data of the server's answer.

    A socket that dropped is not opened again: the server's state went with it.
    """
    assert self._socket is not None
    await self._socket.send_json({"type": kind, "data": data})
    message = await self._socket.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
      raise ConnectionError(
        f"the socket dropped ({message.type.name} {message.data})"
      )
    answer = json.loads(message.data)
    body: dict[str, Any] = answer["data"]
    if answer["type"] == "error":
      raise _ServerError(str(body.get("code")), str(body.get("message"))[:2000])
    return body


class _Server:
  """A server that runs, or that `start` starts."""

  def __init__(self, url: str, command: str, start_limit_s: float):
    if url and not re.match(r"https?://[^/]", url):
      raise ConfigError(f"url={url!r} is no address, as http://127.0.0.1:8000")
    self.url = url.rstrip("/")
    self._argv = found_program(command) if command else []
    self._start_limit_s = start_limit_s
    self._process: asyncio.subprocess.Process | None = None
    self._said: TextIO | None = None

  def __str__(self) -> str:
    return f"the OpenEnv server {self.url or shlex.join(self._argv)}"

  async def start(self) -> None:
    """Starts the process if none runs, and waits until it answers."""
    if not self._argv or self._is_running():
      return
    await self.close()
    with socket.socket() as probe:
      probe.bind(("127.0.0.1", 0))
      port = str(probe.getsockname()[1])
    self.url = f"http://127.0.0.1:{port}"
    self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until `close`
    program, arguments = bounded(self._argv, max_line=0, port=port)
    self._process = await asyncio.create_subprocess_exec(
      program,
      *arguments,
      stdin=asyncio.subprocess.PIPE,
      stdout=asyncio.subprocess.DEVNULL,
      stderr=self._said,
    )
    await self.action_schema()

  async def action_schema(self) -> Mapping[str, Any]:
    """Returns the JSON schema of an action; waits until the server has one."""
    backoff = Backoff(*_PAUSE_S)
    ends_at = time.monotonic() + self._start_limit_s
    while True:
      try:
        return await self._ask()
      except (aiohttp.ClientConnectionError, TimeoutError) as error:
        if self._argv and not self._is_running():
          raise EnvironmentFault(f"{self} has ended{await self._last()}") from (
            error
          )
        if not self._argv or not backoff.fits(ends_at):
          raise EnvironmentFault(
            f"{self} does not answer ({type(error).__name__}: {error})"
            f"{await self._last()}"
          ) from error
      await asyncio.sleep(backoff.next_s())

  async def _ask(self) -> Mapping[str, Any]:
    timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
    async with (
      aiohttp.ClientSession(timeout=timeout) as http,
      http.get(f"{self.url}/schema") as response,
    ):
      body = None
      with contextlib.suppress(aiohttp.ContentTypeError, ValueError):
        body = await response.json()
    if not isinstance(body, Mapping) or not isinstance(
      body.get("action"), Mapping
    ):
      raise EnvironmentFault(
        f"{self} has no schema of actions at /schema (status "
        f"{response.status}): is it a server of OpenEnv 0.2 or later?"
      )
    action: Mapping[str, Any] = body["action"]
    return action

  async def close(self) -> None:
    """Ends the process."""
    process, self._process = self._process, None
    if process is not None and process.stdin is not None:
      process.stdin.close()
      try:
        async with asyncio.timeout(_CLOSE_S):
          await process.wait()
      except TimeoutError:
        process.kill()
        await process.wait()
    if self._said is not None:
      self._said.close()
      self._said = None

  def _is_running(self) -> bool:
    return self._process is not None and self._process.returncode is None

  async def _last(self) -> str:
    """Returns the last line that an ended process wrote."""
    if self._process is None or self._said is None:
      return ""
    if self._process.stdin is not None:
      self._process.stdin.close()
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(_CLOSE_S):
        await self._process.wait()
    self._said.seek(0)
    return last_line(self._said.read())
