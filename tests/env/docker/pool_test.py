"""Tests of the pool: spread sessions and replaced containers."""

import asyncio
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.docker.containers import ContainerSpec
from agentrl_jax.env.docker.orphans import OWNER_LABEL, current_owner
from agentrl_jax.env.docker.pool import container_pool
from agentrl_jax.errors import ConfigError, EnvironmentFault
from configs.base import defaults
from environments.arithmetic.environment import Arithmetic
from tests.clocks import until
from tests.env.docker.engine_for_tests import build_or_skip, connect_or_skip

TASK = Task("arithmetic", "train", 0)
LOGGER = "agentrl_jax.env.docker.pool"


@pytest.mark.docker
class ContainerPoolTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.image = build_or_skip(cls.docker, "arithmetic")

  def setUp(self):
    self.addCleanup(lambda: self.assertEqual(self.ours(), []))

  def ours(self):
    label = f"{OWNER_LABEL}={current_owner()}"
    return self.docker.containers.list(
      all=True, filters={"label": label}, ignore_removed=True
    )

  def pool(self, num_containers, **spec):
    spec = defaults(ContainerSpec, "containers", image=self.image, **spec)
    return container_pool(self.docker, spec, num_containers=num_containers)

  async def ours_later(self):
    containers = await asyncio.to_thread(self.ours)
    return [container.id for container in containers]

  async def play(self, environment):
    expert = Arithmetic().expert(TASK, seed=0, mistakes={})
    async with environment.open(TASK, seed=0) as session:
      step = await session.reset()
      while step.status is Status.RUNNING:
        step = await session.step(expert.answer(step.messages))
    return step.reward

  @pytest.mark.slow
  async def test_a_dead_container_is_replaced(self):
    async with self.pool(1) as environment:
      self.assertEqual(environment.name, "arithmetic")
      self.assertEqual(environment.indices("test"), range(1 << 20))
      (first,) = self.ours()
      with self.assertLogs(LOGGER, "WARNING"):
        with (
          self.assertLogs("agentrl_jax.env.remote.environment", "WARNING"),
          self.assertRaises(EnvironmentFault),
        ):
          async with environment.open(TASK, seed=0) as session:
            await session.reset()
            await asyncio.to_thread(first.kill)
            await session.step(Message("assistant", "hm"))

        async def is_replaced():
          return (await self.ours_later()) not in ([], [first.id])

        await until(is_replaced)
        self.assertEqual(await self.play(environment), 1.0)
      (second,) = self.ours()
      self.assertNotEqual(first.id, second.id)

  async def test_sessions_are_spread(self):
    async with (
      self.pool(2, concurrency=1) as environment,
      environment.open(TASK, seed=0),
      environment.open(TASK, seed=0),  # would wait if it went to the same
    ):
      self.assertEqual(len(self.ours()), 2)

  async def test_the_error_of_a_failed_start_is_raised(self):
    with self.assertRaisesRegex(EnvironmentFault, "it takes"):
      async with self.pool(2, options={"num_taks": 3}):
        self.fail("started")

  async def test_needs_a_container(self):
    with self.assertRaisesRegex(ConfigError, "num_containers=0"):
      async with self.pool(0):
        self.fail("started")
