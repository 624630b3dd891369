"""Reads and writes a sandbox's pipes and terminals without threads."""

import asyncio
import os
from collections.abc import Sequence

from agentrl_jax.service.docker.stream import READ_BYTES, Terminal


async def wait_until_readable(fd: int) -> None:
  """Waits until there is data, or until the other side has closed."""
  loop = asyncio.get_running_loop()
  readable = loop.create_future()

  def on_readable() -> None:
    if not readable.done():
      readable.set_result(None)

  loop.add_reader(fd, on_readable)
  try:
    await readable
  finally:
    loop.remove_reader(fd)


async def read_pipes(
  pipes: Sequence[int], buffers: Sequence[bytearray], *, max_bytes: int
) -> None:
  """Reads all pipes to their ends; keeps the first `max_bytes` of each."""
  async with asyncio.TaskGroup() as group:
    for pipe, buffer in zip(pipes, buffers, strict=True):
      group.create_task(_read_pipe(pipe, buffer, max_bytes))


async def _read_pipe(pipe: int, buffer: bytearray, max_bytes: int) -> None:
  while True:
    try:
      data = os.read(pipe, READ_BYTES)
    except BlockingIOError:
      await wait_until_readable(pipe)
      continue
    if not data:
      return
    buffer += data[: max_bytes - len(buffer)]
    await asyncio.sleep(0)  # a fast writer must not starve other tasks


class PtyTerminal(Terminal):
  """The outer side of a pseudo-terminal; owns its file descriptor."""

  def __init__(self, fd: int):
    self._fd = fd
    self._unwritten = bytearray()
    self._is_open = True
    os.set_blocking(fd, False)

  async def read(self) -> bytes:
    while True:
      try:
        return os.read(self._fd, READ_BYTES)
      except BlockingIOError:
        await wait_until_readable(self._fd)
      except OSError:
        return b""

  def write(self, data: bytes) -> None:
    if self._is_open:
      self._unwritten += data
      self._flush()

  async def close(self) -> None:
    if self._is_open:
      self._is_open = False
      asyncio.get_running_loop().remove_writer(self._fd)
      os.close(self._fd)

  def _flush(self) -> None:
    loop = asyncio.get_running_loop()
    try:
      del self._unwritten[: os.write(self._fd, self._unwritten)]
    except BlockingIOError:
      pass
    except OSError:
      self._unwritten.clear()
    if self._unwritten:
      loop.add_writer(self._fd, self._flush)
    else:
      loop.remove_writer(self._fd)
