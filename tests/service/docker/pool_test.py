"""Tests of the pool: spread sessions and replaced containers."""

import asyncio

import pytest

from agentrl_jax.data.records import Message, Task
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.service.docker.pool import container_pool
from environments.arithmetic.environment import Arithmetic
from tests.clocks import until
from tests.environments.playing import play
from tests.service.docker.engine_for_tests import DockerTestCase

TASK = Task("arithmetic", "train", 0)
LOGGER = "agentrl_jax.service.docker.pool"


@pytest.mark.docker
class ContainerPoolTest(DockerTestCase):
  environment_name = "arithmetic"

  def setUp(self):
    self.addCleanup(lambda: self.assertEqual(self.containers(), []))

  def pool(self, num_containers, **spec):
    spec = ContainerSpec(image=self.image, **spec)
    return container_pool(self.docker, spec, num_containers=num_containers)

  async def container_ids(self):
    containers = await asyncio.to_thread(self.containers)
    return [container.id for container in containers]

  @pytest.mark.slow
  async def test_a_dead_container_is_replaced(self):
    async with self.pool(1) as environment:
      self.assertEqual(environment.name, "arithmetic")
      self.assertEqual(environment.indices("test"), range(1 << 20))
      (first,) = self.containers()
      with self.assertLogs(LOGGER, "WARNING"):
        with (
          self.assertLogs("agentrl_jax.service.remote.environment", "WARNING"),
          self.assertRaises(EnvironmentFault),
        ):
          async with environment.open(TASK, seed=0) as session:
            await session.reset()
            await asyncio.to_thread(first.kill)
            await session.step(Message("assistant", "hm"))

        async def is_replaced():
          return (await self.container_ids()) not in ([], [first.id])

        await until(is_replaced)
        expert = Arithmetic().expert(TASK, seed=0, mistakes={})
        *_, last = await play(environment, TASK, expert=expert)
        self.assertEqual(last.reward, 1.0)
      (second,) = self.containers()
      self.assertNotEqual(first.id, second.id)

  @pytest.mark.slow
  async def test_sessions_are_spread(self):
    async with (
      self.pool(2, concurrency=1) as environment,
      environment.open(TASK, seed=0),
      environment.open(TASK, seed=0),  # would wait if it went to the same
    ):
      self.assertEqual(len(self.containers()), 2)

  @pytest.mark.slow
  async def test_the_error_of_a_failed_start_is_raised(self):
    with self.assertRaisesRegex(EnvironmentFault, "it takes"):
      async with self.pool(2, options={"num_taks": 3}):
        self.fail("started")

  async def test_needs_a_container(self):
    with self.assertRaisesRegex(ConfigError, "num_containers=0"):
      async with self.pool(0):
        self.fail("started")
