"""A machine that plays environments for a controller elsewhere."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from absl.testing import absltest

from agentrl_jax.controller.service.client import ControllerEnvironment
from agentrl_jax.data.records import Message, Task
from agentrl_jax.train.config import ConfigError
from launch.config.settings import read_settings
from launch.serve_environments import commands
from tests.clocks import wait_until
from tests.controller.processes import ServiceProcess, free_port, running
from tests.launch import tiny

DEADLINE_S = 60.0


def children(pid):
  path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
  return [int(child) for child in path.read_text().split()]


async def play(environment):
  async with environment.open(
    Task("arithmetic", "train", 0), seed=0
  ) as session:
    first = await session.reset()
    await session.step(Message("assistant", "Let me think."))
    return first.messages


class EnvironmentHostTest(absltest.TestCase):
  def test_options_of_the_config_reach_the_workers(self):
    config = tiny.get_config()
    with config.unlocked():
      config.environments.arithmetic.options.num_tasks = 7
    settings = read_settings(config)
    made = list(
      commands(dict(settings.environments), ["arithmetic"], "grpc://c:1", 2)
    )
    self.assertLen(made, 2)
    self.assertIn("--default=num_tasks=7", made[0])
    self.assertIn(
      "--environment=environments.arithmetic.environment:Arithmetic", made[0]
    )
    with self.assertRaisesRegex(ConfigError, "'chess' is not one of arithm"):
      list(commands(dict(settings.environments), ["chess"], "grpc://c:1", 1))

  @pytest.mark.slow
  def test_workers_dial_come_back_and_go_with_their_host(self):
    http, grpc = free_port(), free_port()
    url = f"http://127.0.0.1:{http}/api"
    with running(
      *("-m", "agentrl_jax.controller.service"),
      *("--port", str(http), "--grpc-port", str(grpc)),
    ) as controller:
      controller.wait_for(" on http://")
      host = subprocess.Popen(
        [
          *(sys.executable, "-m", "launch.serve_environments"),
          *("--config=tests/launch/tiny.py", "--environments=arithmetic"),
          *(f"--controller=grpc://127.0.0.1:{grpc}", "--processes=1"),
        ],
        stderr=subprocess.DEVNULL,
      )
      self.addCleanup(host.wait)
      self.addCleanup(host.kill)
      service = ServiceProcess()
      service.url = url
      service.wait_for_workers(1, "arithmetic")
      environment = ControllerEnvironment(controller=url, name="arithmetic")
      asked = asyncio.run(play(environment))
      (worker,) = children(host.pid)
      os.kill(worker, signal.SIGKILL)
      wait_until(lambda: children(host.pid) not in ([], [worker]))
      (worker,) = children(host.pid)
      service.wait_for_workers(1, "arithmetic")
      self.assertEqual(asyncio.run(play(environment)), asked)
      host.terminate()
      self.assertEqual(host.wait(DEADLINE_S), 0)
      self.assertFalse(pathlib.Path(f"/proc/{worker}").exists())
