"""A process that is killed leaves no container behind."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import pytest

from agentrl_jax.env.containers import OWNER_LABEL
from tests.env.engine_for_tests import build_or_skip, connect_or_skip

PROGRAM = """
import asyncio, pathlib, sys
from agentrl_jax.env import containers, engine
from agentrl_jax.env.owner import current_owner

async def main(image, path):
  spec = containers.ContainerSpec(image=image)
  with engine.connect() as docker:
    async with containers.container_worker(docker, spec):
      pathlib.Path(path).write_text(current_owner())
      await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""
GONE_S = 60.0


@pytest.mark.docker
class ReaperTest(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.image = build_or_skip(cls.docker, "arithmetic")

  def test_a_killed_process_leaves_nothing(self):
    owner = self.owner_of_a_container()
    self.assertEqual(len(self.containers(owner)), 1)
    os.kill(self.process.pid, signal.SIGKILL)
    self.process.wait()
    given_up_at = time.monotonic() + GONE_S
    while self.containers(owner):
      self.assertLess(time.monotonic(), given_up_at, "it is still there")
      time.sleep(0.2)

  def owner_of_a_container(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "owner"
    self.process = subprocess.Popen(
      [sys.executable, "-c", PROGRAM, self.image, str(path)]
    )
    self.addCleanup(self.process.kill)
    given_up_at = time.monotonic() + GONE_S
    while not path.exists():
      self.assertLess(time.monotonic(), given_up_at, "no container came")
      self.assertIsNone(self.process.poll())
      time.sleep(0.1)
    return path.read_text()

  def containers(self, owner):
    label = f"{OWNER_LABEL}={owner}"
    return self.docker.containers.list(
      all=True, filters={"label": label}, ignore_removed=True
    )


if __name__ == "__main__":
  unittest.main()
