"""The image: Oxigraph inside, nobody's rights, the expert plays through it."""

import unittest

import pytest

from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.docker.containers import ContainerSpec, container_worker
from environments.knowledgegraph import KnowledgeGraph
from tests.env.docker.engine_for_tests import build_or_skip, connect_or_skip


@pytest.mark.docker
@pytest.mark.full
class ImageTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.image = build_or_skip(cls.docker, "knowledgegraph")

  async def test_plays_as_in_memory_here(self):
    here = KnowledgeGraph()
    spec = ContainerSpec(image=self.image)
    async with container_worker(self.docker, spec) as there:
      for index in range(8):
        task = Task("knowledgegraph", "train", index)
        steps = await self.play(there, task, expert_of=here)
        with self.subTest(index=index):
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
