"""MCP servers as environments: contract, odd servers, and published ones."""

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import pytest
from aiohttp import test_utils, web

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from tests.clocks import wait_until
from tests.service.processes import free_port

pytest.importorskip("mcp", reason="pip install 'agentrl_jax[mcp]'")
from agentrl_jax.env.adapters import mcp
from agentrl_jax.env.adapters.mcp import MCP
from agentrl_jax.env.adapters.servers import bounded_process

HERE = "tests.env.adapters.mcp_test"
SERVER = (
  f"python -IS {pathlib.Path(__file__).with_name('servers') / 'mcp_server.py'}"
)
# Where servers are whose requirements need not suit ours.
SERVERS = pathlib.Path(
  os.environ.get(
    "AGENTRL_SERVERS", pathlib.Path(__file__).parents[3] / ".venv-servers"
  )
)
TASK = Task("mcp", "train", 0)


def has_added(completion, answer, num_calls, transcript):
  """A reward by the calls that were made."""
  assert transcript[0]["role"] == "user", transcript
  assert transcript[-1]["role"] == "assistant", transcript
  return float(num_calls == 1 and completion.strip() == answer)


async def has_seen(call_tool):
  """A reward by the state of the server."""
  seen = "seen" in json.loads(await call_tool("look", {}))
  return float(seen), {"seen": float(seen)}


async def has_rows(completion, call_tool):
  """A reward by the state of a database."""
  rows = await call_tool("read_query", {"query": "SELECT COUNT(*) n FROM t"})
  return float("2" in rows and completion == "done")


def calling(tool, **arguments):
  return Message(
    "assistant", tool_calls=(ToolCall(tool, json.dumps(arguments), "call_0"),)
  )


class Case(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    rows = [
      {"question": f"Add {n} and {n}.", "answer": str(2 * n)}
      for n in range(100, 112)
    ]
    self.source = self.folder / "train.jsonl"
    self.source.write_text("".join(json.dumps(row) + "\n" for row in rows))

  def make(self, kind="well", **options):
    options = {
      "command": f"{SERVER} {kind}",
      "reward": "exact_match",
      "num_warm": 0,
      **options,
    }
    return MCP(source=str(self.source), **options)

  async def played(self, environment, *answers):
    """Returns the steps of answers to the first task."""
    async with environment.open(TASK, seed=0) as session:
      await session.reset()
      return [await session.step(answer) for answer in answers]

  async def reply(self, *answers, **options):
    environment = self.make(**options)
    return (await self.played(environment, *answers))[-1].messages[-1].content


class MCPContractTest(SessionContract, Case):
  num_tasks = 1

  def make_environment(self):
    return self.make(tools=("add",))


class MCPTest(Case):
  async def test_reward_reads_transcript_and_calls(self):
    environment = self.make(reward=f"{HERE}:has_added")
    number = int(environment.find(TASK).columns["answer"]) // 2
    steps = await self.played(
      environment,
      calling("add", a=number, b=number),
      Message("assistant", f" {2 * number}"),
    )
    self.assertEqual(steps[0].messages[0].content, str(2 * number))
    self.assertEqual((steps[1].reward, steps[1].status), (1, Status.COMPLETED))
    steps = await self.played(
      environment, Message("assistant", str(2 * number))
    )
    self.assertEqual(steps[0].reward, 0)

  async def test_reward_asks_the_server_and_each_episode_has_its_folder(self):
    (self.folder / "files").mkdir()
    (self.folder / "files" / "given").touch()
    environment = self.make(
      command=f"{SERVER} well {{folder}}",
      files=str(self.folder / "files"),
      reward=f"{HERE}:has_seen",
      max_turns=1,
    )
    for _ in range(2):
      step = (await self.played(environment, calling("look")))[0]
      self.assertEqual(step.messages[0].content, '["given", "seen"]')
      self.assertEqual(step.status, Status.TASK_LIMIT_REACHED)
      self.assertEqual(step.reward, 1)
      self.assertEqual(step.metrics, {"success": 1, "num_calls": 1, "seen": 1})

  async def test_schemas_are_shown_as_they_come(self):
    async with self.make().open(TASK, seed=0) as session:
      schemas = {tool.name: tool.parameters for tool in session.tools}
    self.assertEqual(
      schemas["add"]["properties"],
      {
        "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "b": {"$ref": "#/$defs/Number"},
      },
    )
    self.assertEqual(schemas["say"]["properties"], {"text": {"type": "string"}})
    self.assertIn("broken", schemas)  # of the second page

  async def test_the_policys_mistakes_are_answered(self):
    self.assertIn("`b` is missing", await self.reply(calling("add", a=1)))
    self.assertIn("no tool", await self.reply(calling("subtract")))
    self.assertIn("not today", await self.reply(calling("refuse")))
    late = await self.reply(calling("slow"), call_limit_s=0.3)
    self.assertIn("not answered within 0.3 s", late)

  async def test_text_of_a_reply_is_bounded(self):
    text = await self.reply(calling("say", text="x" * 5000), max_reply_chars=9)
    self.assertEqual(text, "x" * 9 + "\n[4,991 more characters are cut]")

  async def test_lines_that_are_no_message_are_dropped(self):
    self.assertEqual(await self.reply(calling("junk")), "late")

  async def test_a_server_that_breaks_is_a_fault(self):
    self.enterContext(mock.patch.object(mcp, "_PING_S", 0.5))
    for tool, pattern in {
      "die": "its last words",
      "hang": "nor a ping",
      "flood": "more than 8388608 bytes",
      "broken": "broken",
    }.items():
      with (
        self.subTest(tool),
        self.assertRaisesRegex(EnvironmentFault, pattern),
      ):
        environment = self.make(call_limit_s=10 if tool == "flood" else 0.5)
        await self.played(environment, calling("add", a=1, b=1), calling(tool))

  async def test_a_server_that_cannot_begin_is_one_sentence(self):
    for kind, pattern in {
      "dead": "not begun.*cannot begin: no database",
      "mute": "start_limit_s=1",
      "none": "has no tools",
    }.items():
      with (
        self.subTest(kind),
        self.assertRaisesRegex(ConfigError, pattern) as e,
      ):
        limit_s = 1 if kind == "mute" else 60
        await self.played(self.make(kind, start_limit_s=limit_s))
      self.assertNotIn("\n", str(e.exception))
    with self.assertRaisesRegex(ConfigError, "not begun|has ended"):
      await self.played(self.make(command="", url="http://127.0.0.1:9/mcp"))

  async def test_a_key_that_is_refused_is_told(self):
    keys = []

    async def refuse(request):
      keys.append(request.headers["Authorization"])
      return web.Response(status=401)

    app = web.Application()
    app.router.add_post("/mcp", refuse)
    (self.folder / "key").write_text("a-key-of-16-letters\n")
    async with test_utils.TestServer(app) as server:
      environment = self.make(
        command="",
        url=str(server.make_url("/mcp")),
        token_file=str(self.folder / "key"),
      )
      with self.assertRaisesRegex(ConfigError, "status 401: token_file"):
        await self.played(environment)
    self.assertEqual({*keys}, {"Bearer a-key-of-16-letters"})

  async def test_a_server_that_later_cannot_begin_is_a_fault(self):
    kind = self.folder / "kind"
    kind.write_text("well")
    environment = self.make(
      command=f"sh -c '{sys.executable} {SERVER[7:]} $(cat {kind})'"
    )
    await self.played(environment)
    kind.write_text("dead")
    with self.assertRaises(EnvironmentFault):
      await self.played(environment)

  async def test_options_that_do_not_fit_are_refused(self):
    for options, pattern in (
      ({"url": "http://127.0.0.1:1"}, "set one of them"),
      ({"command": ""}, "set one of them"),
      ({"command": "no-such-program"}, "no program 'no-such-program'"),
      ({"files": "."}, "folder"),
      ({"max_reply_chars": 0}, "above 0"),
      ({"token_file": "key"}, "token_file=key is sent to a server at `url`"),
    ):
      with self.subTest(options), self.assertRaisesRegex(ConfigError, pattern):
        self.make(**options)
    with self.assertRaisesRegex(ConfigError, "did you mean look"):
      await self.played(self.make(tools=("loook",)))

  async def test_servers_start_ahead_and_all_end(self):
    environment = self.make("stays {folder}", num_warm=2)
    await self.played(environment)
    await environment._pool.wait_until_full()
    self.assertEqual(len(environment._pool._ready), 2)
    self.assertTrue(servers("stays"))
    await environment.close()
    await asyncio.to_thread(wait_until, lambda: not servers("stays"))

  async def test_eight_sessions_at_once(self):
    environment = self.make()
    steps = await asyncio.gather(
      *(self.played(environment, calling("add", a=n, b=0)) for n in range(8))
    )
    self.assertEqual(
      [s[0].messages[0].content for s in steps], [*map(str, range(8))]
    )

  def test_a_server_ends_with_the_run_that_is_killed(self):
    argv = [sys.executable, "-I", bounded_process.__file__, "100", ""]
    script = f"import subprocess, sys; subprocess.run({argv} + sys.argv[1:])"
    server = [*SERVER.split()[1:], "mute", "killed"]
    run = subprocess.Popen(
      [sys.executable, "-c", script, sys.executable, *server],
      stdin=subprocess.PIPE,
    )
    wait_until(lambda: servers("mute killed"))
    run.kill()
    run.wait()
    try:
      wait_until(lambda: not servers("mute killed"))
    finally:
      run.stdin.close()

  def test_the_last_words_of_a_server_are_kept(self):
    """A thread of its own reads them, here a late one."""
    folder = str(pathlib.Path(bounded_process.__file__).parent)
    script = f"""
import sys, time
sys.path.insert(0, {folder!r})
import bounded_process
keep = bounded_process._Command.keep
bounded_process._Command.keep = lambda *args: (time.sleep(0.1), keep(*args))
bounded_process.main(100, "", ["sh", "-c", "echo no database >&2"])
"""
    done = subprocess.run(
      [sys.executable, "-c", script], stdin=subprocess.PIPE, capture_output=True
    )
    self.assertIn(b"no database", done.stderr)


def answers(port):
  with (
    contextlib.suppress(OSError),
    socket.create_connection(("127.0.0.1", port), 1),
  ):
    return True


def servers(words):
  """Returns the running test servers, and not what starts them."""
  command = f"{sys.executable} {SERVER.removeprefix('python ')} {words}"
  listed = subprocess.run(
    ["ps", "-wweo", "args"], capture_output=True, text=True
  )
  return [x for x in listed.stdout.splitlines() if x.startswith(command)]


HTTP_SERVER = """
try:
  from mcp.server.fastmcp import FastMCP as Server
except ImportError:
  from mcp.server.mcpserver import MCPServer as Server
import uvicorn
server = Server("clock")
calls = []
@server.tool()
def tick() -> str:
  calls.append(1)
  return f"tick {len(calls)}"
uvicorn.run(server.streamable_http_app(), port=int(__import__("sys").argv[1]))
"""


class PublishedServersTest(Case):
  """The package's own server, and servers of PyPI."""

  @pytest.mark.slow
  async def test_streamable_http(self):
    port = free_port()
    program = self.folder / "clock.py"
    program.write_text(HTTP_SERVER)
    process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
      [sys.executable, program, str(port)], stderr=subprocess.DEVNULL
    )
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    url = f"http://127.0.0.1:{port}/mcp"
    await asyncio.to_thread(wait_until, lambda: answers(port), within_s=240)
    environment = self.make(command="", url=url, call_limit_s=60)
    steps = await self.played(environment, calling("tick"), calling("tick"))
    self.assertEqual(
      [s.messages[0].content for s in steps], ["tick 1", "tick 2"]
    )
    async with environment.open(TASK, seed=0) as session:
      process.kill()
      process.wait()
      with self.assertRaises(EnvironmentFault):
        await session.step(calling("tick"))

  @pytest.mark.slow
  async def test_sqlite_by_the_state_of_its_database(self):
    program = published("mcp-server-sqlite")
    environment = self.make(
      command=f"{program} --db-path {{folder}}/data.db",
      reward=f"{HERE}:has_rows",
      call_limit_s=120,
      start_limit_s=240,
    )
    steps = await self.played(
      environment,
      calling("create_table", query="CREATE TABLE t (a INT)"),
      calling("write_query", query="INSERT INTO t VALUES (1), (2)"),
      calling("read_query", query="DELETE FROM t"),
      Message("assistant", "done"),
    )
    self.assertIn("Only SELECT", steps[2].messages[0].content)
    self.assertEqual((steps[3].reward, steps[3].status), (1, Status.COMPLETED))
    # Another episode has another database.
    steps = await self.played(
      environment, calling("list_tables"), Message("assistant", "done")
    )
    self.assertEqual(steps[0].messages[0].content, "[]")
    self.assertEqual(steps[1].reward, 0)

  @pytest.mark.slow
  async def test_time(self):
    environment = self.make(
      command=published("mcp-server-time"),
      reward="last_number",
      call_limit_s=120,
      start_limit_s=240,
    )
    steps = await self.played(
      environment,
      calling(
        "convert_time",
        source_timezone="UTC",
        time="12:00",
        target_timezone="Asia/Tokyo",
      ),
      calling("get_current_time", timezone="Nowhere"),
    )
    self.assertIn("T21:00:00+09:00", steps[0].messages[0].content)
    self.assertIn("Invalid timezone", steps[1].messages[0].content)


def published(name):
  """Returns the path of a server's program, or skips."""
  beside = pathlib.Path(sys.executable).parent
  path = shutil.which(name, path=f"{beside}:{SERVERS / 'bin'}")
  if path is None:
    pytest.skip(f"{name} is not installed: make setup servers")
  return path
