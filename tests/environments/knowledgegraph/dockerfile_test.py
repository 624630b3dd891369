"""The image with Oxigraph replies as the environment in memory does."""

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from configs.base import defaults
from environments.knowledgegraph import KnowledgeGraph
from tests.environments.playing import play
from tests.service.docker.engine_for_tests import DockerTestCase


@pytest.mark.docker
@pytest.mark.full
class ImageTest(DockerTestCase):
  environment_name = "knowledgegraph"

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
