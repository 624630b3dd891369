"""Machines that are containers of a Docker engine, one per episode.

Where the engine's storage keeps no quota, a watch looks at what the containers
have written, and stops one that wrote too much; no single file may be larger
than what all of them may hold.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import docker
import docker.errors
import requests

from agentrl_jax.env import engine as engines
from agentrl_jax.env.session_container import (
  SESSION_LABEL,
  SessionContainer,
  SessionContainerSpec,
  keeps_quotas,
)
from agentrl_jax.env.session_container_stream import Finished, Terminal
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.os_interaction.machines import docker_view
from environments.os_interaction.machines.files import (
  LOAD_S,
  Budget,
  Changes,
  Tree,
  Unreadable,
  write_archive,
)
from environments.os_interaction.machines.machine import (
  CAPABILITIES,
  HOME,
  MAX_BYTES,
  Engine,
  Limits,
  Machine,
  MachineLost,
)

R = TypeVar("R")

_log = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.5  # between two looks at what was written
USER_FILES = ("/etc/passwd", "/etc/group")
IMAGE = "agentrl_jax/os_interaction"


class EngineSilent(EnvironmentFault):
  """The engine has not answered in time."""


class DockerEngine(Engine):
  """Containers of one image, or of one per image of AgentBench's."""

  def __init__(
    self,
    limits: Limits,
    *,
    image: str = "",
    images: Mapping[str, str] | None = None,
  ):
    require_images(images or {})
    self._limits = limits
    self._images = {"default": image or IMAGE, **(images or {})}
    self._machines: dict[str, DockerMachine] = {}
    self._session = uuid.uuid4().hex
    self._opened = contextlib.ExitStack()
    self._connecting = asyncio.Lock()
    self._client: docker.DockerClient | None = None
    self._quota: bool | None = None
    self._watching: asyncio.Task[None] | None = None

  async def start(self, image: str) -> Machine:
    """A container of its own; waits until it has started."""
    name = self._images.get(image, self._images["default"])
    async with self._connecting:
      client = await engines.to_the_end(self._connected)
      if self._quota is None:
        self._quota = await engines.to_the_end(keeps_quotas, client, name)
    spec = SessionContainerSpec(
      image=name,
      memory_mb=self._limits.memory_mb,
      cpus=self._limits.cpus,
      pids=self._limits.pids,
      disk_mb=self._limits.disk_mb,
      capabilities=CAPABILITIES,
      network=self._limits.network,
      workdir=HOME,
      session=self._session,
      quota=self._quota,
    )
    container = await SessionContainer.start(client, spec)
    try:
      await container.get_ready()
    except BaseException:
      await container.remove()
      raise
    machine = DockerMachine(container, self._forget)
    self._machines[container.name] = machine
    self._watch()
    return machine

  async def close(self) -> None:
    """Ends the watch and lets go of the engine; no machine may be left."""
    if self._watching is not None:
      self._watching.cancel()
      await asyncio.wait([self._watching])
    self._opened.close()
    self._client = None

  def _connected(self) -> docker.DockerClient:
    if self._client is None:
      self._client = self._opened.enter_context(engines.connect())
    return self._client

  def _forget(self, name: str) -> None:
    self._machines.pop(name, None)

  def _watch(self) -> None:
    """Has somebody look after the containers while there are any."""
    if self._quota:
      return
    if self._watching is None or self._watching.done():
      self._watching = asyncio.create_task(
        self._look_after(), name="os_interaction-disk-watch"
      )

  async def _look_after(self) -> None:
    allowed = self._limits.disk_mb << 20
    while self._machines:
      await asyncio.sleep(WATCH_PERIOD_S)
      try:
        found = await engines.to_the_end(self._sizes)
      except (docker.errors.DockerException, OSError) as error:
        _log.warning("cannot see what containers have written: %s", error)
        continue
      for name, size in found.items():
        machine = self._machines.get(name)
        if machine is not None and size > allowed:
          await machine.stop(
            f"The machine was stopped: more than {self._limits.disk_mb} MB "
            "were written."
          )

  def _sizes(self) -> dict[str, int]:
    listed: list[dict[str, Any]] = self._connected().api.containers(
      size=True, filters={"label": f"{SESSION_LABEL}={self._session}"}
    )
    return {c["Names"][0].lstrip("/"): c.get("SizeRw", 0) for c in listed}


class DockerMachine(Machine):
  """One container."""

  def __init__(self, container: SessionContainer, forget: Any):
    self._container = container
    self._forget = forget
    self._why_stopped = ""
    self._is_policys = False

  async def run(self, argv: Sequence[str], *, limit_s: float) -> Finished:
    """Runs a command as root in /root."""
    async with self._blaming():
      return await self._container.run(
        argv, limit_s=limit_s, max_bytes=MAX_BYTES
      )

  async def terminal(self, argv: Sequence[str]) -> Terminal:
    """Runs a command on a terminal."""
    await self._require_users()
    async with self._blaming():
      return await self._container.terminal(argv)

  async def seal(self) -> None:
    """Leaves the policy alone in the container."""
    self._is_policys = True
    await self._container.seal()

  async def restart(self) -> None:
    """Ends every process; files stay."""
    await self.end()
    await self._require_users()
    async with self._blaming():
      await self._container.restart()

  async def _require_users(self) -> None:
    """Stops a machine in which the engine would wait for ever for users.

    It opens the files of users and groups before it starts anything inside,
    without asking whether they are pipes.
    """
    for path in USER_FILES if self._is_policys else ():
      if not await self._read(docker_view.is_plain, path):
        await self.stop(f"The machine was stopped: {path} is no plain file.")
        raise MachineLost(self._why_stopped)

  async def end(self) -> None:
    """Stops the container; the engine still gives its files."""
    async with self._blaming():
      if await self._container.is_running():
        await self._container.kill()

  async def look(self, path: str) -> Tree:
    """Asks the engine for files."""
    return await self._read(docker_view.read_tree, path, Budget())

  async def changes(self) -> Changes:
    """Asks the engine what was written, which takes long for many files."""
    try:
      return await self._read(docker_view.read_changes, Budget())
    except EngineSilent as error:
      raise Unreadable("the engine lists no changes in time") from error

  async def processes(self) -> Mapping[str, str]:
    """Asks the engine, whose host lists them."""
    return await self._read(docker_view.read_processes)

  async def load(self, changes: Changes) -> None:
    """Has the engine unpack them."""
    for path in sorted(changes.removed):
      await self.run(["rm", "-rf", "--", path], limit_s=LOAD_S)
    put = self._container.engine.api.put_archive
    try:
      await engines.to_the_end(
        put, self._container.name, "/", write_archive(changes.files)
      )
    except (docker.errors.DockerException, OSError) as error:
      raise Unreadable(f"its files fit no machine: {error}") from error

  async def _read(self, read: Callable[..., R], *arguments: Any) -> R:
    container = self._container
    async with self._blaming():
      try:
        return await engines.to_the_end(
          read, container.engine, container.name, *arguments
        )
      except requests.exceptions.Timeout as error:
        raise EngineSilent(
          f"the engine does not tell of {container.name}: {error}; look at the "
          "load of its host"
        ) from error
      except (docker.errors.DockerException, OSError) as error:
        raise EnvironmentFault(
          f"the engine does not let {container.name} be looked at: {error}"
        ) from error

  async def stop(self, why: str) -> None:
    """Stops it for good, for what the policy did."""
    self._why_stopped = why
    try:
      await self._container.kill()
    except EnvironmentFault:
      _log.warning("%s cannot be stopped", self._container.name)

  async def remove(self) -> None:
    """Removes the container."""
    self._forget(self._container.name)
    await self._container.remove()

  @contextlib.asynccontextmanager
  async def _blaming(self) -> Any:
    """Tells what failed because the policy had its machine stopped."""
    if self._why_stopped:
      raise MachineLost(self._why_stopped)
    try:
      yield
    except EnvironmentFault as error:
      if self._why_stopped:
        raise MachineLost(self._why_stopped) from error
      raise


def require_images(images: Mapping[str, str]) -> None:
  """Raises `ConfigError` for an image that no task asks for."""
  unknown = sorted(set(images) - {"default", "packages", "ubuntu"})
  if unknown:
    raise ConfigError(
      f"images={dict(images)!r} names {', '.join(unknown)}; tasks ask for "
      "default, packages and ubuntu"
    )
