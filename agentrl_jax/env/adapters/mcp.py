"""Tools of an MCP server as an environment: questions of files, and a reward.

  c.environments.clock = entry(
    "agentrl_jax.env.adapters.mcp:MCP",
    options={
      "command": "mcp-server-time",
      "source": "train=train.jsonl,test=test.jsonl",
      "reward": "my_module:is_right",
    },
  )

Each episode has a session with a server of its own: a process that talks by
standard input and output (`command`), or a session at a server that runs
(`url`, streamable HTTP). The policy calls the server's tools until it answers
in text without a call; then the reward is asked, as that of
`env.adapters.questions` is, with three values more:

- `transcript`: all messages of the episode, in OpenAI's form;
- `num_calls`: the number of calls that the server has answered;
- `call_tool`: a coroutine function that calls a tool of the episode's server by
  name and arguments and returns its text, for a reward by the server's state.

A server that dies, hangs or breaks the protocol is a fault of its episode. A
call that is late while the server answers a ping is the policy's mistake.
"""

import asyncio
import contextlib
import logging
import os
import pathlib
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import mcp
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared import exceptions
from mcp.shared._httpx_utils import create_mcp_http_client

from agentrl_jax.bearer_token import bearer, read_key_of_url
from agentrl_jax.data.dataset_file import DatasetRow
from agentrl_jax.data.records import (
  Message,
  Status,
  Task,
  Tool,
  ToolCall,
  message_to_json,
)
from agentrl_jax.env.adapters.executors import Executor, executor_of
from agentrl_jax.env.adapters.questions import Questions
from agentrl_jax.env.adapters.servers.commands import (
  bounded,
  cut,
  found_program,
  last_words,
  text_of_result,
)
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.env.options import require_positive
from agentrl_jax.env.tools import (
  ToolMistake,
  read_arguments,
  require_names_apart,
)
from agentrl_jax.env.warm_pool import WarmPool
from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  EnvironmentFault,
  suggestion,
)

_log = logging.getLogger(__name__)

MAX_MESSAGE = 8 << 20  # bytes of one message of a process
_PAGES = 100  # of the list of tools
_PING_S = 5.0
_CLOSE_S = 10.0  # for the end of a session
_CLOSED = -32000  # the package's code for a connection that has ended
# Named McpError before version 2 of the package.
_Refusal: type[Exception] = getattr(
  exceptions, "MCPError" if hasattr(exceptions, "MCPError") else "McpError"
)


class MCP(Questions):
  """Questions of files, for whose answers the policy has a server's tools.

  Args:
    source, question, answer, prompt, system: as those of `Questions`.
    command: starts a server; {folder} in it is an empty folder of the episode,
      which is removed with it.
    url: of a server that runs, as http://127.0.0.1:8000/mcp.
    token_file: the key of `url`: a file, or env:NAME.
    reward: as that of `Questions`, with the values above.
    tools: names of the tools that the policy has; () are all.
    files: a folder whose content {folder} begins with.
    max_turns: answers until the session ends.
    max_reply_chars: of a tool's reply, whose rest is cut.
    call_limit_s: timeout of a call.
    start_limit_s: timeout of a session's start.
    num_warm: servers that are started ahead of their episodes.
    step_limit_s: timeout of the reward.
  """

  name = "mcp"
  needs_one_loop = True  # of the pool

  def __init__(
    self,
    *,
    source: str,
    command: str = "",
    url: str = "",
    token_file: str = "",
    question: str = "question",
    answer: str = "answer",
    reward: str = "last_number",
    prompt: str = "{question}",
    system: str = "",
    tools: Sequence[str] = (),
    files: str = "",
    max_turns: int = 16,
    max_reply_chars: int = 10_000,
    call_limit_s: float = 30.0,
    start_limit_s: float = 60.0,
    num_warm: int = 4,
    step_limit_s: float = 60.0,
  ):
    require_positive(
      max_reply_chars=max_reply_chars,
      call_limit_s=call_limit_s,
      start_limit_s=start_limit_s,
    )
    if bool(command) == bool(url):
      raise ConfigError(
        f"command={command!r} and url={url!r}: set one of them, the command "
        "that starts a server or the address of one that runs"
      )
    if files and not (pathlib.Path(files).is_dir() and "{folder}" in command):
      raise ConfigError(
        f"files={files!r} must be a folder, whose content {{folder}} in the "
        f"command begins with, and command={command!r}"
      )
    self.url, self.argv = url, found_program(command) if command else []
    self.headers = dict(bearer(read_key_of_url(token_file, url)))
    self.wanted, self.files = tuple(tools), files
    self.max_reply_chars, self.call_limit_s = max_reply_chars, call_limit_s
    self.start_limit_s = start_limit_s
    super().__init__(
      source=source,
      question=question,
      answer=answer,
      reward=reward,
      prompt=prompt,
      system=system,
      max_turns=max_turns,
      step_limit_s=step_limit_s,
    )
    self._has_started = False
    self._starting = asyncio.Semaphore(os.cpu_count() or 1)
    self._pool = WarmPool(
      self._connect, _Connection.close, num_warm=num_warm if command else 0
    )

  def values(
    self, row: DatasetRow, completion: str, turn: int
  ) -> dict[str, Any]:
    """Returns all that a reward may ask for; a session fills in its own."""
    own = {"transcript": [], "num_calls": 0, "call_tool": None}
    return super().values(row, completion, turn) | own

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session with a server; ignores the seed."""
    del seed
    row = self.find(task)
    connection = await self._pool.take()
    while not connection.is_open:  # ended while it waited
      await connection.close()
      connection = await self._pool.take()
    executor = executor_of(
      blocking=not self.is_builtin, limit_s=self.step_limit_s
    )
    async with contextlib.AsyncExitStack() as stack:
      stack.push_async_callback(connection.close)
      stack.push_async_callback(executor.close, lambda: None)
      stack.callback(connection.leave)
      yield _ToolSession(self, row, connection, executor)

  async def close(self) -> None:
    await self._pool.close()

  async def _connect(self) -> "_Connection":
    """Starts a session; a first one that fails is the config's mistake."""
    async with self._starting:
      connection = _Connection(self)
      try:
        await connection.begin()
      except EnvironmentFault as error:
        if self._has_started:
          raise
        raise ConfigError(str(error)) from error
    self._has_started = True
    return connection


class _Connection:
  """A session with a server, in a task that owns its streams."""

  def __init__(self, environment: MCP):
    self.tools: tuple[Tool, ...] = ()
    self._environment = environment
    self._session: mcp.ClientSession | None = None
    self._said = ""  # by the process, at its end
    self._ready: asyncio.Future[None] = asyncio.Future()
    self._leaving = asyncio.Event()
    self._task = asyncio.create_task(self._hold(), name="mcp-session")

  @property
  def is_open(self) -> bool:
    """True until the session ends."""
    return not self._task.done()

  async def begin(self) -> None:
    """Waits for the list of tools. Raises `EnvironmentFault`."""
    limit_s = self._environment.start_limit_s
    try:
      async with asyncio.timeout(limit_s):
        await asyncio.shield(self._ready)
    except BaseException as error:
      await self.close()
      if isinstance(error, TimeoutError):
        raise self._fault(
          f"has not begun within start_limit_s={limit_s:g} s"
        ) from error
      raise

  def leave(self) -> None:
    """Lets the session end, without waiting for it."""
    self._leaving.set()

  async def close(self) -> None:
    """Ends the session and its process."""
    self.leave()
    if self._ready.done():  # a session that has not begun does not see it
      await asyncio.wait([self._task], timeout=_CLOSE_S)
    if not self._task.done():
      self._task.cancel()
      await asyncio.wait([self._task], timeout=_CLOSE_S)

  async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
    """Returns a tool's reply. Raises `EnvironmentFault` if there is none."""
    limit_s = self._environment.call_limit_s
    max_chars = self._environment.max_reply_chars
    assert self._session is not None
    try:
      async with asyncio.timeout(limit_s):
        result = await self._session.call_tool(tool, dict(arguments))
      shown = result.model_dump(mode="json", by_alias=True)
      return cut(text_of_result(shown), max_chars)
    except TimeoutError:
      if await self._answers_ping():
        return f"Error: {tool} has not answered within {limit_s:g} s."
      problem = f"answers neither {tool} within call_limit_s={limit_s:g} s"
      problem += " nor a ping"
    except _Refusal as error:
      if error.error.code != _CLOSED:  # type: ignore[attr-defined]
        return cut(f"Error: {error}", max_chars)
      problem = f"has ended while {tool} was called"
    except Exception as error:  # noqa: BLE001 - not our code
      problem = f"failed at {tool}: {_described(error)}"
    await self.close()  # which reads what the process said
    raise self._fault(problem)

  async def _answers_ping(self) -> bool:
    assert self._session is not None
    try:
      async with asyncio.timeout(_PING_S):
        await self._session.send_ping()
    except (TimeoutError, _Refusal):
      return False
    return True

  async def _hold(self) -> None:
    """Keeps the session open until `leave`."""
    try:
      with tempfile.TemporaryFile("w+") as errors:
        try:
          async with contextlib.AsyncExitStack() as stack:
            await self._open(stack, errors)
            self._ready.set_result(None)
            await self._leaving.wait()
        finally:
          errors.seek(0)
          self._said = errors.read().strip()
    except Exception as error:  # noqa: BLE001 - not our code
      first = _first(error)
      if not isinstance(first, AgentRLError):
        first = self._fault(f"has not begun: {_described(first)}")
      if self._ready.done():  # a call that waits reports it
        _log.info("a session ended: %s", first)
      else:
        self._ready.set_exception(first)

  async def _open(self, stack: contextlib.AsyncExitStack, errors: Any) -> None:
    transport = await self._transport(stack, errors)
    streams = await stack.enter_async_context(transport)
    session = mcp.ClientSession(streams[0], streams[1])
    self._session = await stack.enter_async_context(session)
    await session.initialize()
    self.tools = await self._list_tools(session)

  async def _transport(
    self, stack: contextlib.AsyncExitStack, errors: Any
  ) -> Any:
    environment = self._environment
    if environment.url:

      async def tell(response: Any) -> None:
        if response.status_code in (401, 403):  # the package does not say it
          errors.write(
            f"status {response.status_code}: token_file names the file that "
            "has its key"
          )

      http = create_mcp_http_client(headers=environment.headers)
      http.event_hooks["response"].append(tell)
      await stack.enter_async_context(http)
      return streamable_http_client(environment.url, http_client=http)
    folder = stack.enter_context(
      tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    )
    if environment.files:
      shutil.copytree(environment.files, folder, dirs_exist_ok=True)
    program, arguments = bounded(
      environment.argv, max_line=MAX_MESSAGE, folder=folder
    )
    parameters = mcp.StdioServerParameters(command=program, args=arguments)
    return stdio_client(parameters, errlog=errors)

  async def _list_tools(self, session: mcp.ClientSession) -> tuple[Tool, ...]:
    listed: list[Mapping[str, Any]] = []
    page: Any = None
    for _ in range(_PAGES):
      params = mcp.types.PaginatedRequestParams(cursor=page) if page else None
      result = await session.list_tools(params=params)
      shown = result.model_dump(mode="json", by_alias=True)
      listed += shown["tools"]
      page = shown.get("nextCursor")
      if not page:
        break
    return self._chosen(listed)

  def _chosen(self, listed: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Returns the tools that are wanted. Raises `ConfigError`."""
    names = [tool["name"] for tool in listed]
    for name in self._environment.wanted:
      if name not in names:
        raise ConfigError(
          f"tools={name!r}{suggestion(name, names)} is not among the server's "
          f"tools: {', '.join(names) or 'it has none'}"
        )
    if not names:
      raise ConfigError(f"{self._where()} has no tools")
    chosen = tuple(
      Tool(tool["name"], tool["description"], tool["inputSchema"])
      for tool in listed
      if tool["name"] in (self._environment.wanted or names)
    )
    require_names_apart(chosen)
    return chosen

  def _fault(self, problem: str) -> EnvironmentFault:
    if self._said:
      _log.info("%s wrote: %s", self._where(), self._said)
    return EnvironmentFault(
      f"{self._where()} {problem}{last_words(self._said)}"
    )

  def _where(self) -> str:
    environment = self._environment
    return f"the MCP server {environment.url or shlex.join(environment.argv)}"


def _first(error: BaseException) -> BaseException:
  """Returns an error, of a group its first."""
  while isinstance(error, BaseExceptionGroup):
    error = error.exceptions[0]
  return error


def _described(error: BaseException) -> str:
  first = _first(error)
  return f"{type(first).__name__}: {first}"[:500]


class _ToolSession(Session):
  """An episode: calls, and a last answer that is rewarded."""

  def __init__(
    self,
    environment: MCP,
    row: DatasetRow,
    connection: _Connection,
    executor: Executor,
  ):
    self.tools = connection.tools
    self._environment, self._row = environment, row
    self._connection, self._executor = connection, executor
    self._transcript: list[Message] = []
    self._turn = self._num_calls = 0

  async def reset(self) -> Step:
    self._transcript += (messages := self._environment.messages(self._row))
    return Step(messages)

  async def step(self, answer: Message) -> Step:
    self._turn += 1
    self._transcript.append(answer)
    if not answer.tool_calls:
      return await self._end(answer, (), Status.COMPLETED)
    replies = tuple([await self._play(call) for call in answer.tool_calls])
    self._transcript += replies
    if self._turn < self._environment.max_turns:
      return Step(replies)
    return await self._end(answer, replies, Status.TASK_LIMIT_REACHED)

  async def _play(self, call: ToolCall) -> Message:
    arguments = read_arguments(call, self.tools)
    if isinstance(arguments, ToolMistake):
      return Message("tool", arguments.message, tool_call_id=call.id)
    text = await self._connection.call(call.name, arguments)
    self._num_calls += 1
    return Message("tool", text, tool_call_id=call.id)

  async def _end(
    self, answer: Message, replies: tuple[Message, ...], status: Status
  ) -> Step:
    environment = self._environment
    completion = "" if answer.tool_calls else answer.content
    values = environment.values(self._row, completion, self._turn) | {
      "transcript": [message_to_json(m) for m in self._transcript],
      "num_calls": self._num_calls,
      "call_tool": self._connection.call,
    }
    reward, metrics = await environment.score(self._executor, self._row, values)
    own = {"num_calls": float(self._num_calls)}
    return Step(replies, reward=reward, status=status, metrics=own | metrics)
