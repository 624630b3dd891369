"""Several controllers share the tasks of one environment."""

import asyncio
import unittest
from unittest import mock

import pytest

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from agentrl_jax.service.controller import client
from agentrl_jax.service.controller.client import ControllerEnvironment
from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from environments.arithmetic.environment import Arithmetic
from tests.service.processes import ServiceProcess

NAME = "arithmetic"


class AddressesTest(unittest.TestCase):
  def test_none_and_the_same_twice_are_refused(self):
    for wrong in ("", "http://a/api,", "http://a/api, http://a/api/"):
      with self.subTest(wrong), self.assertRaisesRegex(ConfigError, "URL"):
        ControllerEnvironment(controller=wrong, name=NAME)


@pytest.mark.slow
class SeveralControllersTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.services = [ServiceProcess().start() for _ in range(2)]
    for service in self.services:
      self.addCleanup(service.stop)
    self.environment = ControllerEnvironment(
      controller=", ".join(service.url for service in self.services), name=NAME
    )

  async def add_worker(self, service, concurrency=2):
    await self.enterAsyncContext(
      serve(
        Arithmetic(),
        WorkerConfig(port=0, controller=service.url),
        HostLimits(concurrency=concurrency),
      )
    )
    await asyncio.to_thread(service.wait_for_workers, 1, NAME)

  async def play(self, number=20):
    """Begins some episodes; returns how many each controller has begun."""

    async def begin(index):
      task = Task(NAME, "test", index)
      async with self.environment.open(task, seed=0) as session:
        await session.reset()

    await asyncio.gather(*(begin(n) for n in range(number)))
    return [
      sum(
        int(float(line.rpartition(" ")[2]))
        for line in service.metrics().splitlines()
        if line.startswith("agentrl_controller_requests_total")
        and 'endpoint="start_sample"' in line
        and 'status="200"' in line
      )
      for service in self.services
      if service.process.is_running
    ]

  async def test_tasks_are_shared(self):
    for service in self.services:
      await self.add_worker(service)
    begun = await self.play()
    self.assertEqual(sum(begun), 20)
    self.assertGreater(min(begun), 3)
    self.assertEqual(list(self.environment.indices("test"))[:2], [0, 1])

  async def test_one_leaves_and_comes_back(self):
    _, second = self.services
    for service in self.services:
      await self.add_worker(service)
    before, _ = await self.play()
    await asyncio.to_thread(second.process.kill)
    (alone,) = await self.play()
    self.assertEqual(alone - before, 20)
    await asyncio.to_thread(second.start)
    await asyncio.to_thread(second.wait_for_workers, 1, NAME)
    await asyncio.sleep(2.5)  # until it is asked again
    _, again = await self.play()
    self.assertGreater(again, 3)

  async def test_one_without_workers_or_places_is_helped(self):
    first, _ = self.services
    await self.add_worker(first)
    self.assertEqual(await self.play(), [20, 0])
    self.enterContext(mock.patch.object(client, "_SPILL_S", 0.2))
    await self.add_worker(self.services[1])
    # Somebody else has all places of the second.
    for index in range(2):
      request = {"name": NAME, "index": index, "split": "test"}
      status, *_ = await asyncio.to_thread(
        self.services[1].post, "start_sample", request
      )
      self.assertEqual(status, 200)
    begun = await self.play()
    self.assertEqual(begun[0], 40)
