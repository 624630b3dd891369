"""Tests that a killed process leaves no container behind."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.service.docker.orphans import (
  OWNER_LABEL,
  current_owner,
  is_gone,
)
from tests.clocks import wait_until
from tests.service.docker.engine_for_tests import DockerTestCase

PROGRAM = """
import asyncio, pathlib, sys
from agentrl_jax.service.docker import containers, engine
from agentrl_jax.service.docker.orphans import current_owner

async def main(image, path):
  spec = containers.ContainerSpec(image=image)
  with engine.connect() as docker:
    async with containers.container_worker(docker, spec):
      pathlib.Path(path).write_text(current_owner())
      await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.docker
class ReaperTest(DockerTestCase):
  environment_name = "arithmetic"

  @pytest.mark.slow
  def test_a_killed_process_leaves_nothing(self):
    label = f"{OWNER_LABEL}={self.owner_of_a_container()}"
    self.assertEqual(len(self.containers(label)), 1)
    os.kill(self.process.pid, signal.SIGKILL)
    self.process.wait()
    wait_until(lambda: not self.containers(label), "the end of the container")

  def owner_of_a_container(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "owner"
    self.process = subprocess.Popen(
      [sys.executable, "-c", PROGRAM, self.image, str(path)]
    )
    self.addCleanup(self.process.kill)

    def is_written():
      self.assertIsNone(self.process.poll())
      return path.exists() and path.read_text()

    wait_until(is_written, "a container")
    return path.read_text()


class OwnerTest(unittest.TestCase):
  def test_this_process_is_there(self):
    self.assertFalse(is_gone(current_owner()))

  def test_an_ended_process_is_gone(self):
    program = (
      "from agentrl_jax.service.docker.orphans import current_owner\n"
      "print(current_owner())"
    )
    ended = subprocess.run(
      [sys.executable, "-c", program],
      capture_output=True,
      text=True,
      check=True,
    )
    self.assertTrue(is_gone(ended.stdout.strip()))

  def test_a_later_process_of_the_same_number_is_another(self):
    host, pid, _ = current_owner().split("/", 2)
    self.assertTrue(is_gone(f"{host}/{pid}/earlier"))

  def test_other_hosts_are_not_judged(self):
    self.assertNotEqual(socket.gethostname(), "another")
    self.assertFalse(is_gone("another/1/earlier"))
