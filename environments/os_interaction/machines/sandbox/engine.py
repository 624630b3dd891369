"""Machines that are namespaces of this host, one set per episode; no Docker.

A machine has its own users, processes, network, names and mounts. Its files are
a folder's (`rootfs`) under a layer in memory, of bounded size, that goes with
it. Its root holds the rights of `machine.CAPABILITIES` within its own
namespaces and none in the host's. Control groups bound memory, processors and
processes.

Where any of that cannot be had there is no sandbox: `ConfigError` says what is
missing. It takes Linux 5.11 or newer, and root with CAP_SYS_ADMIN.
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

from agentrl_jax.env.session_container import OPEN_FILES
from agentrl_jax.env.session_container_stream import Finished, Terminal
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.os_interaction.machines.files import (
  LOAD_S,
  UNPACK,
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
  PATH,
  Engine,
  Limits,
  Machine,
)
from environments.os_interaction.machines.sandbox.descriptors import (
  PtyTerminal,
  read_pipes,
)
from environments.os_interaction.machines.sandbox.files import (
  read_changes,
  read_processes,
  read_tree,
)
from environments.os_interaction.machines.sandbox.zygote_client import (
  ADVICE,
  END_S,
  START_S,
  Line,
  Opened,
  Zygote,
  expect_ready,
)

ROOTFS = "~/.cache/agentrl_jax/os_interaction/rootfs"
MAX_ARGUMENT_BYTES = 131_071  # Linux's, for one argument
TOO_LONG = Finished(126, b"", b"Argument list too long")


class SandboxEngine(Engine):
  """Sandboxes, forked from one small process that is started at first use."""

  def __init__(self, limits: Limits, *, rootfs: str = ""):
    self._limits = limits
    self._rootfs = _require_rootfs(rootfs)
    self._numbers = itertools.count()
    self._starting = asyncio.Lock()
    self._zygote: Zygote | None = None

  async def start(self, image: str) -> Machine:
    """A sandbox; all of AgentBench's images are the one folder."""
    del image
    async with self._starting:
      if self._zygote is None or self._zygote.is_gone:
        await self.close()
        self._zygote = await Zygote.start()
    return await SandboxMachine.start(
      self._zygote, next(self._numbers), self._limits, self._rootfs
    )

  async def close(self) -> None:
    """Ends the process that they are forked from, and any that is left."""
    if self._zygote is not None:
      await self._zygote.end()
      self._zygote = None


class SandboxMachine(Machine):
  """One sandbox, spoken to through its first process."""

  def __init__(self, zygote: Zygote, number: int, line: Line, hostname: str):
    self._zygote = zygote
    self._number = number
    self._line = line
    self._hostname = hostname
    self._folders: list[int] = []  # the machine's files, and their layer
    self._opened: Opened | None = None
    self._requests = itertools.count()
    self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]]
    self._waiting = {}
    self._listening: asyncio.Task[None] | None = None

  @classmethod
  async def start(
    cls, zygote: Zygote, number: int, limits: Limits, rootfs: str
  ) -> "SandboxMachine":
    """Waits until its first process is ready."""
    hostname = secrets.token_hex(6)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    machine = cls(zygote, number, Line(ours), hostname)
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
        machine._line.close()
        raise
    try:
      await expect_ready(machine._line)
      machine._hold(await zygote.wait_until_opened(number))
    except BaseException:
      await machine.remove()
      raise
    machine._listening = asyncio.create_task(
      machine._listen(), name=f"os_interaction-sandbox-{number}"
    )
    return machine

  async def run(
    self, argv: Sequence[str], *, limit_s: float, stdin: int | None = None
  ) -> Finished:
    """Runs a command as root in /root; `stdin` is an open file."""
    if any(len(os.fsencode(word)) > MAX_ARGUMENT_BYTES for word in argv):
      return TOO_LONG
    with contextlib.ExitStack() as files:
      asked = self._described(files, argv, terminal=False)
      nothing = os.open(os.devnull, os.O_RDONLY)
      files.callback(os.close, nothing)
      pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
      for outer, _ in pipes:
        files.callback(os.close, outer)
        os.set_blocking(outer, False)
      try:
        request, ended = self._ask(
          {"do": "run"},
          [asked, stdin or nothing, *(inner for _, inner in pipes)],
        )
      finally:
        for _, inner in pipes:
          os.close(inner)
      try:
        return await _finished(
          ended, [outer for outer, _ in pipes], limit_s=limit_s
        )
      finally:
        self._waiting.pop(request, None)

  async def terminal(self, argv: Sequence[str]) -> Terminal:
    """Runs a command on a terminal."""
    with contextlib.ExitStack() as files:
      asked = self._described(files, argv, terminal=True)
      request, began = self._ask({"do": "terminal"}, [asked])
      try:
        async with asyncio.timeout(START_S):
          body, given = await began
      except TimeoutError as error:
        raise EnvironmentFault(
          f"a sandbox starts no terminal within {START_S:g} s"
        ) from error
      finally:
        self._waiting.pop(request, None)
    if not given:
      raise EnvironmentFault(f"a sandbox starts no terminal: {body}")
    return PtyTerminal(given[0])

  async def restart(self) -> None:
    """Ends every process but the first."""
    request, ended = self._ask({"do": "restart"}, [])
    try:
      await ended
    finally:
      self._waiting.pop(request, None)

  async def end(self) -> None:
    """Ends every process but the first, which starts nothing by itself."""
    try:
      async with asyncio.timeout(END_S):
        await self.restart()
    except TimeoutError as error:
      raise EnvironmentFault(
        f"a sandbox's processes have not ended within {END_S:g} s of being "
        "killed; look at the host's load"
      ) from error

  async def look(self, path: str) -> Tree:
    """Reads files through the folder that this process holds open."""
    return await asyncio.to_thread(read_tree, self._folders[0], path, Budget())

  async def changes(self) -> Changes:
    """Reads the layer in memory."""
    return await asyncio.to_thread(
      read_changes, self._folders[0], self._folders[1], Budget()
    )

  async def processes(self) -> Mapping[str, str]:
    """Those of its control group, as the host's kernel tells."""
    assert self._opened is not None
    return await asyncio.to_thread(read_processes, self._opened.group)

  async def load(self, changes: Changes) -> None:
    """Has its own tar write them."""
    gone = [path.lstrip("/") for path in sorted(changes.removed)]
    await self._write("xargs -0 -r rm -rf --", "\0".join(gone))
    await self._write(UNPACK, write_archive(changes.files))

  async def _write(self, script: str, given: str | bytes) -> None:
    given = given if isinstance(given, bytes) else os.fsencode(given)
    if not given:
      return
    with os.fdopen(os.memfd_create("given"), "wb") as file:
      file.write(given)
      file.flush()
      file.seek(0)
      done = await self.run(
        ["bash", "-c", f"cd / && {script}"],
        limit_s=LOAD_S,
        stdin=file.fileno(),
      )
    if done.code != 0:
      raise Unreadable(f"its files fit no machine: {done.stderr[-200:]!r}")

  def _hold(self, opened: Opened) -> None:
    """Opens its files from outside, before a policy is inside."""
    self._opened = opened
    scratch = f"/proc/{opened.process}/root{self._zygote.scratch}"
    for name in ("root", "upper"):
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
      self._folders.append(os.open(f"{scratch}/{name}", flags))

  async def remove(self) -> None:
    """Hangs up on the first process, and all ends with it."""
    while self._folders:
      os.close(self._folders.pop())
    # Hung up on last: until then nobody else gets a file of that number.
    if self._listening is not None:
      self._listening.cancel()
      await asyncio.wait([self._listening])
    self._line.close()
    await self._zygote.wait_until_closed(self._number)

  def _described(
    self, files: contextlib.ExitStack, argv: Sequence[str], *, terminal: bool
  ) -> int:
    """A file that says what to run: arguments may be too long for a message."""
    environment = {"PATH": PATH, "HOSTNAME": self._hostname, "HOME": HOME}
    if terminal:
      environment["TERM"] = "xterm"
    body = {"argv": list(argv), "env": environment, "cwd": HOME}
    number = os.memfd_create("asked")
    file = files.enter_context(os.fdopen(number, "wb"))
    file.write(json.dumps(body).encode())
    file.seek(0)
    return number

  def _ask(
    self, body: dict[str, Any], files: Sequence[int]
  ) -> tuple[int, asyncio.Future[tuple[dict[str, Any], list[int]]]]:
    number = next(self._requests)
    future = asyncio.get_running_loop().create_future()
    self._waiting[number] = future
    self._line.send({"id": number, **body}, files)
    return number, future

  async def _listen(self) -> None:
    while (message := await self._line.receive()) is not None:
      body, files = message
      future = self._waiting.get(body["id"])
      if future is not None and not future.done():
        future.set_result((body, files))
      else:
        for file in files:
          os.close(file)
    for future in self._waiting.values():
      if not future.done():
        future.set_exception(
          EnvironmentFault("a sandbox's first process has ended")
        )


async def _finished(
  ended: asyncio.Future[tuple[dict[str, Any], list[int]]],
  pipes: Sequence[int],
  *,
  limit_s: float,
) -> Finished:
  """What was said until the command and everything it started had ended."""
  kept = [bytearray() for _ in pipes]
  try:
    async with asyncio.timeout(limit_s):
      await read_pipes(pipes, kept, max_bytes=MAX_BYTES)
      body, _ = await ended
  except TimeoutError:
    return Finished(None, bytes(kept[0]), bytes(kept[1]))
  if "failed" in body:
    return Finished(None, b"", str(body["failed"]).encode())
  return Finished(int(body["code"]), bytes(kept[0]), bytes(kept[1]))


def _require_rootfs(rootfs: str) -> str:
  path = pathlib.Path(rootfs or ROOTFS).expanduser().resolve()
  if sys.platform != "linux":
    raise ConfigError(
      f"the sandbox needs Linux, and this is {sys.platform}. {ADVICE}"
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
