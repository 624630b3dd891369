"""Machines that are containers of a Docker engine, one per episode.

Where the engine's storage has no quotas, a task watches the size of the
containers and stops one that wrote too much; no single file may exceed the
limit of all. Files and processes are read through the engine's API, which runs
nothing of the container, and no further than a `ReadBudget` allows.
"""

import asyncio
import base64
import contextlib
import io
import json
import logging
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import docker
import docker.errors
import requests

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.session_container import (
  SESSION_LABEL,
  SessionContainer,
  SessionContainerSpec,
  keeps_quotas,
)
from agentrl_jax.service.docker.stream import Finished, Terminal
from environments.options import MachineLimits
from environments.os_interaction.machines.files import (
  FOLDER,
  LOAD_TIMEOUT_S,
  BoundedStream,
  Changes,
  File,
  ReadBudget,
  Tree,
  Unreadable,
  is_compared,
  process_name,
  read_archive,
  write_archive,
)
from environments.os_interaction.machines.machine import (
  CAPABILITIES,
  HOME,
  MAX_OUTPUT_BYTES,
  Machine,
  MachineEngine,
  MachineLost,
)

R = TypeVar("R")

_log = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.5
REMOVED_AT_ONCE = 200  # paths of one command, each of at most 4 KiB
USER_FILES = ("/etc/passwd", "/etc/group")
IMAGE = "agentrl_jax/os_interaction"
IMAGE_NAMES = ("default", "packages", "ubuntu")  # AgentBench's

READ_SILENCE_S = 60.0  # without data from the engine
_ERROR_BYTES = 500  # read of the engine's error message
# Read with one request each: they are small, and often changed.
_COMMON_FOLDERS = ("/etc", "/home", "/root", "/usr/local")
# Kinds of changes as the engine numbers them; 0 is a modified path.
_ADDED, _REMOVED = 1, 2
# Go's bits of a file's mode beyond rwx, which the engine's API uses.
_GO_FOLDER = 1 << 31
_GO_TYPES = sum(1 << bit for bit in (19, 21, 24, 25, 26, 27, 31))
_GO_BITS = (
  (1 << 23, stat.S_ISUID),
  (1 << 22, stat.S_ISGID),
  (1 << 20, stat.S_ISVTX),
)
_REFUSED = "The machine was stopped: the system on it does not start any more."
_ROOT_ID = 0  # the API does not tell the owner of a folder of the image


class EngineTimeout(EnvironmentFault):
  """The engine has not answered in time."""


class DockerEngine(MachineEngine):
  """Containers of one image, or of one image per name of AgentBench's."""

  has_images = True

  def __init__(
    self,
    limits: MachineLimits,
    *,
    image: str = "",
    images: Mapping[str, str] | None = None,
  ):
    if unknown := sorted(set(images or {}) - set(IMAGE_NAMES)):
      raise ConfigError(
        f"images={dict(images or {})!r} names {', '.join(unknown)}; tasks ask "
        f"for {', '.join(IMAGE_NAMES[:-1])} and {IMAGE_NAMES[-1]}"
      )
    self._limits = limits
    self._images = {"default": image or IMAGE, **(images or {})}
    self._machines: dict[str, DockerMachine] = {}
    self._session = uuid.uuid4().hex
    self._resources = contextlib.ExitStack()
    self._connecting = asyncio.Lock()
    self._client: docker.DockerClient | None = None
    self._has_quotas: bool | None = None
    self._watching: asyncio.Task[None] | None = None

  async def start(
    self, image: str, limits: MachineLimits | None = None
  ) -> Machine:
    """Waits until the container has started."""
    limits = limits or self._limits
    other = self._images["default"] if image in IMAGE_NAMES else image
    name = self._images.get(image, other)
    async with self._connecting:
      client = await engines.to_the_end(self._connected)
      if self._has_quotas is None:
        self._has_quotas = await engines.to_the_end(keeps_quotas, client, name)
    spec = SessionContainerSpec(
      image=name,
      memory_mb=limits.memory_mb,
      cpus=limits.cpus,
      pids=limits.pids,
      disk_mb=limits.disk_mb,
      capabilities=CAPABILITIES,
      network=limits.network,
      workdir=HOME,
      session=self._session,
      quota=self._has_quotas,
    )
    container = await SessionContainer.start(client, spec)
    try:
      await container.get_ready()
    except BaseException:
      await container.remove()
      raise
    machine = DockerMachine(container, self._forget, limits.disk_mb)
    self._machines[container.name] = machine
    self._start_watching()
    return machine

  async def close(self) -> None:
    """Disconnects from the engine; every machine must be removed before."""
    if self._watching is not None:
      self._watching.cancel()
      await asyncio.wait([self._watching])
    self._resources.close()
    self._client = None

  def _connected(self) -> docker.DockerClient:
    if self._client is None:
      self._client = self._resources.enter_context(engines.connect())
    return self._client

  def _forget(self, name: str) -> None:
    self._machines.pop(name, None)

  def _start_watching(self) -> None:
    if self._has_quotas:
      return
    if self._watching is None or self._watching.done():
      self._watching = asyncio.create_task(
        self._watch_sizes(), name="os_interaction-disk-watch"
      )

  async def _watch_sizes(self) -> None:
    """Stops containers that wrote too much, while there are containers."""
    while self._machines:
      await asyncio.sleep(WATCH_PERIOD_S)
      try:
        sizes = await engines.to_the_end(self._sizes)
      except (docker.errors.DockerException, OSError) as error:
        _log.warning("cannot read the sizes of containers: %s", error)
        continue
      for name, size in sizes.items():
        machine = self._machines.get(name)
        if machine is not None and size > machine.disk_mb << 20:
          await machine.stop(
            f"The machine was stopped: more than {machine.disk_mb} MB "
            "were written."
          )

  def _sizes(self) -> dict[str, int]:
    containers: list[dict[str, Any]] = self._connected().api.containers(
      size=True, filters={"label": f"{SESSION_LABEL}={self._session}"}
    )
    return {
      each["Names"][0].lstrip("/"): each.get("SizeRw", 0) for each in containers
    }


class DockerMachine(Machine):
  """One container.

  - Once `stop` was called, every method but `remove` raises `MachineLost`.
  - After `seal`, nothing starts in it while a user file is no plain file, and
    `MachineLost` means that the engine has the container and cannot do with it
    what was asked: the policy has ended it, or removed what it needs.
  """

  def __init__(
    self,
    container: SessionContainer,
    forget: Callable[[str], None],
    disk_mb: int = MachineLimits.disk_mb,
  ):
    self.disk_mb = disk_mb  # written at most, beyond the image
    self._container = container
    self._forget = forget
    self._stop_reason = ""
    self._is_sealed = False

  async def run(self, argv: Sequence[str], *, limit_s: float) -> Finished:
    async with self._reporting_stop():
      return await self._container.run(
        argv, limit_s=limit_s, max_bytes=MAX_OUTPUT_BYTES
      )

  async def terminal(self, argv: Sequence[str]) -> Terminal:
    await self._require_user_files()
    async with self._reporting_stop():
      return await self._container.terminal(argv)

  async def seal(self) -> None:
    self._is_sealed = True
    await self._container.seal()

  async def restart(self) -> None:
    await self.halt()
    await self._require_user_files()
    async with self._reporting_stop():
      await self._container.restart()

  async def halt(self) -> None:
    async with self._reporting_stop():
      if await self._container.is_running():
        await self._container.kill()

  async def read_tree(self, path: str) -> Tree:
    return await self._read(_read_tree, path, ReadBudget())

  async def read_changes(self) -> Changes:
    """Asks the engine for changed paths, which takes long for many files."""
    try:
      return await self._read(_read_changes, ReadBudget())
    except EngineTimeout as error:
      raise Unreadable("the engine lists no changes in time") from error

  async def read_processes(self) -> Mapping[str, str]:
    """Asks the engine, whose host lists the processes."""
    return await self._read(_read_processes)

  async def apply_changes(self, changes: Changes) -> None:
    await self.seal()  # from now on it is as a policy left its own
    removed = sorted(changes.removed)
    for i in range(0, len(removed), REMOVED_AT_ONCE):
      paths = removed[i : i + REMOVED_AT_ONCE]
      await self.run(["rm", "-rf", "--", *paths], limit_s=LOAD_TIMEOUT_S)
    put_archive = self._container.engine.api.put_archive
    try:
      await engines.to_the_end(
        put_archive, self._container.name, "/", write_archive(changes.files)
      )
    except (docker.errors.DockerException, OSError) as error:
      if not await self._exists():
        raise EnvironmentFault(
          f"the engine has lost {self._container.name}: {error}"
        ) from error
      raise Unreadable(f"the changes fit no machine: {error}") from error

  async def stop(self, reason: str) -> None:
    """Stops the container for good; the policy reads the reason."""
    self._stop_reason = reason
    try:
      await self._container.kill()
    except EnvironmentFault:
      _log.warning("%s cannot be stopped", self._container.name)

  async def remove(self) -> None:
    self._forget(self._container.name)
    await self._container.remove()

  async def _require_user_files(self) -> None:
    """Stops a container in which the engine would hang.

    The engine opens the files of users and groups before it starts a process
    inside, and waits for ever if the policy has replaced one by a pipe.
    """
    for path in USER_FILES if self._is_sealed else ():
      try:
        is_usable = await self._read(_is_plain_or_absent, path)
      except Unreadable:  # a ring of links
        is_usable = False
      if not is_usable:
        await self.stop(f"The machine was stopped: {path} is no plain file.")
        raise MachineLost(self._stop_reason)

  async def _read(self, read: Callable[..., R], *arguments: Any) -> R:
    container = self._container
    async with self._reporting_stop():
      try:
        return await engines.to_the_end(
          read, container.engine, container.name, *arguments
        )
      except requests.exceptions.Timeout as error:
        raise EngineTimeout(
          f"the engine does not answer about {container.name}: {error}; look "
          "at the load of its host"
        ) from error
      except (docker.errors.DockerException, OSError) as error:
        raise EnvironmentFault(
          f"the engine cannot read {container.name}: {error}"
        ) from error

  @contextlib.asynccontextmanager
  async def _reporting_stop(self) -> Any:
    """Turns faults of a stopped container into `MachineLost`."""
    if self._stop_reason:
      raise MachineLost(self._stop_reason)
    try:
      yield
    except EnvironmentFault as error:
      if self._stop_reason:
        raise MachineLost(self._stop_reason) from error
      is_silent = isinstance(error, EngineTimeout)
      if not self._is_sealed or is_silent or not await self._exists():
        raise
      _log.info("a policy has lost its machine: %s", error)
      raise MachineLost(_REFUSED) from error

  async def _exists(self) -> bool:
    """Asks the engine whether it still has the container."""
    try:
      await self._container.is_running()
    except EnvironmentFault:
      return False
    return True


# The functions below block.


def _read_tree(
  engine: docker.DockerClient, name: str, path: str, budget: ReadBudget
) -> Tree:
  params = {"path": path}
  with _request(engine, "GET", name, "archive", params) as (_, stream):
    return {} if stream is None else read_archive(stream, path, budget)


def _read_changes(
  engine: docker.DockerClient, name: str, budget: ReadBudget
) -> Changes:
  with _request(engine, "GET", name, "changes", {}) as (_, stream):
    changes = json.load(stream) if stream is not None else None
  kinds = {str(each["Path"]): each["Kind"] for each in changes or ()}
  kinds = {path: kind for path, kind in kinds.items() if is_compared(path)}
  files: dict[str, File] = {}
  for folder in _COMMON_FOLDERS:
    if any(path.startswith(f"{folder}/") for path in kinds):
      below = _read_tree(engine, name, folder, budget)
      files.update({path: below[path] for path in below if path in kinds})
  for path in sorted(kinds.keys() - files.keys()):
    budget.count_entry()
    if path not in files and kinds[path] != _REMOVED:
      _read_changed(engine, name, path, kinds, files, budget)
  removed = {path for path, kind in kinds.items() if kind == _REMOVED}
  return Changes(files, frozenset(removed))


def _read_changed(
  engine: docker.DockerClient,
  name: str,
  path: str,
  kinds: dict[str, int],
  files: dict[str, File],
  budget: ReadBudget,
) -> None:
  """Reads one path; an added folder with everything below it."""
  if kinds[path] == _ADDED:
    files.update(_read_tree(engine, name, path, budget))
  elif not any(other.startswith(f"{path}/") for other in kinds):
    folder = _read_folder(engine, name, path)
    read = {path: folder} if folder else None
    files.update(read or _read_tree(engine, name, path, budget))


def _read_processes(engine: docker.DockerClient, name: str) -> dict[str, str]:
  """Names living processes, by their pids on the engine's host."""
  api: Any = engine.api
  table = api.top(name, "-eo pid,stat,comm")
  return {
    pid: process_name(command, state)
    for pid, state, command in table["Processes"] or ()
    if not state.startswith(("Z", "X"))
  }


def _is_plain_or_absent(
  engine: docker.DockerClient, name: str, path: str
) -> bool:
  mode = _go_mode(engine, name, path)
  return mode is None or not mode & _GO_TYPES


def _read_folder(
  engine: docker.DockerClient, name: str, path: str
) -> File | None:
  """Reads a folder without its content; None if the path is no folder."""
  mode = _go_mode(engine, name, path)
  if mode is None or not mode & _GO_FOLDER:
    return None
  bits = mode & 0o777 | sum(ours for go, ours in _GO_BITS if mode & go)
  return File(FOLDER, bits, _ROOT_ID, _ROOT_ID)


def _go_mode(engine: docker.DockerClient, name: str, path: str) -> int | None:
  """Reads a path's mode in Go's bits; None if there is nothing."""
  params = {"path": path}
  with _request(engine, "HEAD", name, "archive", params) as (headers, _):
    status = headers.get("X-Docker-Container-Path-Stat")
  if status is None:
    return None
  return int(json.loads(base64.b64decode(status))["mode"])


@contextlib.contextmanager
def _request(
  engine: docker.DockerClient,
  method: str,
  name: str,
  resource: str,
  params: dict[str, str],
) -> Iterator[tuple[Any, Any]]:
  """Yields an answer's headers and body; ({}, None) if the path is absent."""
  api: Any = engine.api
  url = f"{api.base_url}/v{api.api_version}/containers/{name}/{resource}"
  answer = api.request(
    method, url, params=params, stream=True, timeout=READ_SILENCE_S
  )

  def read(count: int) -> bytes:
    data: bytes = answer.raw.read(count, decode_content=True)
    return data

  try:
    if not _path_exists(answer, name):
      yield {}, None
      return
    # A budget of its own: names and padding count here, contents elsewhere.
    yield (answer.headers, io.BufferedReader(BoundedStream(read, ReadBudget())))
  finally:
    answer.close()


def _path_exists(answer: Any, name: str) -> bool:
  """Reads an answer's status; raises for errors other than an absent path.

  A path that leads through a file, or in a ring of links, is absent.
  """
  if answer.status_code < 400:
    return True
  message = answer.raw.read(_ERROR_BYTES, decode_content=True)
  if b"No such container" in message:
    raise docker.errors.NotFound(message.decode(errors="replace"))
  if answer.status_code == 404 or b"not a directory" in message:
    return False
  raise Unreadable(
    f"the engine answers {answer.status_code} for {name}: {message!r}"
  )
