"""Refusals of the engine are the policy's doing only where it can be."""

import types
import unittest

from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.docker.stream import Finished
from environments.os_interaction.machines.docker_engine import (
  REMOVED_AT_ONCE,
  DockerMachine,
  EngineTimeout,
)
from environments.os_interaction.machines.files import Changes, Unreadable
from environments.os_interaction.machines.machine import MachineLost


class FakeContainer:
  """A container of which the engine refuses commands, and maybe knows none."""

  name = "box"

  def __init__(self, refusal=None, *, exists=True, packing=None):
    self.refusal = refusal
    self.exists = exists
    self.commands = []
    self.engine = types.SimpleNamespace(
      api=types.SimpleNamespace(put_archive=self._put_archive)
    )
    self._packing = packing

  async def run(self, argv, **limits):
    if self.refusal is not None:
      raise self.refusal
    self.commands.append(argv)
    return Finished(0, b"", b"")

  async def is_running(self):
    if not self.exists:
      raise EnvironmentFault("no such container")
    return False

  async def seal(self):
    pass

  def _put_archive(self, *arguments):
    if self._packing is not None:
      raise self._packing


async def run_sealed(container):
  machine = DockerMachine(container, lambda name: None)
  await machine.seal()
  return await machine.run(["true"], limit_s=1.0)


class RefusalsTest(unittest.IsolatedAsyncioTestCase):
  async def test_a_container_that_the_policy_had_is_lost(self):
    with self.assertRaises(MachineLost):
      await run_sealed(FakeContainer(EnvironmentFault("409 is not running")))

  async def test_an_engine_without_the_container_is_a_fault(self):
    with self.assertRaises(EnvironmentFault):
      await run_sealed(FakeContainer(EnvironmentFault("404"), exists=False))

  async def test_a_silent_engine_is_a_fault(self):
    with self.assertRaises(EngineTimeout):
      await run_sealed(FakeContainer(EngineTimeout("no answer")))

  async def test_a_container_that_no_policy_had_is_a_fault(self):
    machine = DockerMachine(
      FakeContainer(EnvironmentFault("409")), lambda name: None
    )
    with self.assertRaises(EnvironmentFault):
      await machine.run(["true"], limit_s=1.0)

  async def test_changes_that_do_not_fit_are_told_from_a_lost_engine(self):
    for exists, error in ((True, Unreadable), (False, EnvironmentFault)):
      container = FakeContainer(exists=exists, packing=OSError("refused"))
      machine = DockerMachine(container, lambda name: None)
      with self.subTest(exists=exists), self.assertRaises(error):
        await machine.apply_changes(Changes({}))

  async def test_many_removed_paths_are_few_commands(self):
    removed = frozenset(f"/{i}" for i in range(2 * REMOVED_AT_ONCE + 1))
    container = FakeContainer()
    machine = DockerMachine(container, lambda name: None)
    await machine.apply_changes(Changes({}, removed))
    self.assertEqual(len(container.commands), 3)
    paths = [path for argv in container.commands for path in argv[3:]]
    self.assertEqual(paths, sorted(removed))
