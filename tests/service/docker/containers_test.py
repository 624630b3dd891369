"""Tests of workers in real containers: episodes, deaths, and removal."""

import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.env.loading import parse_options
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker import containers
from agentrl_jax.service.docker.containers import (
  PORT,
  ContainerSpec,
  container_worker,
)
from agentrl_jax.service.docker.orphans import remove_orphans
from agentrl_jax.service.protocol.client import ClientDeadlines
from environments.arithmetic.environment import Arithmetic
from tests.clocks import Clock, until
from tests.environments.playing import play
from tests.service.docker.engine_for_tests import DockerTestCase

TASK = Task("arithmetic", "train", 0)


class _ContainerTest(DockerTestCase):
  environment_name = "arithmetic"

  def setUp(self):
    self.addCleanup(self.require_nothing_left)  # first in, so last out

  def require_nothing_left(self):
    self.assertEqual(self.containers(), [], "a container is left behind")

  def worker(self, *, deadlines=None, image=None, **spec):
    return container_worker(
      self.docker,
      ContainerSpec(image=image or self.image, **spec),
      deadlines=deadlines or ClientDeadlines(),
    )


@pytest.mark.slow
@pytest.mark.docker
class ContainerContractTest(SessionContract, _ContainerTest):
  """Plays the whole contract through a container."""

  async def asyncSetUp(self):
    self.environment = await self.enterAsyncContext(self.worker())
    self.environment.expert = Arithmetic().expert

  def make_environment(self):
    return self.environment


@pytest.mark.docker
class ContainerWorkerTest(_ContainerTest):
  async def test_plays_an_episode_within_its_limits(self):
    local = Arithmetic(num_tasks=3)
    async with self.worker(
      options={"num_tasks": 3}, memory_mb=256, cpus=0.5, pids=64
    ) as environment:
      self.assertEqual(environment.indices("train"), range(3))
      expert = local.expert(TASK, seed=0, mistakes={})
      *_, last = await play(environment, TASK, expert=expert)
      (container,) = self.containers()
      limits = container.attrs["HostConfig"]
      _, user = container.exec_run("id -u")
    self.assertEqual((last.status, last.reward), (Status.COMPLETED, 1.0))
    self.assertEqual(user.strip(), b"65534")
    wanted = {
      "Memory": 256 << 20,
      "NanoCpus": 5 * 10**8,
      "PidsLimit": 64,
      "CapDrop": ["ALL"],
    }
    self.assertEqual({name: limits[name] for name in wanted}, wanted)

  async def test_writes_only_to_its_scratch(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    os.chmod(folder, 0o777)
    (pathlib.Path(folder) / "tasks").write_text("seen")
    async with self.worker(scratch_mb=16, mounts=(folder,)):
      words = await self.inside(
        f"print(open({folder + '/tasks'!r}).read())\n"
        f"for path in ('/app/x', '/x', '/tmp/x', {folder + '/new'!r}):\n"
        "  try: print(open(path, 'wb').write(b'.' * (1 << 20)))\n"
        "  except OSError as error: print(error.strerror)\n"
        "try: open('/tmp/y', 'wb').write(b'.' * (17 << 20))\n"
        "except OSError as error: print(error.strerror)\n"
      )
    refused = "Read-only file system"
    self.assertEqual(
      words,
      ["seen", refused, refused, "1048576", refused, "No space left on device"],
    )

  @pytest.mark.slow
  async def test_reaches_no_network_unless_asked(self):
    async with self.worker(network="bridge") as environment:
      (outside,) = self.containers()
      address = outside.attrs["NetworkSettings"]["IPAddress"]
      program = (
        "from socket import create_connection as connect\n"
        "try:\n"
        f"  connect(({address!r}, {PORT}), timeout=2).close()\n"
        "  print('through')\n"
        "except OSError as error: print(error)\n"
      )
      async with self.worker():
        (inside,) = {*self.containers()} - {outside}
        words = await self.run_in(inside, program)
        self.assertEqual(words, ["timed out"])
      async with self.worker(network="bridge"):
        (inside,) = {*self.containers()} - {outside}
        self.assertEqual(await self.run_in(inside, program), ["through"])
      async with environment.open(TASK, seed=0) as session:
        await session.reset()

  async def test_two_networks_of_one_name_are_no_obstacle(self):
    """Two processes that start on a new machine may each make one."""
    if self.docker.version()["ApiVersion"] >= "1.44":
      self.skipTest("this engine refuses a second network of a name")
    for _ in range(2):
      self.docker.networks.create(
        containers.INTERNAL,
        internal=True,
        # As ours has it: other tests may be the ones who use it.
        options={"com.docker.network.bridge.enable_icc": "false"},
      )
    async with self.worker() as environment:
      self.assertIn(0, environment.indices("train"))

  async def inside(self, program):
    """Returns the lines that a program prints in the only container."""
    (container,) = self.containers()
    return await self.run_in(container, program)

  async def run_in(self, container, program):
    _, words = await asyncio.to_thread(
      container.exec_run, ["python3", "-c", program]
    )
    return words.decode().splitlines()

  @pytest.mark.slow
  async def test_a_container_killed_in_mid_episode_is_a_fault(self):
    async with self.worker() as environment:
      with (
        self.assertLogs("agentrl_jax.service.remote.environment", "WARNING"),
        self.assertRaisesRegex(EnvironmentFault, "cannot be asked"),
      ):
        async with environment.open(TASK, seed=0) as session:
          await session.reset()
          (container,) = self.containers()
          await asyncio.to_thread(container.kill)
          await session.step(Message("assistant", "hm"))

  @pytest.mark.slow
  async def test_a_container_that_hangs_meets_the_deadline(self):
    deadlines = ClientDeadlines(step_s=60.0, ask_s=3)
    async with self.worker(deadlines=deadlines) as environment:
      with (
        self.assertLogs("agentrl_jax.service.remote.environment", "WARNING"),
        self.assertRaisesRegex(EnvironmentFault, "interact within 60 s"),
      ):
        async with environment.open(TASK, seed=0) as session:
          await session.reset()
          (container,) = self.containers()
          await asyncio.to_thread(container.pause)
          step = asyncio.create_task(session.step(Message("assistant", "hm")))
          await Clock().forward(62.0)
          await step

  async def test_being_cancelled_while_it_starts_leaves_nothing(self):
    with self.assertRaises(TimeoutError):
      async with asyncio.timeout(0.05):
        async with self.worker():
          self.fail("started")

  async def test_an_error_inside_leaves_nothing(self):
    with self.assertRaises(ZeroDivisionError):
      async with self.worker():
        raise ZeroDivisionError

  @pytest.mark.slow
  async def test_the_fault_of_a_worker_that_does_not_start_has_its_log(self):
    with self.assertRaisesRegex(EnvironmentFault, "(?s)exit.*it takes"):
      async with self.worker(options={"num_taks": 3}):
        self.fail("started")

  async def test_a_worker_that_does_not_answer_meets_the_deadline(self):
    with self.assertRaisesRegex(EnvironmentFault, "within 0.3 s"):
      async with self.worker(start_timeout_s=0.3, cpus=0.05):
        self.fail("started")

  @pytest.mark.slow
  async def test_a_container_removed_by_another_is_a_fault(self):
    starting = asyncio.create_task(self.start(cpus=0.05))
    await until(lambda: asyncio.to_thread(self.containers))
    (started,) = await asyncio.to_thread(self.containers)
    await asyncio.to_thread(started.remove, force=True)
    with self.assertRaisesRegex(EnvironmentFault, "has lost|cannot start|inst"):
      await starting

  async def start(self, **spec):
    async with self.worker(**spec):
      self.fail("started")

  async def test_a_missing_image_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "no image 'agentrl_jax/nowhere'"):
      async with self.worker(image="agentrl_jax/nowhere"):
        self.fail("started")

  @pytest.mark.slow
  def test_orphans_are_removed_and_nothing_else(self):
    program = (
      "import os\n"
      "from agentrl_jax.service.docker import containers, engine\n"
      # Its watching process would remove the container, and sometimes first.
      "containers.watch_over_this_process = lambda: None\n"
      "with engine.connect() as docker:\n"
      "  spec = containers.ContainerSpec("
      f"image={self.image!r})\n"
      "  containers._start(docker, f'agentrl-orphan-{os.getpid()}', spec)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    mine = containers._start(
      self.docker, "agentrl-not-an-orphan", ContainerSpec(image=self.image)
    )
    try:
      removed = remove_orphans(self.docker)
      self.assertTrue(any("agentrl-orphan" in name for name in removed))
      self.assertEqual([c.name for c in self.containers()], [mine.name])
      self.assertEqual(remove_orphans(self.docker), [])
    finally:
      mine.remove(force=True)


class ContainerSpecTest(unittest.TestCase):
  def test_settings_are_checked(self):
    with self.assertRaisesRegex(ConfigError, "'data' must be an absolute"):
      ContainerSpec(image="i", mounts=("data",))

  def test_options_arrive_as_they_were(self):
    options = {"a": (4, 8), "b": "10", "c": None, "d": "x y", "e": True}
    spec = ContainerSpec(image="i", options=options)
    pairs = [w.removeprefix("--option=") for w in spec.command()[1:]]
    self.assertEqual(parse_options(pairs), options)
