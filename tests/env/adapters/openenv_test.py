"""OpenEnv's servers as environments: contract, odd servers, and its package."""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.adapters.openenv import OpenEnv
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from tests.clocks import wait_until
from tests.service.processes import free_port

ROOT = pathlib.Path(__file__).parents[3]
SERVER = pathlib.Path(__file__).with_name("servers") / "openenv_server.py"
# An interpreter that has the package, whose requirements need not suit ours.
SERVERS = pathlib.Path(
  os.environ.get("AGENTRL_SERVERS", ROOT / ".venv-servers")
)
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
  wait_until(lambda: answers(url), command, within_s=280)
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
    async with self.make(answers="calls").open(TASK, seed=0) as session:
      self.assertEqual([tool.name for tool in session.tools], ["act"])

  async def test_what_breaks_is_a_fault_and_no_reward(self):
    for text, pattern in {
      "drop": "dropped",
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

  async def test_a_socket_that_drops_between_two_steps_is_a_fault(self):
    async with self.make().open(TASK, seed=0) as session:
      await session.reset()
      (episode,) = [session._wrapped._object]
      await episode._socket.close()
      with self.assertRaises(EnvironmentFault):
        await session.step(saying("on"))

  async def test_codes_that_are_the_policys_mistake_are_answered(self):
    step = await self.play("invalid")
    self.assertEqual(step.messages[0].content, "Error: no such wish")
    step = await self.play("raise", refusals=("EXECUTION_ERROR",))
    self.assertEqual(step.messages[0].content, "Error: it broke")

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

  async def test_a_field_that_is_missing_is_named(self):
    with self.assertRaisesRegex(EnvironmentFault, "prompt.*hint"):
      await self.play("on", show="prompt")


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

  async def test_a_server_that_does_not_come_up_is_one_sentence(self):
    for kind, pattern in {
      "dead": "has ended; it wrote: cannot begin: no model",
      "older": "status 404.*0.2 or later",
      "odd": "act.*unknownKeyword",
    }.items():
      with self.subTest(kind), self.assertRaisesRegex(ConfigError, pattern):
        await self.play(self.make(kind))
    with self.assertRaisesRegex(ConfigError, "does not answer"):
      await self.play(OpenEnv(url="http://127.0.0.1:9"))
    with self.assertRaisesRegex(ConfigError, "does not answer"):
      environment = OpenEnv(command="sleep 99{port}", start_limit_s=0.3)
      self.addAsyncCleanup(environment.close)
      await self.play(environment)

  def test_options_that_do_not_fit_are_refused(self):
    for options, pattern in (
      ({}, "set one of them"),
      ({"url": "http://a", "command": "b {port}"}, "set one of them"),
      ({"command": "sleep 1"}, "at {port}"),
      ({"url": "a:80"}, "no address"),
      ({"url": "http://a", "answers": "words"}, "answers"),
      ({"url": "http://a", "max_session": 1}, "max_session"),
    ):
      with self.subTest(options), self.assertRaisesRegex(ConfigError, pattern):
        OpenEnv(**options)


@pytest.mark.slow
@pytest.mark.timeout(900)
class PackageTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """The environment that OpenEnv's own command writes, served by it."""

  num_tasks = 1
  top_reward = 100.0

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    openenv = SERVERS / "bin" / "openenv"
    if not openenv.exists():
      raise unittest.SkipTest("openenv is not installed: make servers")
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    argv = [openenv, "init", "echo_demo", "--output-dir", folder]
    subprocess.run(argv, check=True, capture_output=True, timeout=280)
    cls.url = serving(
      cls,
      f"{SERVERS / 'bin' / 'uvicorn'} server.app:app --port {{port}}",
      cwd=f"{folder}/echo_demo",
    )

  def make_environment(self):
    return OpenEnv(url=self.url, split_by="seed", show="echoed_message")

  async def test_it_echoes(self):
    async with self.make_environment().open(TASK, seed=0) as session:
      await session.reset()
      step = await session.step(saying("Hello"))
    self.assertEqual((step.messages[0].content, step.reward), ("Hello", 0.5))
