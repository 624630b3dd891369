"""Tests that images play whole episodes as the local environments do."""

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.loading import load_environment
from agentrl_jax.service.docker.containers import (
  ContainerSpec,
  container_worker,
)
from configs.base import defaults
from tests.environments.bfcl.packages import require_packages
from tests.environments.playing import play
from tests.service.docker.engine_for_tests import (
  DockerTestCase,
  build_or_skip,
)

START_S = 120.0  # MariaDB creates its files first


@pytest.mark.docker
class ImagesTest(DockerTestCase):
  @pytest.mark.slow
  async def test_dbbench_on_mariadb(self):
    await self.assert_plays_as_local(
      "dbbench", "environments.dbbench:DBBench", engine="mariadb"
    )

  @pytest.mark.slow
  async def test_webshop(self):
    await self.assert_plays_as_local("webshop", "environments.webshop:WebShop")

  @pytest.mark.full
  @pytest.mark.timeout(1800)  # the build compiles the planner
  async def test_alfworld_on_textworld(self):
    await self.assert_plays_as_local(
      "alfworld", "environments.alfworld:ALFWorld"
    )

  @pytest.mark.full
  async def test_bfcl(self):
    require_packages()
    # Task 9 of test needs sums, which need the package mpmath.
    indices = (*range(0, 200, 29), 9)
    await self.assert_plays_as_local(
      "bfcl", "environments.bfcl:BFCL", indices=indices
    )

  async def assert_plays_as_local(
    self, name, target, *, indices=range(3), **options
  ):
    image = build_or_skip(self.docker, name)
    local = load_environment(target)
    spec = defaults(
      ContainerSpec,
      "containers",
      image=image,
      options=options,
      start_timeout_s=START_S,
    )
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
