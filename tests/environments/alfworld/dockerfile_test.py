"""Tests of the image: its real engine replies as the Python engine does."""

import unittest

import pytest

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.containers import ContainerSpec, container_worker
from environments.alfworld import ALFWorld
from tests.env.engine_for_tests import build_or_skip, connect_or_skip


@pytest.mark.docker
@pytest.mark.full
@pytest.mark.timeout(1800)  # the planner is compiled
class ImageTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.image = build_or_skip(cls.docker, "alfworld")

  async def test_real_engine_replies_as_the_python_engine(self):
    local = ALFWorld()
    spec = ContainerSpec(image=self.image)
    async with container_worker(self.docker, spec) as environment:
      for index in range(3):
        task = Task("alfworld", "train", index)
        with self.subTest(index=index):
          self.assertEqual(
            await self.play(environment, task), await self.play(local, task)
          )

  async def play(self, environment, task):
    expert = ALFWorld().expert(task, seed=0, mistakes={})
    async with environment.open(task, seed=0) as session:
      steps = [await session.reset()]
      while steps[-1].status is Status.RUNNING:
        steps.append(await session.step(expert.answer(steps[-1].messages)))
    self.assertEqual(steps[-1].reward, 1.0)
    return [step.messages for step in steps]


if __name__ == "__main__":
  unittest.main()
