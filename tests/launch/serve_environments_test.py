"""A machine that plays environments for a controller elsewhere."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from absl.testing import absltest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.errors import ConfigError
from agentrl_jax.service.controller.client import ControllerEnvironment
from agentrl_jax.service.docker import worker
from agentrl_jax.service.docker.orphans import OWNER_LABEL
from launch.config.settings import read_environments, read_settings
from launch.serve_environments import commands
from tests.clocks import wait_until
from tests.launch import tiny
from tests.service.docker.engine_for_tests import DockerTestCase
from tests.service.processes import ServiceProcess

DEADLINE_S = 60.0


def children(pid):
  path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
  return [int(child) for child in path.read_text().split()]


def start_service(test):
  """Starts a controller, until the test ends."""
  service = ServiceProcess().start()
  test.addCleanup(service.stop)
  return service


def start_host(test, service, *flags):
  """Starts a machine that plays the tiny run's environment for a controller."""
  host = subprocess.Popen(
    [
      sys.executable,
      "-m",
      "launch.serve_environments",
      "--config=tests/launch/tiny.py",
      "--environments=arithmetic",
      f"--controller={service.grpc}",
      *flags,
    ],
    stderr=subprocess.DEVNULL,
  )
  test.addCleanup(host.wait)
  test.addCleanup(host.kill)
  return host


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
    # On the learner's machines alone.
    config.pretrained.path = "/mnt/agentrl/bucket/models/none"
    read = read_environments(config)
    made = list(commands(*read, ["arithmetic"], "grpc://c:1", 2))
    self.assertLen(made, 2)
    self.assertIn("--default=num_tasks=7", made[0])
    self.assertIn(
      "--environment=environments.arithmetic.environment:Arithmetic", made[0]
    )
    with self.assertRaisesRegex(ConfigError, "'chess' is not one of arithm"):
      list(commands(*read, ["chess"], "grpc://c:1", 1))

  def test_containers_belong_to_the_hosts_of_a_controllers_workers(self):
    config = tiny.get_config()
    config.environments.arithmetic.place.update(
      containers=2, controller="http://c:2/api"
    )
    settings = read_settings(config)
    self.assertFalse(settings.environments["arithmetic"].place.owns_containers)
    (made,) = commands(
      settings.environments,
      settings.containers,
      ["arithmetic"],
      "grpc://c:1",
      4,
    )
    self.assertIn("agentrl_jax.service.docker.worker", made)
    self.assertIn("--containers=2", made)
    (spec,) = [word for word in made if word.startswith("--spec=")]
    self.assertEqual(
      worker.read_spec(spec.removeprefix("--spec=")),
      settings.containers["arithmetic"],
    )
    for nonsense in ("image", "{'chess': 1}", "{", "{'image': 3"):
      with self.assertRaisesRegex(ConfigError, "must be a dict"):
        worker.read_spec(nonsense)
    config.environments.arithmetic.place.worker = "http://w:1/api"
    with self.assertRaisesRegex(ConfigError, "two places; set one"):
      read_settings(config)

  @pytest.mark.slow
  def test_workers_dial_come_back_and_go_with_their_host(self):
    service = start_service(self)
    host = start_host(self, service, "--processes=1")
    service.wait_for_workers(1, "arithmetic")
    environment = ControllerEnvironment(
      controller=service.url, name="arithmetic"
    )
    asked = asyncio.run(play(environment))
    (child,) = children(host.pid)
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: children(host.pid) not in ([], [child]))
    (child,) = children(host.pid)
    service.wait_for_workers(1, "arithmetic")
    self.assertEqual(asyncio.run(play(environment)), asked)
    host.terminate()
    self.assertEqual(host.wait(DEADLINE_S), 0)
    self.assertFalse(pathlib.Path(f"/proc/{child}").exists())

  @pytest.mark.slow
  def test_an_episode_that_is_played_as_the_host_ends_is_not_lost(self):
    service = start_service(self)
    host = start_host(self, service, "--processes=1", "--drain_s=60")
    service.wait_for_workers(1, "arithmetic")
    environment = ControllerEnvironment(
      controller=service.url, name="arithmetic"
    )

    async def play_while_it_ends():
      task = Task("arithmetic", "train", 3)
      async with environment.open(task, seed=0) as session:
        step = await session.reset()
        host.terminate()
        await asyncio.sleep(2)
        answer = Message("assistant", "Let me think.")
        while step.status is Status.RUNNING:
          step = await session.step(answer)
        return step.status

    self.assertEqual(
      asyncio.run(play_while_it_ends()), Status.TASK_LIMIT_REACHED
    )
    self.assertEqual(host.wait(DEADLINE_S), 0)


@pytest.mark.docker
class ContainersAtHostsTest(DockerTestCase):
  environment_name = "arithmetic"

  @pytest.mark.slow
  def test_sessions_are_played_in_containers_that_go_with_their_host(self):
    service = start_service(self)
    environment = ControllerEnvironment(
      controller=service.url, name="arithmetic"
    )
    place = "--config.environments.arithmetic.place"
    for end in (signal.SIGTERM, signal.SIGKILL):
      with self.subTest(end=end):
        host = start_host(
          self, service, f"{place}.containers=1", f"{place}.image={self.image}"
        )
        wait_until(lambda h=host: children(h.pid))
        (child,) = children(host.pid)
        wait_until(lambda c=child: self._containers_of(c))
        (first,) = self._containers_of(child)
        service.wait_for_workers(1, "arithmetic")
        asked = asyncio.run(play(environment))
        self.docker.containers.get(first).kill()
        wait_until(
          lambda c=child, f=first: self._containers_of(c) not in ([], [f])
        )
        self.assertEqual(asyncio.run(play(environment)), asked)
        if end == signal.SIGKILL:
          os.kill(child, end)
        host.send_signal(end)
        host.wait(DEADLINE_S)
        wait_until(lambda c=child: not self._containers_of(c))

  def _containers_of(self, pid):
    """Lists the containers that a process has to remove."""
    return [
      container.name
      for container in self.containers(label=OWNER_LABEL)
      if container.labels[OWNER_LABEL].split("/")[1] == str(pid)
    ]
