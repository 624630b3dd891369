"""Tests of an environment in another event loop."""

import asyncio
import contextlib
import unittest

from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.data.records import Message, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.remote.other_loop import OtherLoopEnvironment
from environments.arithmetic.environment import Arithmetic
from tests.clocks import turns_of_the_loop, until

TASK = Task("arithmetic", "train", 0)


class OtherLoopContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.thread = self.enterContext(ControllerThread())

  def make_environment(self):
    return OtherLoopEnvironment(Arithmetic(), Arithmetic(), self.thread.loop)

  def test_has_the_local_environments_baseline(self):
    self.assertEqual(self.make_environment().baseline, Arithmetic.baseline)
    self.assertTrue(Arithmetic.baseline)


class _Watched(Environment):
  """Records how its sessions are left; steps may hang or fail."""

  name = "watched"

  def __init__(self):
    self.left = []
    self.num_playing = 0  # steps that were begun and never return
    self.fails = False
    self.loop = None

  def indices(self, split):
    return range(1)

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    self.loop = asyncio.get_running_loop()
    try:
      yield _WatchedSession(self)
    except BaseException as error:
      await turns_of_the_loop()  # freeing takes its time
      self.left.append(type(error).__name__)
      raise
    else:
      self.left.append("in order")


class _WatchedSession(Session):
  tools = ()

  def __init__(self, environment):
    self._environment = environment

  async def reset(self):
    return Step(())

  async def step(self, answer):
    if self._environment.fails:
      raise EnvironmentFault("broken")
    self._environment.num_playing += 1
    await asyncio.Event().wait()


class OtherLoopTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.thread = self.enterContext(ControllerThread())
    self.remote = _Watched()
    self.environment = OtherLoopEnvironment(
      Arithmetic(), self.remote, self.thread.loop
    )

  async def play(self):
    async with self.environment.open(TASK, seed=0) as session:
      await session.reset()
      await session.step(Message("assistant"))

  async def test_plays_in_the_other_loop(self):
    async with self.environment.open(TASK, seed=0):
      self.assertIs(self.remote.loop, self.thread.loop)
      self.assertIsNot(self.remote.loop, asyncio.get_running_loop())
    self.assertEqual(self.remote.left, ["in order"])

  async def test_a_fault_is_seen_on_both_sides(self):
    self.remote.fails = True
    with self.assertRaisesRegex(EnvironmentFault, "broken"):
      await self.play()
    self.assertEqual(self.remote.left, ["EnvironmentFault"])

  async def test_an_error_being_handled_outside_is_not_the_sessions(self):
    try:
      raise ZeroDivisionError
    except ZeroDivisionError:
      async with self.environment.open(TASK, seed=0):
        pass
    self.assertEqual(self.remote.left, ["in order"])

  async def test_cancelling_a_step_frees_the_session(self):
    playing = asyncio.create_task(self.play())
    await until(lambda: self.remote.num_playing)
    playing.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await playing
    self.assertEqual(self.remote.left, ["CancelledError"])

  async def test_cancelling_twice_does_not_stop_the_freeing(self):
    playing = asyncio.create_task(self.play())
    await until(lambda: self.remote.num_playing)
    playing.cancel()
    await asyncio.sleep(0)
    playing.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await playing
    await until(lambda: self.remote.left)
