"""Machines with a shell at its first prompt, some of them started ahead.

machines = MachineSource(make_engine(options), num_warm=4, limit_s=30.0)
started = await machines.take("default")
async with machines.fresh("default") as machine:  # without a shell
  ...
await started.remove()
await machines.close()
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from agentrl_jax.env.options import engine_of
from agentrl_jax.env.warm_pool import WarmPool
from agentrl_jax.errors import ConfigError
from environments.options import MachineLimits
from environments.os_interaction.machines.machine import Machine, MachineEngine
from environments.os_interaction.machines.shell import Shell

FreshMachine = Callable[[], contextlib.AbstractAsyncContextManager[Machine]]


@dataclasses.dataclass(frozen=True)
class StartedMachine:
  """A machine with a shell at its first prompt."""

  machine: Machine
  shell: Shell

  async def remove(self) -> None:
    """Ends the shell and the machine."""
    try:
      await self.shell.close()
    finally:
      await self.machine.remove()


class MachineSource:
  """Starts machines of one engine; `num_warm` of the default image ahead."""

  def __init__(
    self,
    engine: MachineEngine,
    *,
    num_warm: int,
    limit_s: float,
    completes: bool = False,
  ):
    self.engine = engine
    self._open_shell = functools.partial(
      Shell.open, limit_s=limit_s, completes=completes
    )
    self._warm = WarmPool(
      functools.partial(self._start, "default"),
      StartedMachine.remove,
      num_warm=num_warm,
    )

  async def take(
    self, image: str, limits: MachineLimits | None = None
  ) -> StartedMachine:
    """Returns a warm machine if the image and the limits are the default."""
    if image == "default" and limits is None:
      return await self._warm.take()
    return await self._start(image, limits)

  @contextlib.asynccontextmanager
  async def fresh(
    self, image: str, limits: MachineLimits | None = None
  ) -> AsyncIterator[Machine]:
    """Starts a machine for a judge."""
    machine = await self.engine.start(image, limits)
    try:
      yield machine
    finally:
      await shielded(machine.remove())

  async def close(self) -> None:
    """Removes the warm machines; the engine is closed by its owner."""
    await self._warm.close()

  async def _start(
    self, image: str, limits: MachineLimits | None = None
  ) -> StartedMachine:
    machine = await self.engine.start(image, limits)
    try:
      shell = await self._open_shell(machine)
    except BaseException:
      await shielded(machine.remove())
      raise
    return StartedMachine(machine, shell)


def make_engine(options: Any) -> MachineEngine:
  """Makes the engine of the options, which are `MachineLimits`, too.

  Raises `ConfigError` for an option of the other engine.
  """
  makers = {
    "docker": functools.partial(_docker_engine, options),
    "sandbox": functools.partial(_sandbox_engine, options),
  }
  engine: MachineEngine = engine_of(options.engine, makers)
  return engine


async def require_engine(fresh: FreshMachine, limit_s: float) -> None:
  """Raises `EnvironmentFault` if not even a fresh machine starts a shell.

  Then the engine is to blame for a lost machine, and not the policy.
  """
  async with fresh() as machine:
    shell = await Shell.open(machine, limit_s=limit_s)
    await shell.close()


async def shielded(removal: Coroutine[Any, Any, None]) -> None:
  """Completes a removal even if the caller is cancelled meanwhile."""
  removing = asyncio.ensure_future(removal)
  try:
    await asyncio.shield(removing)
  except asyncio.CancelledError:
    await asyncio.wait([removing])
    raise


def _docker_engine(options: Any) -> MachineEngine:
  if options.rootfs:
    raise ConfigError(f"rootfs={options.rootfs!r} needs engine='sandbox'")
  # Imported here because only this engine needs the package `docker`.
  from environments.os_interaction.machines.docker_engine import DockerEngine

  images = getattr(options, "images", None)
  return DockerEngine(options, image=options.image, images=images)


def _sandbox_engine(options: Any) -> MachineEngine:
  if options.image or getattr(options, "images", None):
    raise ConfigError("image and images need engine='docker'")
  # Imported here because the module needs Linux.
  from environments.os_interaction.machines.sandbox.engine import SandboxEngine

  return SandboxEngine(options, rootfs=options.rootfs)
