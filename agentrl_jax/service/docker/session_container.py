"""A container per session: started, used by commands, and removed.

  spec = SessionContainerSpec(image="agentrl_jax/os_interaction")
  container = await SessionContainer.start(engine, spec)
  try:
    done = await container.run(["ls", "/"], limit_s=30.0)
    terminal = await container.terminal(["/bin/bash", "--login"])
    ...
  finally:
    await container.remove()

The container has nothing of the host, and no network unless asked for. It has
its owner's label, by which `orphans` removes containers of killed processes.
"""

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any

import docker
import docker.errors
from docker.types import Ulimit

from agentrl_jax.env.options import require_positive
from agentrl_jax.errors import EnvironmentFault
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.orphans import (
  OWNER_LABEL,
  current_owner,
  watch_over_this_process,
)
from agentrl_jax.service.docker.stream import (
  ExecStream,
  Finished,
  Terminal,
  read_to_the_end,
)

OPEN_FILES = (1024, 4096)  # of each process, soft and hard
SESSION_LABEL = "agentrl_jax.session"  # for an environment's own checks
# The first process sleeps. A signal without a handler cannot kill a namespace's
# first process from inside, and this one has no handlers. It ignores SIGCHLD,
# so that the kernel reaps orphans; a shell cannot do this, so it is Perl, which
# every Debian has. It looks like Docker's init with its child, as in AgentRL.
_PERL = "/usr/bin/perl"  # by its path, as a session may add another to PATH
_IDLE = (
  '$SIG{CHLD} = "IGNORE"; fork or exec "/bin/sleep", "infinity"; '
  '$0 = "/sbin/docker-init -- /bin/sleep infinity"; sleep while 1'
)
_FIRST_PROCESS = (
  "/bin/sh",
  "-c",
  f"[ -x {_PERL} ] && exec {_PERL} -e '{_IDLE}'; exec /bin/sleep infinity",
)
_WAITING = (
  "bash",
  "-c",
  'IFS= read -r -d "" script; exec bash -c "$script" </dev/null',
)
_MIB = 1 << 20
# What is below /proc besides processes is the host's, down to the modes of the
# files, and a container's root could change them. Docker protects the first
# five; names that a kernel does not have are left out.
_OF_THE_HOST = """
  bus fs irq sys sysrq-trigger acpi asound driver dynamic_debug pressure scsi
  sysvipc tty allocinfo bootconfig buddyinfo cgroups cmdline config.gz consoles
  cpuinfo crypto devices diskstats dma execdomains fb filesystems interrupts
  iomem ioports kallsyms key-users kmsg kpagecgroup kpagecount kpageflags
  loadavg locks mdstat meminfo misc modules mtd mtrr pagetypeinfo partitions
  schedstat slabinfo softirqs stat swaps uptime version version_signature
  vmallocinfo vmstat zoneinfo
"""
_READ_ONLY = [f"/proc/{name}" for name in _OF_THE_HOST.split()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionContainerSpec:
  """Image and limits of a container.

  `disk_mb` bounds each file, and the whole writable layer where the engine's
  storage supports quotas; elsewhere the environment has to watch the layer.
  """

  image: str
  memory_mb: int = 1024  # swap included
  cpus: float = 2.0
  pids: int = 256
  disk_mb: int = 1024
  capabilities: Sequence[str] = ()  # kept from Docker's default set
  network: bool = False
  workdir: str = "/root"
  session: str = ""  # value of SESSION_LABEL
  quota: bool = False  # whether the storage bounds disk_mb; see `keeps_quotas`

  def __post_init__(self) -> None:
    require_positive(
      memory_mb=self.memory_mb,
      cpus=self.cpus,
      pids=self.pids,
      disk_mb=self.disk_mb,
    )


class SessionContainer:
  """A running container. `start` makes it; `remove` it always."""

  def __init__(self, engine: docker.DockerClient, name: str, image: str):
    self.name = name
    self.engine = engine
    self._image = image
    self._waiting: tuple[str, ExecStream] | None = None

  @classmethod
  async def start(
    cls, engine: docker.DockerClient, spec: SessionContainerSpec
  ) -> "SessionContainer":
    """Creates and starts a container; a cancellation removes it.

    Raises `ConfigError` if there is no such image, `EnvironmentFault` if the
    engine does not start it.
    """
    container = cls(engine, f"agentrl-{uuid.uuid4().hex[:12]}", spec.image)
    try:
      await engines.to_the_end(_create, engine, container.name, spec)
    except BaseException:
      await container.remove()
      raise
    return container

  async def run(
    self, argv: Sequence[str], *, limit_s: float, max_bytes: int = _MIB
  ) -> Finished:
    """Runs a command without a terminal, for at most `limit_s`.

    The first `max_bytes` of each stream are kept. A command that takes too long
    continues in the container; `restart` ends it.
    """
    number, stream = self._handed_over(argv) or await self._exec(
      argv, tty=False
    )
    try:
      out, err, ended = await read_to_the_end(
        stream, limit_s=limit_s, max_bytes=max_bytes
      )
    finally:
      await stream.close()
    if not ended:
      return Finished(None, out, err)
    state = await self._ask(self.engine.api.exec_inspect, number)
    return Finished(state["ExitCode"], out, err)

  async def get_ready(self) -> None:
    """Starts a bash before the first script, as starting takes a while.

    It waits for that script and becomes it: the first `run` of `bash -c` with
    nothing but a script. A policy that is root in the container could change
    the waiting bash, so `seal` it before a policy acts.
    """
    self._waiting = await self._exec(_WAITING, tty=False, stdin=True)

  async def seal(self) -> None:
    """Ends the waiting bash, if there is one."""
    if self._waiting is not None:
      _, stream = self._waiting
      self._waiting = None
      await stream.close()

  async def terminal(self, argv: Sequence[str]) -> Terminal:
    """Runs a command on a terminal of its own."""
    _, stream = await self._exec(argv, tty=True)
    return stream

  async def restart(self) -> None:
    """Ends every process in the container; files stay."""
    await self._ask(self.engine.api.restart, self.name, 0)

  async def kill(self) -> None:
    """Stops the container at once; files stay until it is removed."""
    await self._ask(self.engine.api.kill, self.name)

  async def is_running(self) -> bool:
    """Returns whether the container's first process lives."""
    state = await self._ask(self.engine.api.inspect_container, self.name)
    return bool(state["State"]["Running"])

  async def remove(self) -> None:
    """Removes the container, and waits until it is gone."""
    await self.seal()
    await engines.to_the_end(engines.remove_container, self.engine, self.name)

  def _handed_over(self, argv: Sequence[str]) -> tuple[str, ExecStream] | None:
    """Passes the script to the waiting bash; None if it does not apply."""
    if self._waiting is None or len(argv) != 3 or "\0" in argv[2]:
      return None
    if tuple(argv[:2]) != ("bash", "-c"):
      return None
    number, stream = self._waiting
    self._waiting = None
    stream.write(argv[2].encode(errors="surrogateescape") + b"\0")
    return number, stream

  async def _exec(
    self, argv: Sequence[str], *, tty: bool, stdin: bool = False
  ) -> tuple[str, ExecStream]:
    command = await self._ask(
      self.engine.api.exec_create,
      self.name,
      list(argv),
      stdin=stdin or tty,
      tty=tty,
    )
    number: str = command["Id"]
    return number, await ExecStream.open(self.engine, number, tty=tty)

  async def _ask(self, call: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes one request to the engine; a refusal is an `EnvironmentFault`."""
    try:
      return await engines.to_the_end(call, *args, **kwargs)
    except (docker.errors.DockerException, OSError) as error:
      raise EnvironmentFault(
        f"the engine refuses {call.__name__} for {self.name} ({self._image}): "
        f"{error}"
      ) from error


def keeps_quotas(engine: docker.DockerClient, image: str) -> bool:
  """Tries whether the engine's storage can bound a writable layer."""
  name = f"agentrl-{uuid.uuid4().hex[:12]}"
  try:
    api: Any = engine.api  # the SDK has no types for this call
    api.create_container_from_config(
      {
        "Image": image,
        "Labels": {OWNER_LABEL: current_owner()},
        "HostConfig": {"StorageOpt": {"size": "1g"}},
      },
      name,
    )
  except (docker.errors.DockerException, OSError):
    return False
  engines.remove_container(engine, name)
  return True


def _create(
  engine: docker.DockerClient, name: str, spec: SessionContainerSpec
) -> None:
  watch_over_this_process()
  with engines.starting(spec.image):
    # The low-level call, as the other one knows no read-only paths.
    api: Any = engine.api
    host_config = api.create_host_config(**_limits(spec))
    api.create_container(
      name=name,
      image=spec.image,
      command=list(_FIRST_PROCESS),
      entrypoint=[],
      labels={OWNER_LABEL: current_owner(), SESSION_LABEL: spec.session},
      user="0",  # root, also after a session has emptied /etc/passwd
      working_dir=spec.workdir,
      host_config={**host_config, "ReadonlyPaths": _READ_ONLY},
    )
    api.start(name)


def _limits(spec: SessionContainerSpec) -> dict[str, Any]:
  return {
    "mem_limit": f"{spec.memory_mb}m",
    "memswap_limit": f"{spec.memory_mb}m",
    "nano_cpus": int(spec.cpus * 1e9),
    "pids_limit": spec.pids,
    "cap_drop": ["ALL"],
    "cap_add": list(spec.capabilities),
    "security_opt": ["no-new-privileges"],
    "network_mode": "bridge" if spec.network else "none",
    "ipc_mode": "private",
    "shm_size": "64m",
    **({"storage_opt": {"size": f"{spec.disk_mb}m"}} if spec.quota else {}),
    "log_config": {"Type": "none", "Config": {}},
    "ulimits": [
      Ulimit(name="core", soft=0, hard=0),
      # Linux's defaults: an engine would set its host's limits.
      Ulimit(name="nofile", soft=OPEN_FILES[0], hard=OPEN_FILES[1]),
      Ulimit(name="fsize", soft=spec.disk_mb * _MIB, hard=spec.disk_mb * _MIB),
    ],
  }
