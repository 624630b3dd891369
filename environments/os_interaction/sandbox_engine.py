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
from collections.abc import Sequence
from typing import Any

from agentrl_jax.env.session_container_stream import Finished, Terminal
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.os_interaction.machine import (
  CAPABILITIES,
  HOME,
  MAX_BYTES,
  Engine,
  Limits,
  Machine,
)
from environments.os_interaction.sandbox_files import PtyTerminal, read_pipes
from environments.os_interaction.sandbox_host import (
  ADVICE,
  START_S,
  Line,
  Zygote,
  expect_ready,
)

ROOTFS = "~/.cache/agentrl_jax/os_interaction/rootfs"
OPEN_FILES = 1 << 20  # as Docker's, or what this process may have
MAX_ARGUMENT_BYTES = 131_071  # Linux's, for one argument
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
        zygote.fork(number, body, its.fileno())
      except BaseException:
        machine._line.close()
        raise
    try:
      await expect_ready(machine._line)
    except BaseException:
      await machine.remove()
      raise
    machine._listening = asyncio.create_task(
      machine._listen(), name=f"os_interaction-sandbox-{number}"
    )
    return machine

  async def run(self, argv: Sequence[str], *, limit_s: float) -> Finished:
    """Runs a command as root in /root."""
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
          {"do": "run"}, [asked, nothing, *(inner for _, inner in pipes)]
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

  async def remove(self) -> None:
    """Hangs up on the first process, and all ends with it."""
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
