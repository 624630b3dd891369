"""Workers in containers, which are always removed.

  with engines.connect() as engine:
    spec = ContainerSpec(image="agentrl_jax/arithmetic")
    async with container_worker(engine, spec) as environment:
      async with environment.open(task, seed=0) as session: ...

The container has no capabilities, writes only to memory, and reaches no network
(see `ContainerSpec.network`). It is removed when the context is left; if this
process is killed, `orphans` removes it.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import docker
import docker.errors
from docker.models.containers import Container

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.keys import Section, key
from agentrl_jax.service import remote
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.orphans import (
  OWNER_LABEL,
  current_owner,
  remove_or_log,
  watch_over_this_process,
)
from agentrl_jax.service.protocol.client import ClientDeadlines, WorkerClient

_log = logging.getLogger(__name__)

INTERNAL = "agentrl_jax-internal"  # a network that reaches nothing outside
PORT = 5021  # of the worker inside its container
NETWORKS = ("internal", "bridge")
_CREATING_THE_NETWORK = threading.Lock()
_POLL_S = 0.1
_LOG_LINES = 20  # lines of a container's log in an error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerSpec(Section, section="containers"):
  """Image, options and limits of a container.

  `network` is "internal" (only the engine's host reaches the container, which
  itself reaches nothing) or "bridge" (Docker's, with a port opened at
  `address`): the choice for Docker Desktop, for engines on other hosts, and for
  tasks that need the network.
  """

  image: str = ""  # its name in the container engine
  concurrency: int = key(64, "sessions at once in one container", at_least=1)
  memory_mb: int = key(2048, "memory of one container", at_least=1)
  cpus: float = key(1.0, "cores of one container", above=0)
  mounts: tuple[str, ...] = key(
    (), "folders mounted read-only, at the same path"
  )
  network: str = key(
    "internal", "or bridge, for Docker engines on other hosts", one_of=NETWORKS
  )
  pids: int = 512  # processes and threads
  scratch_mb: int = 512  # size of /tmp, which counts as memory
  start_timeout_s: float = 120.0  # for the worker to answer
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  capabilities: Sequence[str] = ()  # kept from Docker's default set
  address: str = "127.0.0.1"  # of the engine's host, for network="bridge"

  def __post_init__(self) -> None:
    super().__post_init__()
    for path in self.mounts:
      if not os.path.isabs(path):
        raise ConfigError(f"mounts: {path!r} must be an absolute path")

  def command(self) -> list[str]:
    """Returns the arguments of the image's entry point, the worker."""
    options = [f"--option={k}={v!r}" for k, v in self.options.items()]
    return [f"--concurrency={self.concurrency}", *options]


@contextlib.asynccontextmanager
async def container_worker(
  engine: docker.DockerClient,
  spec: ContainerSpec,
  *,
  deadlines: ClientDeadlines = ClientDeadlines(),  # noqa: B008 - frozen
) -> AsyncIterator[remote.RemoteEnvironment]:
  """Starts a container and connects to its environment.

  Raises `ConfigError` if there is no such image, and `EnvironmentFault` with
  the end of the container's log if its worker does not answer within
  `start_timeout_s`.
  """
  name = f"agentrl-{uuid.uuid4().hex[:12]}"
  try:
    container = await engines.to_the_end(_start, engine, name, spec)
    url = await _until_ready(container, spec)
    async with remote.connect(url, deadlines=deadlines) as environment:
      yield environment
  finally:
    await engines.to_the_end(remove_or_log, engine, name)


def _start(
  engine: docker.DockerClient, name: str, spec: ContainerSpec
) -> Container:
  watch_over_this_process()
  with engines.starting(spec.image):
    container = engine.containers.create(
      spec.image,
      spec.command(),
      name=name,
      labels={OWNER_LABEL: current_owner()},
      mem_limit=f"{spec.memory_mb}m",
      memswap_limit=f"{spec.memory_mb}m",
      nano_cpus=int(spec.cpus * 1e9),
      pids_limit=spec.pids,
      cap_drop=["ALL"],
      cap_add=list(spec.capabilities),
      security_opt=["no-new-privileges"],
      read_only=True,
      tmpfs={"/tmp": f"size={spec.scratch_mb}m,mode=1777"},
      volumes=[f"{path}:{path}:ro" for path in spec.mounts],
      init=True,
      **_network(engine, spec),
    )
    container.start()
    container.reload()
  return container


def _network(
  engine: docker.DockerClient, spec: ContainerSpec
) -> dict[str, Any]:
  """Returns the engine's arguments for the container's network."""
  if spec.network == "bridge":
    return {"ports": {f"{PORT}/tcp": (spec.address, 0)}}  # any free port
  _require_internal_network(engine)
  return {"network": INTERNAL}


def _require_internal_network(engine: docker.DockerClient) -> None:
  """Creates the network unless it is there, once.

  Older engines accept two networks of one name, and then start no container in
  either. Of several, the same one is kept by everybody.
  """
  names = [f"^{INTERNAL}$"]
  with _CREATING_THE_NETWORK:
    if not engine.networks.list(names=names):
      with contextlib.suppress(docker.errors.APIError):  # another was first
        engine.networks.create(
          INTERNAL,
          driver="bridge",
          internal=True,
          # Its containers cannot reach one another either.
          options={"com.docker.network.bridge.enable_icc": "false"},
          check_duplicate=True,
        )
    networks = engine.networks.list(names=names)
    for network in sorted(networks, key=lambda network: str(network.id))[1:]:
      with contextlib.suppress(docker.errors.APIError):  # somebody else did
        network.remove()


async def _until_ready(container: Container, spec: ContainerSpec) -> str:
  """Polls until the worker answers; returns its URL."""
  deadlines = ClientDeadlines(ask_s=1.0)
  given_up_at = time.monotonic() + spec.start_timeout_s
  async with aiohttp.ClientSession() as http:
    while time.monotonic() < given_up_at:
      url = await engines.to_the_end(_url, container, spec)
      try:
        await WorkerClient(http, url, deadlines).concurrency()
      except EnvironmentFault:
        await asyncio.sleep(_POLL_S)
      else:
        return url
  log = await engines.to_the_end(_end_of_log, container)
  raise EnvironmentFault(
    f"the worker in {spec.image} has not answered within "
    f"{spec.start_timeout_s:g} s of the container's start; if the engine runs "
    "on another host or in Docker Desktop, set network='bridge'. The end of "
    f"its log:\n{log}"
  )


def _url(container: Container, spec: ContainerSpec) -> str:
  """Returns the worker's URL; raises if the container has ended."""
  try:
    container.reload()
    address = _address(container, spec)
    if container.status == "running" and address:
      return f"http://{address}/api"
  except (docker.errors.DockerException, OSError) as error:
    raise EnvironmentFault(
      f"the engine has lost the container of {spec.image}: {error}"
    ) from error
  code = container.attrs["State"]["ExitCode"]
  raise EnvironmentFault(
    f"the container of {spec.image} is {container.status} (exit code {code}) "
    f"instead of running; the end of its log:\n{_end_of_log(container)}"
  )


def _address(container: Container, spec: ContainerSpec) -> str | None:
  """Returns the worker's host and port, or None while there are none."""
  if spec.network == "bridge":
    bindings = container.ports.get(f"{PORT}/tcp")
    return f"{spec.address}:{bindings[0]['HostPort']}" if bindings else None
  networks = container.attrs["NetworkSettings"]["Networks"]
  address = networks.get(INTERNAL, {}).get("IPAddress")
  return f"{address}:{PORT}" if address else None


def _end_of_log(container: Container) -> str:
  try:
    return str(container.logs(tail=_LOG_LINES).decode(errors="replace"))
  except (docker.errors.DockerException, OSError) as error:
    return f"(there is no log: {error})"
