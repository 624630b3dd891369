"""Starts the zygote process and exchanges messages with it."""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.os_interaction.machines.deadlines import fault_after
from environments.os_interaction.machines.sandbox.descriptors import (
  wait_until_readable,
)

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 20.0
SEND_RETRY_S = 0.01
MESSAGE_BYTES = 1 << 16
REQUIREMENTS = (
  "Run as root with CAP_SYS_ADMIN and CAP_MKNOD on Linux 5.11 or newer (in a "
  "container: --privileged --cgroupns=host), or choose engine='docker'"
)
_PROGRAM = pathlib.Path(__file__).with_name("zygote.py")


class MessageSocket:
  """A socket that carries JSON objects and file descriptors."""

  def __init__(self, end: socket.socket):
    self._end = end
    end.setblocking(False)

  def send(self, body: object, fds: Sequence[int] = ()) -> None:
    """Sends one message; a message always fits while the other side reads."""
    try:
      self._send(body, fds)
    except OSError as error:
      raise EnvironmentFault(f"a sandbox does not listen: {error}") from error

  async def send_and_wait(self, body: object, fds: Sequence[int]) -> None:
    """Sends one message, after waiting while the socket's buffer is full."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
      try:
        self._send(body, fds)
        return
      except BlockingIOError:
        await asyncio.sleep(SEND_RETRY_S)
      except OSError as error:
        raise EnvironmentFault(f"no sandbox can be forked: {error}") from error
      if time.monotonic() > deadline:
        raise EnvironmentFault(
          f"the process that forks sandboxes has accepted no message for "
          f"{START_TIMEOUT_S:g} s; look at the host's load"
        )

  async def receive(self) -> tuple[dict[str, Any], list[int]] | None:
    """Waits for a message; None once the other side has closed."""
    while True:
      try:
        data, fds, _, _ = socket.recv_fds(self._end, MESSAGE_BYTES, 2)
      except BlockingIOError:
        await wait_until_readable(self._end.fileno())
        continue
      except OSError:
        return None
      return (json.loads(data), fds) if data else None

  def close(self) -> None:
    self._end.close()

  def _send(self, body: object, fds: Sequence[int]) -> None:
    socket.send_fds(self._end, [json.dumps(body).encode()], list(fds))


@dataclasses.dataclass(frozen=True)
class SandboxProcess:
  """A forked sandbox as the host's kernel knows it."""

  pid: int  # of the outermost process, which the policy cannot see
  cgroup: str  # folder of a control group that holds all its processes


class ZygoteClient:
  """Owner of the zygote, the process from which sandboxes are forked."""

  def __init__(
    self,
    messages: MessageSocket,
    process: subprocess.Popen[bytes],
    scratch: str,
  ):
    self.scratch = scratch
    self._socket = messages
    self._process = process
    self._closed: dict[int, asyncio.Event] = {}
    self._forked: dict[int, asyncio.Future[SandboxProcess]] = {}
    self._out_of_memory: set[int] = set()
    self._receiving: asyncio.Task[None] | None = None

  @classmethod
  async def start(cls) -> "ZygoteClient":
    """Waits until the zygote can fork; raises `ConfigError` if it cannot."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
      process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-I", str(_PROGRAM), str(its.fileno())],
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        env={},  # sandboxes must not read this process's environment
        cwd="/",
        start_new_session=True,
      )
    scratch = tempfile.mkdtemp(prefix="agentrl-sandbox-")
    zygote = cls(MessageSocket(ours), process, scratch)
    try:
      await wait_until_ready(zygote._socket)
    except BaseException:
      await zygote.end()
      raise
    zygote._receiving = asyncio.create_task(
      zygote._receive(), name="os_interaction-sandboxes"
    )
    return zygote

  @property
  def has_ended(self) -> bool:
    return self._process.poll() is not None

  async def fork(self, number: int, body: dict[str, Any], fd: int) -> None:
    """Asks for a sandbox that serves the socket `fd`."""
    self._closed[number] = asyncio.Event()
    self._forked[number] = asyncio.get_running_loop().create_future()
    body = {"id": number, "scratch": self.scratch, **body}
    try:
      await self._socket.send_and_wait(body, [fd])
    except BaseException:
      del self._closed[number], self._forked[number]
      raise

  async def wait_until_forked(self, number: int) -> SandboxProcess:
    """Waits for the sandbox's outermost process."""
    async with fault_after(
      START_TIMEOUT_S,
      f"sandbox {number} was not forked within {START_TIMEOUT_S:g} s; look at "
      "the host's load",
    ):
      return await self._forked[number]

  async def ended_without_memory(self, number: int) -> bool:
    """Waits for the end of a sandbox that has not been closed."""
    async with fault_after(
      END_TIMEOUT_S,
      f"sandbox {number} has lost its init process, and not ended within "
      f"{END_TIMEOUT_S:g} s; look at the host's load",
    ):
      await self._closed[number].wait()
    return number in self._out_of_memory

  async def wait_until_closed(self, number: int) -> None:
    """Waits until no process of the sandbox is left."""
    try:
      async with fault_after(
        END_TIMEOUT_S,
        f"sandbox {number} has not ended within {END_TIMEOUT_S:g} s of being "
        "closed; look at the host's load, and for processes in state D",
      ):
        await self._closed[number].wait()
    finally:
      self._out_of_memory.discard(number)
      del self._closed[number]
      self._forked.pop(number).cancel()

  async def end(self) -> None:
    """Ends the zygote, and with it every sandbox."""
    if self._receiving is not None:
      self._receiving.cancel()
      await asyncio.wait([self._receiving])
    self._socket.close()
    try:
      await asyncio.to_thread(self._process.wait, END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
      self._process.kill()
      await asyncio.to_thread(self._process.wait)
    self._mark_all_closed()
    with contextlib.suppress(OSError):
      os.rmdir(self.scratch)

  async def _receive(self) -> None:
    while (message := await self._socket.receive()) is not None:
      body, _ = message
      forked = self._forked.get(body.get("forked", -1))
      if forked is not None and not forked.done():
        forked.set_result(SandboxProcess(body["pid"], body["cgroup"]))
      if body.get("out_of_memory"):
        self._out_of_memory.add(body["closed"])
      closed = self._closed.get(body.get("closed", -1))
      if closed is not None:
        closed.set()
    self._mark_all_closed()

  def _mark_all_closed(self) -> None:
    for event in self._closed.values():
      event.set()


async def wait_until_ready(messages: MessageSocket) -> None:
  """Waits for the first message of a zygote or sandbox.

  Raises `ConfigError` if this machine cannot isolate a sandbox.
  """
  async with fault_after(
    START_TIMEOUT_S,
    f"no sandbox within {START_TIMEOUT_S:g} s; look at the host's load",
  ):
    message = await messages.receive()
  if message is None:
    raise EnvironmentFault("a sandbox ended before it began; see its errors")
  if "error" in message[0]:
    raise ConfigError(
      f"the sandbox cannot isolate on this machine: {message[0]['error']}. "
      f"{REQUIREMENTS}"
    )
