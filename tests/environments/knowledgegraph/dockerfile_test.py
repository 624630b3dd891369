"""The image with Oxigraph replies as the environment in memory does."""

import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.docker.containers import ContainerSpec, container_worker
from configs.base import defaults
from environments.knowledgegraph import KnowledgeGraph
from tests.env.docker.engine_for_tests import build_or_skip, connect_or_skip
from tests.environments.knowledgegraph.playing import play


@pytest.mark.docker
@pytest.mark.full
class ImageTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.image = build_or_skip(cls.docker, "knowledgegraph")

  async def test_replies_as_in_memory(self):
    local = KnowledgeGraph()
    spec = defaults(ContainerSpec, "containers", image=self.image)
    async with container_worker(self.docker, spec) as remote:
      for index in range(8):
        task = Task("knowledgegraph", "train", index)
        expert = local.expert(task, seed=0, mistakes={})
        steps = await play(remote, task, expert=expert)
        with self.subTest(index=index):
          self.assertEqual(steps, await play(local, task))
          self.assertIs(steps[-1].status, Status.COMPLETED)
          self.assertEqual(steps[-1].reward, 1.0)
