"""Adapter of OpenEnv's servers to environments.

  c.environments.game = entry(
    "agentrl_jax.env.adapters.openenv:OpenEnv",
    options={"command": "uvicorn game.server.app:app --port {port}"},
  )

The server runs already (`url`), or the run starts and ends it: as a process
(`command`) or in Docker (`image`). Each episode has a session of its own. The
action's JSON schema becomes a tool; an action of one text is answered in text;
a server of MCP tools shows its tools. All else is as in `reset_step`: a task is
a seed, which the server's `reset` must heed.

A socket that drops, an error of the server and a late reply are faults of their
episode. The session is OpenEnv's WebSocket, with three kinds of messages. The
package's own client is not used: it opens another session in place of one that
dropped, whose rewards belong to no task; it imports gradio; and its pins
exclude mcp 2.
"""

import asyncio
import contextlib
import json
import logging
import re
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TextIO

import aiohttp

from agentrl_jax.bearer_token import bearer, read_key_of_url
from agentrl_jax.data.records import Task, Tool
from agentrl_jax.env.adapters.executors import faults
from agentrl_jax.env.adapters.reset_step import Outcome, ResetStep
from agentrl_jax.env.adapters.servers.commands import (
  bounded,
  cut,
  found_program,
  last_words,
  text_of_result,
)
from agentrl_jax.env.interface import Session
from agentrl_jax.env.options import require_positive
from agentrl_jax.env.tools import require_names_apart
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.waits import Backoff

_log = logging.getLogger(__name__)

MAX_MESSAGE = 16 << 20  # bytes
_REQUEST_S = 10.0  # for one request while the server starts
_PAUSE_S = 0.1, 2.0  # between looks at it, first and longest
_LEAVE_S = 2.0  # for the server's goodbye
_CLOSE_S = 12.0  # for the end of its process, and of its container
_HEARTBEAT_S = 20.0  # between pings of a session
_BASE = frozenset({"metadata"})  # of every action and observation
_DOCKER = (
  "docker run --rm --init --name {name} --publish 127.0.0.1:{port}:8000 "
)


class _ServerError(Exception):
  """An error that the server reports, with OpenEnv's code of it."""

  def __init__(self, code: str, message: str):
    super().__init__(message)
    self.code = code


class _Refusal(_ServerError):
  """An error that is the policy's mistake."""


class OpenEnv(ResetStep):
  """Tasks of a server, by the seed of its `reset`.

  Args:
    url: of a server that runs, as http://127.0.0.1:8000.
    token_file: the key of `url`: a file, or env:NAME.
    command: starts a server at {port}.
    image: of Docker, whose server is at port 8000. Options of `docker run` may
      stand before it, as in "--env TEXTARENA_ENV_ID=Wordle-v0 textarena-env".
    reset: further arguments of the server's `reset`.
    show: the field of an observation that the policy reads, as "prompt"; "" is
      all of them but metadata.
    state: names of numbers of the server's state, which after the last action
      are the episode's metrics.
    tool: name of the tool that plays an action, by default act; without one
      an action of one text is answered in text.
    refusals: codes of the server's errors that are the policy's mistake, which
      it reads. VALIDATION_ERROR is an action that does not fit; add
      EXECUTION_ERROR for a server that raises on a wrong action.
    max_sessions: at once; others wait. A server has a bound of its own.
    max_observation_chars: of an observation, whose rest is cut.
    start_limit_s: timeout of the server's start.
    rules: options of `ResetStep`.
  """

  name = "openenv"
  needs_one_loop = True  # of the process and of the bound
  refusals = (_Refusal,)

  def __init__(
    self,
    *,
    url: str = "",
    token_file: str = "",
    command: str = "",
    image: str = "",
    reset: Mapping[str, Any] | None = None,
    show: str = "",
    state: Sequence[str] = (),
    tool: str = "",
    refusals: Sequence[str] = ("VALIDATION_ERROR",),
    max_sessions: int = 8,
    max_observation_chars: int = 10_000,
    start_limit_s: float = 120.0,
    **rules: Any,
  ):
    super().__init__(**rules)
    require_positive(
      max_sessions=max_sessions,
      max_observation_chars=max_observation_chars,
      start_limit_s=start_limit_s,
    )
    if (bool(url), bool(command), bool(image)).count(True) != 1:
      raise ConfigError(
        f"url={url!r}, command={command!r} and image={image!r}: set one of "
        "them, the address of a server that runs, a command that starts one "
        "at {port}, or an image of Docker"
      )
    self.reset_arguments, self.shown_field = dict(reset or {}), show
    self.state_names, self.codes = tuple(state), tuple(refusals)
    self.max_observation_chars = max_observation_chars
    headers = bearer(read_key_of_url(token_file, url))
    self.server = _Server(url, headers, command, image, start_limit_s)
    self._tool, self._start_limit_s = tool, start_limit_s
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
      return _text(_named(observation, self.shown_field, "observation"))
    if self.has_mcp_tools and "tool_name" in observation:
      error, result = observation.get("error"), observation.get("result")
      if error:
        return f"Error: {error['message']}"
      if isinstance(result, Mapping) and "content" in result:
        return text_of_result(result)
      return _text(result)
    fields = {k: v for k, v in observation.items() if k not in _BASE}
    if len(fields) == 1:
      return _text(*fields.values())
    return _text(fields or observation.get("metadata", {}))

  async def _start(self) -> None:
    """Starts the server where it does not run, and reads its tools once."""
    async with self._starting:
      try:
        await self.server.start()
        if self._is_known:
          return
        async with asyncio.timeout(self._start_limit_s):
          await self._read_tools()
          await self._compare_beginnings()
      except (EnvironmentFault, TimeoutError) as error:
        if self._is_known:
          raise
        late = f"{self.server} has begun no session within start_limit_s"
        raise ConfigError(
          str(error) or f"{late}={self._start_limit_s:g} s"
        ) from error
      self._is_known = True

  async def _read_tools(self) -> None:
    schema = await self.server.action_schema()
    properties = schema.get("properties", {})
    names = [name for name in properties if name not in _BASE]
    self.has_mcp_tools = not names or schema.get("title") == "CallToolAction"
    is_text = len(names) == 1 and properties[names[0]].get("type") == "string"
    if self.has_mcp_tools:
      async with contextlib.aclosing(await self.make(0)) as episode:
        self.tools = await episode.list_tools()
    elif is_text and not self._tool:
      self.tools, self.text_field = (), names[0]
    else:
      self.tools = (_tool_of(schema, self._tool or "act"),)
    require_names_apart(self.tools)

  async def _compare_beginnings(self) -> None:
    """Warns of a server whose `reset` does not heed the seed."""
    begun = []
    for _ in range(2):
      async with contextlib.aclosing(await self.make(0)) as episode:
        with faults(f"{self.server} does not begin"):
          begun.append(await episode.reset(0))
          with contextlib.suppress(_ServerError):  # a state that is no JSON
            begun[-1] |= await episode.state()
    first, second = begun
    differ = {k for k in first if first[k] != second.get(k)}
    if differ := differ - {"episode_id"}:  # which the server draws
      _log.warning(
        "%s begins two sessions of one seed with different values of %s; if "
        "these are of the problem, attempts at a task have different problems, "
        "and their rewards cannot be compared",
        self.server,
        ", ".join(sorted(differ)),
      )


def _text(value: Any) -> str:
  if isinstance(value, str):
    return value
  return json.dumps(value, ensure_ascii=False)


def _named(values: Mapping[str, Any], name: str, kind: str) -> Any:
  if name not in values:
    raise KeyError(f"the {kind} has {', '.join(values)}, and no {name!r}")
  return values[name]


def _tool_of(schema: Mapping[str, Any], name: str) -> Tool:
  """Returns the tool whose arguments are an action's fields."""
  fields = {k: v for k, v in schema["properties"].items() if k not in _BASE}
  description = schema.get("description") or "Acts in the environment."
  parameters = {k: v for k, v in schema.items() if k != "description"}
  return Tool(name, description, {**parameters, "properties": fields})


class _Episode:
  """A session at the server, as `ResetStep` plays it."""

  def __init__(self, environment: OpenEnv):
    self._environment = environment
    self._http = aiohttp.ClientSession(headers=environment.server.headers)
    self._socket: _Socket | None = None
    self._was_rewarded = False

  @classmethod
  async def connected(cls, environment: OpenEnv) -> "_Episode":
    """Opens a session. Raises `EnvironmentFault`."""
    episode = cls(environment)
    async with contextlib.AsyncExitStack() as stack:
      stack.push_async_callback(episode.aclose)
      with faults(f"{environment.server} takes no session"):
        await episode._connect()
      stack.pop_all()
    return episode

  async def list_tools(self) -> tuple[Tool, ...]:
    """Returns the server's MCP tools. Raises `EnvironmentFault`."""
    server = self._environment.server
    with faults(f"{server} lists no tools"):
      data = await self._ask("step", {"type": "list_tools"})
      listed = data["observation"]["tools"]
    if not listed:
      raise ConfigError(f"{server} has neither an action nor a tool")
    return tuple(
      Tool(tool["name"], tool["description"], tool["input_schema"])
      for tool in listed
    )

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
    """Plays an action. Raises `_Refusal`."""
    try:
      data = await self._ask("step", action)
    except _ServerError as error:
      if error.code not in self._environment.codes:
        raise
      raise _Refusal(error.code, str(error)) from error
    reward, is_over = data.get("reward"), bool(data.get("done"))
    self._was_rewarded |= reward is not None
    if is_over and not self._was_rewarded:
      raise EnvironmentFault(
        f"{self._environment.server} ended an episode without a reward"
      )
    names = self._environment.state_names
    state = await self.state() if names else {}
    return Outcome(
      data["observation"],
      0.0 if reward is None else reward,
      is_over,
      metrics={name: _named(state, name, "state") for name in names},
    )

  async def state(self) -> dict[str, Any]:
    """Returns the server's state of the episode."""
    return await self._ask("state")

  async def aclose(self) -> None:
    """Ends the session."""
    try:
      if self._socket is not None:
        await self._socket.close()
    finally:
      await self._http.close()

  close = aclose

  async def _connect(self) -> None:
    if self._socket is not None:
      await self._socket.close()
    self._socket = _Socket(
      await self._http.ws_connect(
        f"{self._environment.server.url}/ws",
        max_msg_size=MAX_MESSAGE,
        heartbeat=_HEARTBEAT_S,
        timeout=aiohttp.ClientWSTimeout(ws_close=_LEAVE_S),
      )
    )

  async def _ask(
    self, kind: str, data: Mapping[str, Any] | None = None
  ) -> dict[str, Any]:
    """Returns the data of the server's answer.

    A socket that dropped is not opened again: the server's state went with it.
    """
    assert self._socket is not None
    request = {"type": kind} if data is None else {"type": kind, "data": data}
    answer = await self._socket.ask(request)
    body: dict[str, Any] = answer["data"]
    if answer["type"] == "error":
      raise _ServerError(str(body.get("code")), str(body.get("message"))[:2000])
    return body


class _Socket:
  """A session's socket, which a task reads until it ends.

  A ping is answered, and a pong seen, only while somebody reads. A policy may
  think for minutes between two calls, and each side drops a peer that is
  silent for longer than its own limit.
  """

  def __init__(self, socket: aiohttp.ClientWebSocketResponse):
    self._socket = socket
    self._messages: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue(2)
    self._reader = asyncio.create_task(self._read(), name="openenv-session")

  async def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the server's answer.

    What came before the question is the answer only if it is an error, as that
    of a server that is full.
    """
    was_silent = self._messages.empty()
    if was_silent:
      await self._socket.send_json(request)
    message = await self._messages.get()
    if message.type is not aiohttp.WSMsgType.TEXT:
      said = [message.type.name, message.data, message.extra]
      reason = " ".join(str(word) for word in said if word is not None)
      raise ConnectionError(f"the socket dropped ({cut(reason, 200)})")
    answer: Mapping[str, Any] = json.loads(message.data)
    if was_silent or answer["type"] == "error":
      return answer
    raise ConnectionError(
      f"it sent what nobody asked for: {cut(message.data, 200)}"
    )

  async def close(self) -> None:
    """Ends the session."""
    try:
      await self._socket.close()  # which the reader notices
    finally:
      self._reader.cancel()
      await asyncio.gather(self._reader, return_exceptions=True)

  async def _read(self) -> None:
    """Reads until the socket drops."""
    is_open = True
    while is_open:
      message = await self._socket.receive()
      await self._messages.put(message)
      is_open = message.type is aiohttp.WSMsgType.TEXT


class _Server:
  """A server that runs, or that `start` starts."""

  def __init__(
    self,
    url: str,
    headers: Mapping[str, str],
    command: str,
    image: str,
    start_limit_s: float,
  ):
    self.headers = headers
    if url and not re.match(r"https?://[^/]", url):
      raise ConfigError(f"url={url!r} is no address, as http://127.0.0.1:8000")
    if command and "{port}" not in command:
      raise ConfigError(f"command={command!r} must start a server at {{port}}")
    self.url = url.rstrip("/")
    command = _DOCKER + image if image else command
    self._argv = found_program(command) if command else []
    # A client of Docker that ends may leave its container.
    self._last = "docker rm --force {name}" if image else ""
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
    program, arguments = bounded(
      self._argv,
      max_line=0,
      last=self._last,
      port=port,
      name=f"agentrl-openenv-{secrets.token_hex(4)}",
    )
    self._process = await asyncio.create_subprocess_exec(
      program,
      *arguments,
      stdin=asyncio.subprocess.PIPE,
      stdout=asyncio.subprocess.DEVNULL,
      stderr=self._said,
      start_new_session=True,  # the terminal's SIGINT is the run's to heed
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
          problem = "has ended"
        elif not self._argv or not backoff.fits(ends_at):
          problem = f"does not answer ({type(error).__name__}: {error})"
        else:
          await asyncio.sleep(backoff.next_s())
          continue
        raise EnvironmentFault(
          f"{self} {problem}{last_words(await self.close())}"
        ) from error

  async def _ask(self) -> Mapping[str, Any]:
    timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
    async with (
      aiohttp.ClientSession(headers=self.headers, timeout=timeout) as http,
      http.get(f"{self.url}/schema") as response,
    ):
      body = None
      with contextlib.suppress(aiohttp.ContentTypeError, ValueError):
        body = await response.json()
    if response.status in (401, 403):
      raise EnvironmentFault(
        f"{self} refuses the key (status {response.status}): token_file names "
        "the file that has it"
      )
    action = body.get("action") if isinstance(body, Mapping) else None
    if not isinstance(action, Mapping):
      raise EnvironmentFault(
        f"{self} has no schema of actions at /schema (status "
        f"{response.status}): is it a server of OpenEnv 0.2 or later?"
      )
    return action

  async def close(self) -> str:
    """Ends the process; returns the last that it wrote."""
    process, self._process = self._process, None
    said, self._said = self._said, None
    if process is None or process.stdin is None or said is None:
      return ""
    process.stdin.close()
    try:
      async with asyncio.timeout(_CLOSE_S):
        await process.wait()
    except TimeoutError:
      process.kill()
      await process.wait()
    with said:
      said.seek(0)
      return said.read()

  def _is_running(self) -> bool:
    return self._process is not None and self._process.returncode is None
