"""The images of the environments play whole episodes, as their code does."""

import unittest

import pytest

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.docker.containers import ContainerSpec, container_worker
from agentrl_jax.env.loading import load_environment
from tests.env.docker.engine_for_tests import build_or_skip, connect_or_skip

START_S = 120.0  # MariaDB sets up its files first


@pytest.mark.docker
@pytest.mark.slow
class ImagesTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)

  async def test_dbbench_on_mariadb(self):
    await self.plays_as_here(
      "dbbench", "environments.dbbench:DBBench", engine="mariadb"
    )

  async def test_webshop(self):
    await self.plays_as_here("webshop", "environments.webshop:WebShop")

  async def plays_as_here(self, name, target, **options):
    image = build_or_skip(self.docker, name)
    here = load_environment(target)
    spec = ContainerSpec(image=image, options=options, start_timeout_s=START_S)
    async with container_worker(self.docker, spec) as there:
      self.assertEqual(there.name, here.name)
      for split in ("train", "test"):
        self.assertEqual(there.indices(split), here.indices(split))
        for index in here.indices(split)[:3]:
          task = Task(name, split, index)
          with self.subTest(task=task):
            steps = await self.play(there, task, expert_of=here)
            self.assertEqual(steps, await self.play(here, task, expert_of=here))
            self.assertIs(steps[-1].status, Status.COMPLETED)
            self.assertEqual(steps[-1].reward, 1.0)

  async def play(self, environment, task, *, expert_of):
    expert = expert_of.expert(task, seed=0, mistakes={})
    async with environment.open(task, seed=0) as session:
      steps = [await session.reset()]
      while steps[-1].status is Status.RUNNING:
        steps.append(await session.step(expert.answer(steps[-1].messages)))
    return steps


if __name__ == "__main__":
  unittest.main()
