"""Tests that images play whole episodes as the local environments do."""

import pathlib
import re
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.loading import find_class, load_environment
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from tests.environments.bfcl.packages import require_packages
from tests.environments.playing import play
from tests.service.docker.engine_for_tests import DockerTestCase, build_or_skip

FOLDER = pathlib.Path(__file__).parents[2] / "environments"
VERSION = ToolCall("execute_sql", '{"query": "SELECT VERSION()"}', id="c")
START_S = 120.0  # MariaDB creates its files first


class DockerfilesTest(unittest.TestCase):
  def test_workers_play_the_environment_of_their_folder(self):
    for path in FOLDER.glob("*/Dockerfile"):
      target = re.search(r'"--environment", "(.*?)"', path.read_text())
      if target is not None:
        with self.subTest(path.parent.name):
          self.assertEqual(find_class(target[1]).name, path.parent.name)


@pytest.mark.docker
class ImagesTest(DockerTestCase):
  @pytest.mark.slow
  async def test_dbbench_on_mariadb(self):
    image = await self.assert_plays_as_local(
      "dbbench", "environments.dbbench:DBBench"
    )
    spec = ContainerSpec(image=image, start_timeout_s=START_S)
    task = Task("dbbench", "train", 0)
    async with (
      container_worker(self.docker, spec) as remote,
      remote.open(task, seed=0) as session,
    ):
      await session.reset()
      step = await session.step(Message("assistant", tool_calls=(VERSION,)))
    self.assertIn("MariaDB", step.messages[0].content)

  @pytest.mark.full
  async def test_knowledgegraph(self):
    await self.assert_plays_as_local(
      "knowledgegraph", "environments.knowledgegraph:KnowledgeGraph"
    )

  @pytest.mark.slow
  async def test_webshop(self):
    await self.assert_plays_as_local("webshop", "environments.webshop:WebShop")

  @pytest.mark.full
  async def test_bfcl(self):
    require_packages()
    # Task 9 of test needs sums, which need the package mpmath.
    indices = (*range(0, 200, 29), 9)
    await self.assert_plays_as_local(
      "bfcl", "environments.bfcl:BFCL", indices=indices
    )

  async def assert_plays_as_local(self, name, target, *, indices=range(3)):
    image = build_or_skip(self.docker, name)
    local = load_environment(target)
    spec = ContainerSpec(image=image, start_timeout_s=START_S)
    async with container_worker(self.docker, spec) as remote:
      self.assertEqual(remote.name, local.name)
      for split in ("train", "test"):
        self.assertEqual(remote.indices(split), local.indices(split))
        for index in indices:
          task = Task(name, split, local.indices(split)[index])
          with self.subTest(task=task):
            expert = local.expert(task, seed=0, mistakes={})
            steps = await play(remote, task, expert=expert)
            self.assertEqual(steps, await play(local, task))
            self.assertIs(steps[-1].status, Status.COMPLETED)
            self.assertEqual(steps[-1].reward, 1.0)
    return image
