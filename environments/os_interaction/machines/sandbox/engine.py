"""Machines that are sets of Linux namespaces on this host, without Docker.

A sandbox has its own users, processes, network, names, devices and mounts. Its
files are a folder (`rootfs`) under a writable layer in memory of bounded size.
Its root holds `machine.CAPABILITIES` within its own namespaces and none on the
host. Control groups bound memory, processors and processes; a filter refuses
system calls that no namespace keeps apart.

Where any of that is not available, the engine refuses to start a sandbox with a
`ConfigError` that names it; `zygote_client.REQUIREMENTS` lists what is needed.
"""

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker.session_container import OPEN_FILES
from agentrl_jax.service.docker.stream import Finished, Terminal
from environments.options import MachineLimits
from environments.os_interaction.machines.deadlines import fault_after
from environments.os_interaction.machines.files import (
  LOAD_TIMEOUT_S,
  UNPACK,
  Changes,
  ReadBudget,
  Tree,
  Unreadable,
  write_archive,
)
from environments.os_interaction.machines.machine import (
  CAPABILITIES,
  HOME,
  MAX_OUTPUT_BYTES,
  PATH,
  Machine,
  MachineEngine,
  MachineLost,
)
from environments.os_interaction.machines.sandbox import files, zygote_client
from environments.os_interaction.machines.sandbox.descriptors import (
  PtyTerminal,
  read_pipes,
)

ROOTFS = "~/.cache/agentrl_jax/os_interaction/rootfs"
MAX_ARGUMENT_BYTES = 131_071  # Linux's limit for one argument
TOO_LONG = Finished(126, b"", b"Argument list too long")

Response = asyncio.Future[tuple[dict[str, Any], list[int]]]


class SandboxEngine(MachineEngine):
  """Forks sandboxes from one small process, which is started at first use."""

  def __init__(self, limits: MachineLimits, *, rootfs: str = ""):
    self._limits = limits
    self._rootfs = _require_rootfs(rootfs)
    self._numbers = itertools.count()
    self._starting = asyncio.Lock()
    self._zygote: zygote_client.ZygoteClient | None = None

  async def start(
    self, image: str, limits: MachineLimits | None = None
  ) -> Machine:
    """Starts a sandbox; all of AgentBench's images share the one folder."""
    del image
    async with self._starting:
      if self._zygote is None or self._zygote.has_ended:
        await self.close()
        self._zygote = await zygote_client.ZygoteClient.start()
    return await SandboxMachine.start(
      self._zygote, next(self._numbers), limits or self._limits, self._rootfs
    )

  async def close(self) -> None:
    """Ends the zygote, and with it every sandbox that is left."""
    if self._zygote is not None:
      await self._zygote.end()
      self._zygote = None


class SandboxMachine(Machine):
  """One sandbox, controlled by messages to its init process.

  - A request is answered once, by its id, unless the init process has ended.
  - `read_*` use folders that were opened before a policy ran inside; they work
    after `halt`, until `remove`.
  """

  def __init__(
    self,
    zygote: zygote_client.ZygoteClient,
    number: int,
    messages: zygote_client.MessageSocket,
    hostname: str,
  ):
    self._zygote = zygote
    self._number = number
    self._socket = messages
    self._hostname = hostname
    self._folders: list[int] = []  # the root, and the overlay's upper layer
    self._process: zygote_client.SandboxProcess | None = None
    self._request_ids = itertools.count()
    self._pending: dict[int, Response] = {}
    self._cause_of_end: Exception | None = None
    self._receiving: asyncio.Task[None] | None = None

  @classmethod
  async def start(
    cls,
    zygote: zygote_client.ZygoteClient,
    number: int,
    limits: MachineLimits,
    rootfs: str,
  ) -> "SandboxMachine":
    """Waits until the init process is ready."""
    hostname = secrets.token_hex(6)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    machine = cls(zygote, number, zygote_client.MessageSocket(ours), hostname)
    with its:
      body = {
        "rootfs": rootfs,
        "hostname": hostname,
        "capabilities": CAPABILITIES,
        "open_files": OPEN_FILES,
        "memory_mb": limits.memory_mb,
        "pids": limits.pids,
        "cpus": limits.cpus,
        "disk_mb": limits.disk_mb,
        "network": limits.network,
      }
      try:
        await zygote.fork(number, body, its.fileno())
      except BaseException:
        machine._socket.close()
        raise
    try:
      await zygote_client.wait_until_ready(machine._socket)
      machine._open_folders(await zygote.wait_until_forked(number))
    except BaseException:
      await machine.remove()
      raise
    machine._receiving = asyncio.create_task(
      machine._receive(), name=f"os_interaction-sandbox-{number}"
    )
    return machine

  async def run(
    self, argv: Sequence[str], *, limit_s: float, stdin: int | None = None
  ) -> Finished:
    """Runs a command as root in /root; `stdin` is a file descriptor.

    Without it the command reads the machine's own /dev/null.
    """
    if any(len(os.fsencode(word)) > MAX_ARGUMENT_BYTES for word in argv):
      return TOO_LONG
    with contextlib.ExitStack() as fds:
      command = self._command_file(fds, argv, terminal=False)
      pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
      outer = [reader for reader, _ in pipes]
      inner = [writer for _, writer in pipes]
      for reader in outer:
        fds.callback(os.close, reader)
        os.set_blocking(reader, False)
      try:
        given = inner if stdin is None else [stdin, *inner]
        response = self._request({"do": "run"}, [command, *given])
      finally:
        for writer in inner:
          os.close(writer)
      return await _finished(response, outer, limit_s=limit_s)

  async def terminal(self, argv: Sequence[str]) -> Terminal:
    """Runs a command on a terminal of its own."""
    with contextlib.ExitStack() as fds:
      command = self._command_file(fds, argv, terminal=True)
      response = self._request({"do": "terminal"}, [command])
      limit_s = zygote_client.START_TIMEOUT_S
      async with fault_after(
        limit_s, f"a sandbox starts no terminal within {limit_s:g} s"
      ):
        body, terminal_fds = await response
    if not terminal_fds:
      raise MachineLost(
        f"The machine was stopped: it starts no terminal: {body['failed']}"
      )
    return PtyTerminal(terminal_fds[0])

  async def restart(self) -> None:
    """Ends every process but the init process."""
    await self._request({"do": "restart"}, [])

  async def halt(self) -> None:
    """Ends every process but the init process, which starts none by itself."""
    limit_s = zygote_client.END_TIMEOUT_S
    async with fault_after(
      limit_s,
      f"a sandbox's processes have not ended within {limit_s:g} s of being "
      "killed; look at the host's load",
    ):
      await self.restart()

  async def read_tree(self, path: str) -> Tree:
    return await asyncio.to_thread(
      files.read_tree, self._folders[0], path, ReadBudget()
    )

  async def read_changes(self) -> Changes:
    return await asyncio.to_thread(
      files.read_changes, self._folders[0], self._folders[1], ReadBudget()
    )

  async def read_processes(self) -> Mapping[str, str]:
    """Reads the processes of the control group from the host's kernel."""
    assert self._process is not None
    return await asyncio.to_thread(files.read_processes, self._process.cgroup)

  async def apply_changes(self, changes: Changes) -> None:
    """Runs the sandbox's own rm and tar."""
    removed = [path.lstrip("/") for path in sorted(changes.removed)]
    await self._run_with_input(
      "xargs -0 -r rm -rf --", os.fsencode("\0".join(removed))
    )
    await self._run_with_input(UNPACK, write_archive(changes.files))

  async def _run_with_input(self, script: str, data: bytes) -> None:
    if not data:
      return
    with os.fdopen(os.memfd_create("input"), "wb") as file:
      file.write(data)
      file.flush()
      file.seek(0)
      done = await self.run(
        ["bash", "-c", f"cd / && {script}"],
        limit_s=LOAD_TIMEOUT_S,
        stdin=file.fileno(),
      )
    if done.code != 0:
      raise Unreadable(f"the changes fit no machine: {done.stderr[-200:]!r}")

  async def remove(self) -> None:
    """Closes the socket of the init process, which ends the sandbox."""
    while self._folders:
      os.close(self._folders.pop())
    # The socket is closed last: its descriptor's number must not be reused
    # while the task still waits on it.
    if self._receiving is not None:
      self._receiving.cancel()
      await asyncio.wait([self._receiving])
    self._socket.close()
    await self._zygote.wait_until_closed(self._number)

  def _open_folders(self, process: zygote_client.SandboxProcess) -> None:
    """Opens the sandbox's folders from outside, before a policy runs inside."""
    self._process = process
    scratch = f"/proc/{process.pid}/root{self._zygote.scratch}"
    for name in ("root", "upper"):
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
      self._folders.append(os.open(f"{scratch}/{name}", flags))

  def _command_file(
    self, fds: contextlib.ExitStack, argv: Sequence[str], *, terminal: bool
  ) -> int:
    """Writes a command to a file, as it may be too long for a message."""
    environment = {"PATH": PATH, "HOSTNAME": self._hostname, "HOME": HOME}
    if terminal:
      environment["TERM"] = "xterm"
    body = {"argv": list(argv), "env": environment, "cwd": HOME}
    fd = os.memfd_create("command")
    file = fds.enter_context(os.fdopen(fd, "wb"))
    file.write(json.dumps(body).encode())
    file.seek(0)
    return fd

  def _request(self, body: dict[str, Any], fds: Sequence[int]) -> Response:
    """Sends a request; the response stays pending until done or cancelled."""
    if self._zygote.has_ended:  # the kernel may still be ending the sandbox
      raise self._cause_of_end or EnvironmentFault(
        "a sandbox's engine has ended, and with it the sandbox"
      )
    number = next(self._request_ids)
    response: Response = asyncio.get_running_loop().create_future()
    self._pending[number] = response
    response.add_done_callback(lambda _: self._pending.pop(number, None))
    try:
      self._socket.send({"id": number, **body}, fds)
    except EnvironmentFault as error:
      if self._receiving is None or self._receiving.done():
        response.cancel()
        cause = self._cause_of_end or error
        raise cause from None
      # Else `_receive` is about to find the cause.
    return response

  async def _receive(self) -> None:
    while (message := await self._socket.receive()) is not None:
      body, fds = message
      response = self._pending.get(body.get("id", -1))
      if response is not None and not response.done():
        response.set_result((body, fds))
      else:
        for fd in fds:
          os.close(fd)
    self._cause_of_end = await self._find_cause_of_end()
    for response in self._pending.values():
      if not response.done():
        response.set_exception(self._cause_of_end)

  async def _find_cause_of_end(self) -> Exception:
    """Blames the policy if the memory was full, which it alone can fill."""
    error = EnvironmentFault("a sandbox's init process has ended")
    try:
      if await self._zygote.ended_without_memory(self._number):
        return MachineLost("The machine was stopped: its memory was full.")
    except EnvironmentFault as late:
      return late
    return error


async def _finished(
  response: Response, pipes: Sequence[int], *, limit_s: float
) -> Finished:
  """Waits for the end of the command and of all that hold its pipes."""
  stdout, stderr = bytearray(), bytearray()
  try:
    async with asyncio.timeout(limit_s):
      await read_pipes(pipes, (stdout, stderr), max_bytes=MAX_OUTPUT_BYTES)
      body, _ = await response
  except TimeoutError:
    return Finished(None, bytes(stdout), bytes(stderr))
  finally:
    response.cancel()
  if "failed" in body:
    return Finished(None, b"", str(body["failed"]).encode())
  return Finished(int(body["code"]), bytes(stdout), bytes(stderr))


def _require_rootfs(rootfs: str) -> str:
  path = pathlib.Path(rootfs or ROOTFS).expanduser().resolve()
  if sys.platform != "linux":
    raise ConfigError(
      f"the sandbox needs Linux, and this is {sys.platform}. "
      f"{zygote_client.REQUIREMENTS}"
    )
  if not (path / "bin" / "bash").exists():
    raise ConfigError(
      f"rootfs={str(path)!r} holds no Linux (there is no bin/bash); make one "
      "with `python -m environments.os_interaction.rootfs`, which says how"
    )
  if set(",:\\") & set(str(path)):
    raise ConfigError(
      f"rootfs={str(path)!r}: the path may hold no comma, colon or backslash"
    )
  return str(path)
