"""Real engines for tests, or a skip that names what is missing.

The sandbox's root folder is $AGENTRL_OS_ROOTFS, else the folder that the
README's command creates, else a copy of the image.
"""

import contextlib
import os
import pathlib
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from environments.options import MachineLimits
from environments.os_interaction import OSInteraction
from environments.os_interaction.machines.docker_engine import DockerEngine
from environments.os_interaction.machines.sandbox.engine import (
  ROOTFS,
  SandboxEngine,
)
from environments.os_interaction.rootfs import from_image
from tests.service.docker.engine_for_tests import (
  DockerTestCase,
  build_or_skip,
  connect_or_skip,
  in_turn,
)

NAME = "os_interaction"


class WithMachines(unittest.IsolatedAsyncioTestCase):
  """Machines and environments of the engine that `make_engine` starts."""

  def open_engine(self, **limits):
    engine = self.make_engine(**limits)
    self.addAsyncCleanup(engine.close)
    return engine

  def make_environment(self, **options):
    environment = OSInteraction(**self.options, **options)
    self.addAsyncCleanup(environment.close)
    return environment

  @contextlib.asynccontextmanager
  async def machine(self, **limits):
    """Starts a machine on an engine of its own."""
    engine = self.make_engine(**limits)
    try:
      machine = await start_or_skip(engine)
      try:
        yield machine
      finally:
        await machine.remove()
    finally:
      await engine.close()


class OnDocker(WithMachines, DockerTestCase):
  """Starts containers."""

  environment_name = NAME

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.options = {"engine": "docker", "image": cls.image}

  def make_engine(self, **limits):
    return DockerEngine(MachineLimits(**limits), image=self.image)


class InSandbox(WithMachines):
  """Starts sandboxes."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if os.geteuid() != 0:
      raise unittest.SkipTest("the sandbox needs root")
    cls.options = {"engine": "sandbox", "rootfs": rootfs_or_skip(cls)}

  def make_engine(self, **limits):
    return SandboxEngine(MachineLimits(**limits), rootfs=self.options["rootfs"])


async def start_or_skip(engine):
  """Starts a machine, or skips where the host cannot isolate a sandbox."""
  try:
    return await engine.start("default")
  except ConfigError as error:
    await engine.close()
    raise unittest.SkipTest(str(error)) from error


def rootfs_or_skip(test) -> str:
  """Returns the path of a folder with the image's files, or skips."""
  for path in (os.environ.get("AGENTRL_OS_ROOTFS"), ROOTFS):
    if path and pathlib.Path(path).expanduser().is_dir():
      return path
  docker = connect_or_skip(test)
  image = build_or_skip(docker, NAME)
  number = docker.images.get(image).short_id.rpartition(":")[2]
  folder = pathlib.Path(tempfile.gettempdir()) / f"agentrl-os-rootfs-{number}"
  with in_turn("rootfs"):
    if not folder.is_dir():
      from_image(docker, image, folder)
  return str(folder)
