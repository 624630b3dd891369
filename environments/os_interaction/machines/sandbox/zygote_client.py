"""The side of the sandboxes' parent process that stays in this one."""

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
from environments.os_interaction.machines.sandbox.descriptors import (
  until_readable,
)

START_S = 30.0
END_S = 20.0
SEND_AGAIN_S = 0.01
MESSAGE_BYTES = 1 << 16
ADVICE = (
  "Run as root with CAP_SYS_ADMIN on Linux 5.11 or newer (in a container: "
  "--privileged --cgroupns=host), or choose engine='docker'"
)
_ZYGOTE = pathlib.Path(__file__).with_name("zygote.py")


class Line:
  """A socket that carries JSON and open files, one message at a time."""

  def __init__(self, end: socket.socket):
    self._end = end
    end.setblocking(False)

  def send(self, body: object, files: Sequence[int] = ()) -> None:
    """Messages are small: they fit, unless the other side is gone."""
    try:
      socket.send_fds(self._end, [json.dumps(body).encode()], list(files))
    except OSError as error:
      raise EnvironmentFault(f"a sandbox does not listen: {error}") from error

  async def send_in_turn(self, body: object, files: Sequence[int]) -> None:
    """As `send`, after waiting until many others' messages were taken."""
    ends_at = time.monotonic() + START_S
    while True:
      try:
        socket.send_fds(self._end, [json.dumps(body).encode()], list(files))
        return
      except BlockingIOError:
        await asyncio.sleep(SEND_AGAIN_S)
      except OSError as error:
        raise EnvironmentFault(f"no sandbox can be forked: {error}") from error
      if time.monotonic() > ends_at:
        raise EnvironmentFault(
          f"the process that forks sandboxes has taken no message for "
          f"{START_S:g} s; look at the host's load"
        )

  async def receive(self) -> tuple[dict[str, Any], list[int]] | None:
    """Waits for a message; None once the other side has hung up."""
    while True:
      try:
        data, files, _, _ = socket.recv_fds(self._end, MESSAGE_BYTES, 2)
      except BlockingIOError:
        await until_readable(self._end.fileno())
        continue
      except OSError:
        return None
      return (json.loads(data), files) if data else None

  def close(self) -> None:
    self._end.close()


@dataclasses.dataclass(frozen=True)
class Opened:
  """A sandbox as this side sees it.

  `process` is the outermost, which the policy cannot see; `group` the folder
  of a control group that holds all of them.
  """

  process: int
  group: str


class Zygote:
  """The process that sandboxes are forked from."""

  def __init__(
    self, line: Line, process: subprocess.Popen[bytes], scratch: str
  ):
    self.scratch = scratch
    self._line = line
    self._process = process
    self._closed: dict[int, asyncio.Event] = {}
    self._opened: dict[int, asyncio.Future[Opened]] = {}
    self._listening: asyncio.Task[None] | None = None

  @classmethod
  async def start(cls) -> "Zygote":
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
      process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-I", str(_ZYGOTE), str(its.fileno())],
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        env={},  # nothing of ours can be read in there
        cwd="/",
        start_new_session=True,
      )
    scratch = tempfile.mkdtemp(prefix="agentrl-sandbox-")
    zygote = cls(Line(ours), process, scratch)
    try:
      await expect_ready(zygote._line)
    except BaseException:
      await zygote.end()
      raise
    zygote._listening = asyncio.create_task(
      zygote._listen(), name="os_interaction-sandboxes"
    )
    return zygote

  @property
  def is_gone(self) -> bool:
    return self._process.poll() is not None

  async def fork(self, number: int, body: dict[str, Any], line: int) -> None:
    self._closed[number] = asyncio.Event()
    self._opened[number] = asyncio.get_running_loop().create_future()
    body = {"id": number, "scratch": self.scratch, **body}
    try:
      await self._line.send_in_turn(body, [line])
    except BaseException:
      del self._closed[number], self._opened[number]
      raise

  async def wait_until_opened(self, number: int) -> "Opened":
    """The outer process of a sandbox that was forked."""
    try:
      async with asyncio.timeout(START_S):
        return await self._opened[number]
    except TimeoutError as error:
      raise EnvironmentFault(
        f"sandbox {number} was not forked within {START_S:g} s; look at the "
        "host's load"
      ) from error

  async def wait_until_closed(self, number: int) -> None:
    try:
      async with asyncio.timeout(END_S):
        await self._closed[number].wait()
    except TimeoutError as error:
      raise EnvironmentFault(
        f"sandbox {number} has not ended within {END_S:g} s of being told to; "
        "look at the host's load, and for processes in state D"
      ) from error
    finally:
      del self._closed[number]
      self._opened.pop(number).cancel()

  async def end(self) -> None:
    if self._listening is not None:
      self._listening.cancel()
      await asyncio.wait([self._listening])
    self._line.close()
    try:
      await asyncio.to_thread(self._process.wait, END_S)
    except subprocess.TimeoutExpired:
      self._process.kill()
      await asyncio.to_thread(self._process.wait)
    self._close_all()
    with contextlib.suppress(OSError):
      os.rmdir(self.scratch)

  async def _listen(self) -> None:
    while (message := await self._line.receive()) is not None:
      body, _ = message
      opened = self._opened.get(body.get("opened", -1))
      if opened is not None and not opened.done():
        opened.set_result(Opened(body["process"], body["group"]))
      closed = self._closed.get(body.get("closed", -1))
      if closed is not None:
        closed.set()
    self._close_all()

  def _close_all(self) -> None:
    """With the process that they are forked from, all sandboxes end."""
    for event in self._closed.values():
      event.set()


async def expect_ready(line: Line) -> None:
  """Raises `ConfigError` for what keeps a sandbox from being one."""
  try:
    async with asyncio.timeout(START_S):
      message = await line.receive()
  except TimeoutError as error:
    raise EnvironmentFault(
      f"no sandbox within {START_S:g} s; look at the host's load"
    ) from error
  if message is None:
    raise EnvironmentFault("a sandbox ended before it began; see its errors")
  if "error" in message[0]:
    raise ConfigError(
      f"the sandbox cannot isolate on this machine: {message[0]['error']}. "
      f"{ADVICE}"
    )
