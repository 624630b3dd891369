"""OpenEnv's servers as environments: contract, odd servers, and its package."""

import asyncio
import contextlib
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings
from unittest import mock

import pytest
from aiohttp import WSMsgType, test_utils, web

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.adapters.openenv import OpenEnv
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from tests.clocks import wait_until
from tests.service.docker.engine_for_tests import base_or_skip, connect_or_skip
from tests.service.processes import free_port

ROOT = pathlib.Path(__file__).parents[3]
SERVER = pathlib.Path(__file__).with_name("servers") / "openenv_server.py"
# An interpreter that has the package, whose requirements need not suit ours.
SERVERS = pathlib.Path(
  os.environ.get("AGENTRL_SERVERS", ROOT / ".venv-servers")
)
TEXT = {"type": "string"}
TASK = Task("openenv", "train", 0)


def calling(tool, **arguments):
  return Message(
    "assistant", tool_calls=(ToolCall(tool, json.dumps(arguments), "call_0"),)
  )


def saying(text):
  return Message("assistant", text)


class ServerCase(unittest.IsolatedAsyncioTestCase):
  """Has a server that runs, for all tests of a class."""

  kind = "guess"

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.url = serving(cls, f"{sys.executable} {SERVER} {{port}} {cls.kind}")


def serving(case, command, **options):
  """Starts a server for a class of tests; returns its address."""
  port = free_port()
  process = subprocess.Popen(
    command.format(port=port).split(), stderr=subprocess.DEVNULL, **options
  )
  case.addClassCleanup(process.wait)
  case.addClassCleanup(process.kill)
  url = f"http://127.0.0.1:{port}"
  wait_until(lambda: answers(url), command, within_s=800)
  return url


def answers(url):
  quiet = ["curl", "--silent", "--fail", "--output", "/dev/null"]
  return not subprocess.run([*quiet, f"{url}/schema"], check=False).returncode


class CallsTest(SessionContract, ServerCase):
  num_tasks = 2

  def make_environment(self):
    return OpenEnv(
      url=self.url, max_rounds=20, max_sessions=2, reset={"kind": "given"}
    )

  async def test_a_guess_wins(self):
    environment = self.make_environment()
    async with environment.open(TASK, seed=0) as session:
      hint = int((await session.reset()).messages[0].content)
      numbers = [n for n in range(1000) if sum(map(int, str(n))) == hint]
      for number in numbers:
        step = await session.step(calling("act", number=number))
        if step.status is not Status.RUNNING or number == numbers[18]:
          break
      self.assertEqual(step.reward, float(step.status is Status.COMPLETED))


class ToolsTest(SessionContract, ServerCase):
  kind, num_tasks = "tools", 1
  top_reward = 20.0

  def make_environment(self):
    return OpenEnv(url=self.url, max_rounds=20, max_sessions=2)

  async def test_a_tool_replies(self):
    async with self.make_environment().open(TASK, seed=0) as session:
      self.assertEqual([tool.name for tool in session.tools], ["say"])
      step = await session.step(calling("say", text="Hi"))
    self.assertEqual((step.messages[0].content, step.reward), ("Hi", 0.25))


class WishesTest(ServerCase):
  kind = "wish"

  def make(self, **options):
    return OpenEnv(url=self.url, **{"max_sessions": 2, **options})

  async def play(self, *texts, **options):
    async with self.make(**options).open(TASK, seed=0) as session:
      await session.reset()
      return [await session.step(saying(text)) for text in texts][-1]

  async def test_an_action_of_one_text_is_answered_in_text(self):
    step = await self.play("on", "<think>so</think> done")
    self.assertEqual((step.messages[0].content, step.reward), ("done", 1.0))
    self.assertEqual(step.status, Status.COMPLETED)
    async with self.make(tool="wish").open(TASK, seed=0) as session:
      self.assertEqual([tool.name for tool in session.tools], ["wish"])

  async def test_what_breaks_is_a_fault_and_no_reward(self):
    for text, pattern in {
      "drop": "dropped",
      "garble": "JSONDecodeError",
      "hang": "within 1 s|step_limit_s",
      "raise": "it broke",
      "nan": "finite|nan",
      "none": "without a reward",
    }.items():
      with (
        self.subTest(text),
        self.assertRaisesRegex(EnvironmentFault, pattern),
      ):
        before = () if text == "none" else ("on",)
        await self.play(*before, text, step_limit_s=1 if text == "hang" else 60)

  async def test_codes_that_are_the_policys_mistake_are_answered(self):
    step = await self.play("invalid")
    self.assertEqual(step.messages[0].content, "Error: no such wish")
    step = await self.play("raise", refusals=("EXECUTION_ERROR",))
    self.assertEqual(step.messages[0].content, "Error: it broke")

  async def test_numbers_of_the_state_are_metrics(self):
    step = await self.play("on", "done", state=("step_count", "secret"))
    self.assertEqual(step.metrics["step_count"], 2)
    self.assertLess(step.metrics["secret"], 1000)
    for name, pattern in (("luck", "step_count.*'luck'"), ("name", "'game'")):
      with self.assertRaisesRegex(EnvironmentFault, pattern):
        await self.play("on", state=(name,))

  async def test_text_of_an_observation_is_bounded(self):
    text = (await self.play("flood", max_observation_chars=9)).messages[0]
    self.assertEqual(
      text.content, "floodfloo\n[499,991 more characters are cut]"
    )

  async def test_eight_sessions_share_the_servers_two(self):
    environment = self.make(max_sessions=8)

    async def play():
      async with environment.open(TASK, seed=0) as session:
        await session.reset()
        return (await session.step(saying("on"))).reward

    rewards = await asyncio.gather(*(play() for _ in range(8)))
    self.assertEqual(rewards, [0.5] * 8)

  async def test_a_first_reset_that_hangs_is_one_sentence(self):
    with self.assertRaisesRegex(ConfigError, "no session within start_limit_s"):
      await self.play("on", reset={"kind": "late"}, start_limit_s=0.3)

  async def test_a_field_that_is_missing_is_named(self):
    with self.assertRaisesRegex(EnvironmentFault, "hint.*no .prompt"):
      await self.play("on", show="prompt")


class SlowPolicyTest(unittest.IsolatedAsyncioTestCase):
  """A server that acts while the policy thinks."""

  async def test_a_session_outlives_pings_and_tells_what_ended_it(self):
    self.enterContext(mock.patch.dict(os.environ, KEY=KEY.split()[1]))
    for does, pattern in {
      "pings": "",
      "closes": "dropped .CLOSE 1011 no pong",
      "talks": 'nobody asked for: {"type": "observation"',
      "fails": "out of memory",
    }.items():
      with self.subTest(does):
        app, thought = web.Application(), asyncio.Event()
        app.add_routes(
          [web.get("/schema", _schema), web.get("/ws", _session(does, thought))]
        )
        async with test_utils.TestServer(app) as server:
          url = str(server.make_url(""))
          with self.assertRaisesRegex(ConfigError, "status 401.*token_file"):
            await OpenEnv(url=url)._start()
          environment = OpenEnv(url=url, token_file="env:KEY")
          async with environment.open(TASK, seed=0) as session:
            await session.reset()
            await session.step(saying("first"))
            async with asyncio.timeout(10):
              await thought.wait()
            fails = self.assertRaisesRegex(EnvironmentFault, pattern)
            with fails if pattern else contextlib.nullcontext():
              step = await session.step(saying("second"))
          if not pattern:
            self.assertEqual(step.messages[0].content, "second")
    names = {task.get_name() for task in asyncio.all_tasks()}
    self.assertNotIn("openenv-session", names)


KEY = "Bearer a-key-of-16-letters"


async def _schema(request):
  if KEY not in request.headers.values():
    raise web.HTTPUnauthorized
  return web.json_response({"action": {"properties": {"text": TEXT}}})


def _session(does, thought):
  """Returns a handler that answers, and is active after the first step."""
  unasked = {
    "talks": {"type": "observation"},
    "fails": {"type": "error", "data": {"message": "out of memory"}},
  }

  async def handle(request):
    assert request.headers["Authorization"] == KEY
    socket = web.WebSocketResponse(autoping=False)
    await socket.prepare(request)
    async for message in socket:
      text = json.loads(message.data).get("data", {}).get("text", "")
      answer = {"observation": {"text": text}, "reward": 1, "done": False}
      await socket.send_json({"type": "observation", "data": answer})
      if text == "first":
        if does in unasked:
          await socket.send_json(unasked[does])
        await is_alive(socket)
        if does == "closes":
          await socket.close(code=1011, message=b"no pong")
        thought.set()
    return socket

  return handle


async def is_alive(socket):
  """Pings as uvicorn does, but sooner; ends a session that does not answer."""
  for _ in range(3):
    await socket.ping()
    if (await socket.receive(timeout=2)).type is not WSMsgType.PONG:
      await socket.close()


class StartTest(unittest.IsolatedAsyncioTestCase):
  def make(self, kind, **options):
    command = f"{sys.executable} {SERVER} {{port}} {kind}"
    environment = OpenEnv(command=command, **options)
    self.addAsyncCleanup(environment.close)
    return environment

  async def play(self, environment, text="done"):
    async with environment.open(TASK, seed=0) as session:
      await session.reset()
      return await session.step(saying(text))

  async def test_the_run_starts_its_server_again_and_ends_it(self):
    environment = self.make("wish")
    self.assertEqual((await self.play(environment)).reward, 0.5)
    first = environment.server.url
    with self.assertRaises(EnvironmentFault):
      await self.play(environment, "die")
    await environment.server._process.wait()
    self.assertEqual((await self.play(environment)).reward, 0.5)
    self.assertNotEqual(environment.server.url, first)
    last = environment.server.url
    await environment.close()
    self.assertFalse(answers(last))

  async def test_a_seed_that_is_ignored_is_told(self):
    with self.assertLogs("agentrl_jax.env.adapters.openenv", "WARNING") as log:
      await self.play(self.make("luck"))
    self.assertRegex(log.output[0], "values of (hint, )?secret; if")
    with self.assertNoLogs("agentrl_jax.env.adapters.openenv", "WARNING"):
      await self.play(self.make("wish"))

  async def test_a_server_that_does_not_come_up_is_one_sentence(self):
    for kind, pattern in {
      "dead": "has ended; it wrote: cannot begin: no model",
      "older": "status 404.*0.2 or later",
    }.items():
      with self.subTest(kind), self.assertRaisesRegex(ConfigError, pattern):
        await self.play(self.make(kind))
    with self.assertRaisesRegex(ConfigError, "does not answer"):
      await self.play(OpenEnv(url="http://127.0.0.1:9"))
    with self.assertRaisesRegex(ConfigError, "does not answer"):
      environment = OpenEnv(command="sleep 99{port}", start_limit_s=0.3)
      self.addAsyncCleanup(environment.close)
      await self.play(environment)

  async def test_a_session_that_is_cancelled_is_freed(self):
    asked = []
    server = await asyncio.start_server(
      lambda _, writer: asked.append(writer), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with server:
      with self.assertRaises(TimeoutError):
        async with asyncio.timeout(0.5):
          await OpenEnv(url=f"http://127.0.0.1:{port}").make(0)
      for writer in asked:  # which never answered
        writer.close()
    with warnings.catch_warnings(record=True) as caught:
      gc.collect()
    self.assertEqual([str(w.message) for w in caught], [])

  def test_options_that_do_not_fit_are_refused(self):
    for options, pattern in (
      ({}, "set one of them"),
      ({"url": "http://a", "command": "b {port}"}, "set one of them"),
      ({"command": "sleep 1"}, "at {port}"),
      ({"url": "a:80"}, "no address"),
      ({"command": "b {port}", "token_file": "key"}, "sent to a server at"),
      ({"command": "b {port}", "image": "a"}, "set one of them"),
      ({"url": "http://a", "max_session": 1}, "max_session"),
    ):
      with self.subTest(options), self.assertRaisesRegex(ConfigError, pattern):
        OpenEnv(**options)


@pytest.mark.slow
@pytest.mark.timeout(1800)
class PackageTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """The environment that OpenEnv's own command writes, served by it."""

  num_tasks = 1
  top_reward = 100.0
  split_by = "nothing"  # it is always the same echo
  app = "server.app:app"
  options = {"split_by": "seed", "show": "echoed_message", "max_rounds": 20}
  first = saying("Hello"), "Hello", 0.5

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if not (SERVERS / "bin" / "openenv").exists():
      raise unittest.SkipTest("openenv is not installed: make servers")
    cls.url = serving(
      cls,
      f"{SERVERS / 'bin' / 'uvicorn'} --app-dir {cls.folder()} {cls.app} "
      "--port {port}",
    )

  @classmethod
  def folder(cls):
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    argv = [SERVERS / "bin" / "openenv", "init", "echo_demo"]
    argv += ["--output-dir", folder]
    subprocess.run(argv, check=True, capture_output=True, timeout=800)
    return f"{folder}/echo_demo"

  def make_environment(self, **options):
    return OpenEnv(url=self.url, **self.options, **options)

  async def test_it_answers(self):
    action, seen, reward = self.first
    environment = self.make_environment()
    async with environment.open(TASK, seed=0) as session:
      await session.reset()
      step = await session.step(action)
    self.assertIn(seen, step.messages[0].content)
    self.assertEqual(step.reward, reward)

  async def test_eight_sessions_at_once(self):
    environment = self.make_environment()
    is_open = asyncio.Barrier(8 if self.app != PackageTest.app else 1)

    async def play():
      async with environment.open(TASK, seed=0) as session:
        await session.reset()
        await is_open.wait()
        return (await session.step(self.first[0])).reward

    rewards = await asyncio.gather(*(play() for _ in range(8)))
    self.assertEqual(rewards, [self.first[2]] * 8)


class MCPToolsTest(PackageTest):
  """Tools of FastMCP on OpenEnv's own base class; its reset heeds the seed."""

  top_reward = 1.0
  app, split_by = "openenv_apps:tools", "observation"
  options = {"max_rounds": 20}
  first = calling("guess", number=-1), "lower", 0.0

  @classmethod
  def folder(cls):
    return SERVER.parent


PLAYS = """
import asyncio, sys
from agentrl_jax.data.records import Task
from agentrl_jax.env.adapters.openenv import OpenEnv
async def play():
  async with OpenEnv(image=sys.argv[1]).open(Task("x", "train", 0), seed=0):
    await asyncio.sleep(600)
asyncio.run(play())
"""
DOCKERFILE = """
ARG BASE
FROM ${BASE}
RUN python3 -m venv /venv && /venv/bin/pip install --quiet aiohttp
COPY openenv_server.py /
ENV HOST=0.0.0.0
ENTRYPOINT ["/venv/bin/python", "/openenv_server.py", "8000"]
"""


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(900)
class ImageTest(unittest.IsolatedAsyncioTestCase):
  """The test's own server in a container, which nothing leaves behind."""

  tag = "agentrl_jax/openenv:test"

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.docker.api.timeout = 600  # pip says nothing for a while
    base = base_or_skip(cls.docker)
    folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / SERVER.name).write_text(SERVER.read_text())
    cls.docker.images.build(
      path=str(folder), tag=cls.tag, buildargs={"BASE": base}, rm=True
    )

  def containers(self):
    return self.docker.containers.list(
      all=True, filters={"name": "agentrl-openenv-"}, ignore_removed=True
    )

  async def test_the_run_starts_and_removes_it(self):
    for kind in ("wish", "stubborn"):  # the latter heeds no signal
      environment = OpenEnv(image=f"--memory 256m {self.tag} {kind}")
      async with environment.open(TASK, seed=0) as session:
        await session.reset()
        self.assertEqual((await session.step(saying("done"))).reward, 0.5)
      (container,) = self.containers()
      ports = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"]
      self.assertEqual([port["HostIp"] for port in ports], ["127.0.0.1"])
      self.assertEqual(container.attrs["HostConfig"]["Memory"], 256 << 20)
      await environment.close()
      self.assertEqual(self.containers(), [])

  async def test_it_ends_with_the_run_that_is_killed(self):
    argv = [sys.executable, "-c", PLAYS, f"{self.tag} stubborn"]
    run = await asyncio.create_subprocess_exec(*argv, cwd=ROOT)
    await asyncio.to_thread(wait_until, self.containers, within_s=120)
    run.kill()
    await run.wait()
    gone = lambda: not self.containers()  # noqa: E731
    await asyncio.to_thread(wait_until, gone, within_s=60)

  async def test_what_does_not_start_is_one_sentence(self):
    for image, pattern in (
      ("agentrl_jax/no-such-image:test", "has ended; it wrote: .*no-such-imag"),
      (f"{self.tag} dead", "has ended; it wrote: .*no model"),
      (f"--no-such-flag {self.tag}", "no-such-flag"),
    ):
      with self.subTest(image), self.assertRaisesRegex(ConfigError, pattern):
        async with OpenEnv(image=image).open(TASK, seed=0):
          pass
    self.assertEqual(self.containers(), [])
