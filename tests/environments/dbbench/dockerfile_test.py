"""Tests the image: the expert solves tasks on the MariaDB inside."""

import pytest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from configs.base import defaults
from environments.dbbench import DBBench
from tests.service.docker.engine_for_tests import DockerTestCase

VERSION = ToolCall("execute_sql", '{"query": "SELECT VERSION()"}', id="call_0")


@pytest.mark.docker
@pytest.mark.full
class ImageTest(DockerTestCase):
  environment_name = "dbbench"

  async def test_plays_on_mariadb(self):
    local = DBBench()
    spec = defaults(ContainerSpec, "containers", image=self.image)
    async with container_worker(self.docker, spec) as environment:
      for index in range(5):
        task = Task("dbbench", "train", index)
        expert = local.expert(task, seed=0, mistakes={})
        async with environment.open(task, seed=0) as session:
          step = await session.reset()
          version = await session.step(
            Message("assistant", tool_calls=(VERSION,))
          )
          while step.status is Status.RUNNING:
            step = await session.step(expert.answer(step.messages))
        self.assertIn("MariaDB", version.messages[0].content)
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, 1.0))
