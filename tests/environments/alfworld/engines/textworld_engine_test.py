"""Tests of the TextWorld engine, where it is installed."""

import asyncio
import importlib.util
import unittest
from unittest import mock

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.alfworld import ALFWorld
from environments.alfworld.engines.engine import PythonEngine
from environments.alfworld.engines.textworld_engine import TextWorldEngine
from tests.environments.alfworld.data import needs_textworld
from tests.environments.alfworld.small_games import study
from tests.environments.playing import play

SMALL = {"num_receptacles": (5, 8), "num_things": (4, 8)}


class TextWorldContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  num_tasks = 2

  def setUp(self):
    needs_textworld()

  def make_environment(self):
    environment = ALFWorld(engine="textworld", num_processes=1, **SMALL)
    self.addAsyncCleanup(environment.close)
    return environment


class TextWorldEngineTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    needs_textworld()
    self.engine = TextWorldEngine(num_processes=1, reply_limit_s=60.0)
    self.addAsyncCleanup(self.engine.close)

  async def test_expert_wins(self):
    environment = ALFWorld(engine=self.engine, **SMALL)
    for index in range(3):
      task = Task("alfworld", "train", index)
      with self.subTest(index=index):
        *_, step = await play(environment, task)
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))

  async def test_process_is_reused(self):
    async with self.engine.open(study()) as first:
      await first.begin()
    async with self.engine.open(study()) as second:
      await second.begin()
      self.assertIs(second._process, first._process)
      self.assertEqual(second._process.num_games, 2)

  async def test_process_is_replaced_after_its_last_game(self):
    with mock.patch(
      "environments.alfworld.engines.textworld_engine.GAMES_PER_PROCESS", 1
    ):
      async with self.engine.open(study()) as first:
        await first.begin()
    self.assertEqual(first._process._process.returncode, -9)

  async def test_late_reply_is_a_fault_and_kills_the_process(self):
    async with self.engine.open(study()) as first:
      await first.begin()
    self.engine._reply_limit_s = 1e-6
    with self.assertRaisesRegex(EnvironmentFault, "reply_limit_s"):
      async with self.engine.open(study()) as second:
        await second.begin()
    self.assertEqual(second._process._process.returncode, -9)

  async def test_dead_process_breaks_only_its_session(self):
    with self.assertRaisesRegex(EnvironmentFault, "TextWorld"):
      async with self.engine.open(study()) as first:
        await first.begin()
        first._process._process.kill()
        await first.act("look")
    async with self.engine.open(study()) as second:
      state = await second.begin()
    self.assertIn("You are in the middle of a room.", state.feedback)

  async def test_cancellation_of_a_wait_leaves_no_process(self):
    async with self.engine.open(study()) as first:
      task = asyncio.create_task(first.begin())
      await asyncio.sleep(0)
      task.cancel()
      with self.assertRaises(asyncio.CancelledError):
        await task
    self.assertEqual(first._process._process.returncode, -9)

  async def test_both_engines_begin_in_the_same_state(self):
    async with (
      self.engine.open(study()) as real,
      PythonEngine().open(study()) as ours,
    ):
      self.assertEqual(await real.begin(), await ours.begin())


class MissingPackagesTest(unittest.TestCase):
  def test_error_names_what_to_install(self):
    with (
      mock.patch.object(importlib.util, "find_spec", return_value=None),
      self.assertRaisesRegex(ConfigError, r"\.\[alfworld\]"),
    ):
      ALFWorld(engine="textworld")
