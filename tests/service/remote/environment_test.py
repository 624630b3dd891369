"""Tests of remote environments: the contract, and deadlines."""

import asyncio
import unittest
from unittest import mock

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service import remote
from agentrl_jax.service.protocol.client import ClientDeadlines
from agentrl_jax.service.protocol.link import WorkerRefusal
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from environments.arithmetic.environment import Arithmetic
from tests.clocks import Clock, until
from tests.env.moody import SAY, SHOUT, Moody


class RemoteContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """The contract over HTTP, with the expert on the client's side."""

  async def asyncSetUp(self):
    local = Arithmetic()
    url = await self.enterAsyncContext(serve(local, WorkerConfig(port=0)))
    self.remote = await self.enterAsyncContext(remote.connect(url))
    self.remote.expert = local.expert

  def make_environment(self):
    return self.remote


class RemoteEnvironmentTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.moody = Moody()

  async def connect(self, *, deadlines=None, foreign=False, **limits):
    self.url = await self.enterAsyncContext(
      serve(self.moody, WorkerConfig(port=0), HostLimits(**limits))
    )
    deadlines = deadlines or ClientDeadlines()
    connection = (
      remote.connect_foreign(
        self.url, name="m", split="std", deadlines=deadlines
      )
      if foreign
      else remote.connect(self.url, deadlines=deadlines)
    )
    return await self.enterAsyncContext(connection)

  def task(self, index=0):
    return Task("moody", "test", index)

  async def test_looks_like_the_environment_behind_it(self):
    environment = await self.connect()
    self.assertEqual(environment.name, "moody")
    self.assertEqual(environment.indices("test"), (0, 1, 2, 3, 4))
    self.assertEqual(environment.indices("train"), (7,))
    async with environment.open(self.task(), seed=3) as session:
      self.assertEqual(session.tools, (SAY,))
      await session.reset()
      step = await session.step(Message("assistant", "end"))
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))
    self.assertEqual(step.metrics, {"words": 2.0})
    self.assertEqual(self.moody.seeds, [3])

  async def test_tools_may_change_during_an_episode(self):
    environment = await self.connect()
    async with environment.open(self.task(), seed=3) as session:
      await session.reset()
      await session.step(Message("assistant", "more"))
      self.assertEqual(session.tools, (SAY, SHOUT))
      await session.step(Message("assistant", "end"))

  async def test_plays_on_a_worker_written_for_agentrl(self):
    environment = await self.connect(foreign=True)
    self.assertEqual(environment.indices("std"), (0, 1, 2, 3, 4))
    async with environment.open(Task("m", "std", 0), seed=3) as session:
      await session.reset()
      await session.step(Message("assistant", "hm"))
    self.assertEqual(self.moody.num_open, 0)
    self.assertNotEqual(self.moody.seeds, [3])

  async def test_cancellation_frees_the_workers_session(self):
    environment = await self.connect()
    for index in (0, 4):  # as it steps; as it starts
      playing = asyncio.create_task(self.hang(environment, index))
      await until(lambda: self.moody.num_hanging)
      playing.cancel()
      with self.assertRaises(asyncio.CancelledError):
        await playing
      self.assertEqual(self.moody.num_open, 0)

  async def hang(self, environment, index=0):
    async with environment.open(self.task(index), seed=0) as session:
      await session.reset()
      await session.step(Message("assistant", "hang"))

  async def test_faults_name_the_cause(self):
    environment = await self.connect()
    for words, reason in (
      ("break", "ZeroDivisionError: of mine"),
      ("fault", "the container is gone"),
      ("give up", "'cancelled'"),
    ):
      with (
        self.subTest(words=words),
        self.assertRaisesRegex(EnvironmentFault, reason),
      ):
        async with environment.open(self.task(), seed=0) as session:
          await session.reset()
          await session.step(Message("assistant", words))
    with self.assertRaisesRegex(EnvironmentFault, "the disk is full"):
      async with environment.open(self.task(1), seed=0):
        self.fail("opened")
    self.assertEqual(self.moody.num_open, 0)

  async def test_a_hanging_step_meets_its_deadline(self):
    environment = await self.connect(deadlines=ClientDeadlines(step_s=60.0))
    playing = asyncio.create_task(self.hang(environment))
    await until(lambda: self.moody.num_hanging)
    await Clock().forward(62.0)
    with self.assertRaisesRegex(EnvironmentFault, "interact within 60 s"):
      await playing
    self.assertEqual(self.moody.num_open, 0)

  async def test_a_worker_that_others_fill_is_waited_for(self):
    ours = await self.connect(concurrency=1)
    async with remote.connect(self.url) as theirs:
      async with theirs.open(self.task(), seed=0):
        with mock.patch.object(
          ours._client, "start", wraps=ours._client.start
        ) as start:
          waiting = asyncio.create_task(self.open_and_leave(ours))
          await until(lambda: start.call_count > 2)  # it was refused twice
        self.assertFalse(waiting.done())
      await waiting

  async def test_a_worker_that_stays_full_is_a_fault(self):
    ours = await self.connect(
      concurrency=1, deadlines=ClientDeadlines(place_s=0.05)
    )
    async with (
      remote.connect(self.url) as theirs,
      theirs.open(self.task(), seed=0),
    ):
      with self.assertRaisesRegex(EnvironmentFault, "places are taken"):
        await self.open_and_leave(ours)
    async with ours.open(self.task(), seed=0):
      with self.assertRaisesRegex(EnvironmentFault, "ended within 0.05 s"):
        await self.open_and_leave(ours)

  async def open_and_leave(self, environment, index=0):
    async with environment.open(self.task(index), seed=0):
      pass

  async def test_a_worker_that_is_gone_is_a_fault(self):
    async with serve(self.moody, WorkerConfig(port=0)) as url:
      connection = remote.connect(url)
      environment = await self.enterAsyncContext(connection)
    with (
      self.assertLogs("agentrl_jax.service.remote.environment", "WARNING"),
      self.assertRaisesRegex(EnvironmentFault, "cannot be asked"),
    ):
      await self.open_and_leave(environment)

  async def test_unknown_splits_and_indices_are_refused(self):
    environment = await self.connect()
    with self.assertRaisesRegex(ConfigError, "only train, test"):
      environment.indices("dev")
    with self.assertRaisesRegex(WorkerRefusal, "no index 99"):
      await self.open_and_leave(environment, 99)
    with self.assertRaisesRegex(WorkerRefusal, "no split 'dev'"):
      async with remote.connect(self.url, splits=["dev"]):
        self.fail("connected")

  async def test_a_split_that_was_not_asked_for_on_connection_is_played(self):
    environment = await self.connect()
    with mock.patch.object(
      self.moody, "indices", lambda split: {"std": [0]}.get(split, [7])
    ):
      async with environment.open(Task("moody", "std", 0), seed=0):
        pass
    self.assertEqual(environment.indices("std"), (0,))
    with self.assertRaisesRegex(ConfigError, "no split 'rl' of moody, only"):
      async with environment.open(Task("moody", "rl", 0), seed=0):
        self.fail("opened")

  async def test_other_servers_are_refused(self):
    with self.assertRaisesRegex(EnvironmentFault, "HTTP 404"):
      await self.connect()
      async with remote.connect(self.url + "/nowhere"):
        self.fail("connected")

  def test_deadlines_are_checked(self):
    with self.assertRaisesRegex(ConfigError, "step_s=-1"):
      ClientDeadlines(step_s=-1)
