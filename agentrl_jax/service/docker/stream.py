"""Streams of commands in containers, read with bounded buffers.

The engine turns the connection of the request into the command's streams. The
SDK may lose the beginning in a buffer that it throws away, so the request is
written here; it has four lines.
"""

import abc
import asyncio
import dataclasses
import json
import urllib.parse

import docker

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker.engine import REQUEST_S

READ_BYTES = 1 << 16  # of one read, and about the buffer's size
_HEADER_BYTES = 8  # of a frame: its stream, three zeros, its length
_STDERR = 2


@dataclasses.dataclass(frozen=True)
class Finished:
  """Output of a command; `code` is None if its time was over."""

  code: int | None
  stdout: bytes
  stderr: bytes


class Terminal(abc.ABC):
  """The outer side of a terminal."""

  @abc.abstractmethod
  async def read(self) -> bytes:
    """Waits for output; empty once the other side is closed."""

  @abc.abstractmethod
  def write(self, data: bytes) -> None:
    """Types `data` without waiting until the other side reads it."""

  @abc.abstractmethod
  async def close(self) -> None:
    """Closes the connection."""


class ExecStream(Terminal):
  """A connection that belongs to one command."""

  def __init__(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ):
    self._reader = reader
    self._writer = writer

  @classmethod
  async def open(
    cls, engine: docker.DockerClient, exec_id: str, *, tty: bool
  ) -> "ExecStream":
    """Starts the command that was created as `exec_id`."""
    api = engine.api
    body = json.dumps({"Detach": False, "Tty": tty}).encode()
    head = (
      f"POST /v{api.api_version}/exec/{exec_id}/start HTTP/1.1\r\n"
      "Host: docker\r\nContent-Type: application/json\r\n"
      "Connection: Upgrade\r\nUpgrade: tcp\r\n"
      f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
      async with asyncio.timeout(REQUEST_S):
        reader, writer = await _connect(api)
        stream = cls(reader, writer)
        try:
          writer.write(head.encode() + body)
          await writer.drain()
          answer = await reader.readuntil(b"\r\n\r\n")
          _require_upgraded(answer, exec_id)
        except BaseException:
          await stream.close()
          raise
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
      raise EnvironmentFault(
        f"the engine does not start exec {exec_id}: {error!r}"
      ) from error
    return stream

  async def read(self) -> bytes:
    """Returns new output; empty at the end or after a cut."""
    try:
      return await self._reader.read(READ_BYTES)
    except OSError:
      return b""

  async def read_frame(self) -> tuple[int, bytes] | None:
    """Reads a stream's number (1 stdout, 2 stderr) and data, without tty."""
    try:
      head = await self._reader.readexactly(_HEADER_BYTES)
      size = int.from_bytes(head[4:], "big")
      return head[0], await self._reader.readexactly(size)
    except (OSError, asyncio.IncompleteReadError):
      return None

  def write(self, data: bytes) -> None:
    """Queues `data`; does nothing if the command is gone."""
    if not self._writer.is_closing():
      self._writer.write(data)

  async def close(self) -> None:
    """Closes the connection; the command gets no more input."""
    self._writer.transport.abort()
    try:
      await self._writer.wait_closed()
    except OSError:
      return


async def read_to_the_end(
  stream: ExecStream, *, limit_s: float, max_bytes: int
) -> tuple[bytes, bytes, bool]:
  """Returns stdout and stderr, cut, and whether the end came."""
  kept = {1: bytearray(), 2: bytearray()}
  try:
    async with asyncio.timeout(limit_s):
      while (frame := await stream.read_frame()) is not None:
        number, data = frame
        into = kept[_STDERR if number == _STDERR else 1]
        into += data[: max_bytes - len(into)]
  except TimeoutError:
    return bytes(kept[1]), bytes(kept[2]), False
  return bytes(kept[1]), bytes(kept[2]), True


async def _connect(
  api: docker.APIClient,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
  path = getattr(api.get_adapter(api.base_url), "socket_path", None)
  if path is not None:
    return await asyncio.open_unix_connection(path, limit=READ_BYTES)
  url = urllib.parse.urlsplit(api.base_url)
  if url.scheme == "http":
    return await asyncio.open_connection(
      url.hostname, url.port, limit=READ_BYTES
    )
  raise ConfigError(
    f"the engine is at {api.base_url}; containers per session can be spoken to "
    "over unix:// and tcp:// only. Forward its socket (`ssh -L`), or run the "
    "worker beside the engine"
  )


def _require_upgraded(answer: bytes, exec_id: str) -> None:
  status = answer.split(b"\r\n", 1)[0].split()
  if len(status) < 2 or status[1] not in (b"101", b"200"):
    raise EnvironmentFault(
      f"the engine does not start exec {exec_id}: it answers {answer[:200]!r}"
    )
