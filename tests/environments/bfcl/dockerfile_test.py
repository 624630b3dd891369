"""Tests of the image: it replies as the code here does."""

import unittest

import pytest

from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.containers import ContainerSpec, container_worker
from environments.bfcl import BFCL
from tests.env.engine_for_tests import build_or_skip, connect_or_skip
from tests.environments.bfcl.packages import play, require_packages


@pytest.mark.docker
@pytest.mark.full
class ImageTest(unittest.IsolatedAsyncioTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    require_packages()
    cls.docker = connect_or_skip(cls)
    cls.image = build_or_skip(cls.docker, "bfcl")

  async def test_image_replies_as_the_local_environment(self):
    local = BFCL()
    async with container_worker(
      self.docker, ContainerSpec(image=self.image)
    ) as remote:
      # Task 9 needs sums, which need the package mpmath.
      for index in (*range(0, 200, 29), 9):
        task = Task("bfcl", "test", index)
        expert = local.expert(task, seed=0, mistakes={})
        _, steps, _ = await play(remote, task, expert)
        expert = local.expert(task, seed=0, mistakes={})
        _, expected, _ = await play(local, task, expert)
        with self.subTest(task=task):
          self.assertEqual(steps, expected)
          self.assertEqual(steps[-1].reward, 1.0)


if __name__ == "__main__":
  unittest.main()
