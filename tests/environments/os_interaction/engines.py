"""The engines of the tests: real ones, or a skip that says what is missing.

The sandbox's files are those of $AGENTRL_OS_ROOTFS, of the folder that the
README's command makes, or else of the image, copied once per image.
"""

import contextlib
import os
import pathlib
import tempfile
import unittest

from agentrl_jax.errors import ConfigError
from environments.os_interaction import OSInteraction
from environments.os_interaction.machines.docker_engine import DockerEngine
from environments.os_interaction.machines.machine import Limits
from environments.os_interaction.machines.sandbox.engine import (
  ROOTFS,
  SandboxEngine,
)
from environments.os_interaction.machines.shell import Shell
from environments.os_interaction.rootfs import from_image
from tests.env.engine_for_tests import build_or_skip, connect_or_skip

NAME = "os_interaction"


class OnDocker:
  """Mix in before the `TestCase`: `make_engine` gives containers."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.docker = connect_or_skip(cls)
    cls.options = {"engine": "docker"}
    cls.options["image"] = build_or_skip(cls.docker, NAME)

  def make_engine(self, **limits):
    return DockerEngine(Limits(**limits), image=self.options["image"])


class InSandbox:
  """Mix in before the `TestCase`: `make_engine` gives sandboxes."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if os.geteuid() != 0:
      raise unittest.SkipTest("the sandbox needs root")
    cls.options = {"engine": "sandbox", "rootfs": rootfs_or_skip(cls)}

  def make_engine(self, **limits):
    return SandboxEngine(Limits(**limits), rootfs=self.options["rootfs"])


class WithMachines:
  """What tests of either engine do with it; mix in before the engine."""

  def make_environment(self, **options):
    environment = OSInteraction(**self.options, **options)
    self.addAsyncCleanup(environment.close)
    return environment

  @contextlib.asynccontextmanager
  async def machine(self, **limits):
    """A machine of an engine of its own."""
    engine = self.make_engine(**limits)
    try:
      machine = await start_or_skip(engine)
      try:
        yield machine
      finally:
        await machine.remove()
    finally:
      await engine.close()

  @contextlib.asynccontextmanager
  async def shell(self, *, limit_s=30.0, **limits):
    """A shell on a machine of its own."""
    async with self.machine(**limits) as machine:
      shell = await Shell.open(machine, limit_s=limit_s)
      try:
        yield shell
      finally:
        await shell.close()


async def start_or_skip(engine):
  """A machine, or a skip where the host lets nobody isolate anything."""
  try:
    return await engine.start("default")
  except ConfigError as error:
    await engine.close()
    raise unittest.SkipTest(str(error)) from error


def rootfs_or_skip(test) -> str:
  """A folder with the image's files."""
  for path in (os.environ.get("AGENTRL_OS_ROOTFS"), ROOTFS):
    if path and pathlib.Path(path).expanduser().is_dir():
      return path
  docker = connect_or_skip(test)
  image = build_or_skip(docker, NAME)
  number = docker.images.get(image).short_id.rpartition(":")[2]
  folder = pathlib.Path(tempfile.gettempdir()) / f"agentrl-os-rootfs-{number}"
  if not folder.is_dir():
    with contextlib.suppress(OSError):  # another process was faster
      from_image(docker, image, folder)
  return str(folder)
