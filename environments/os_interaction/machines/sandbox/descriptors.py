"""Open files of a sandbox, read and written without a thread per file."""

import asyncio
import os
from collections.abc import Sequence

from agentrl_jax.env.session_container_stream import READ_BYTES, Terminal


async def until_readable(file: int) -> None:
  """Waits until there is something to read, or nobody left to write."""
  loop = asyncio.get_running_loop()
  readable = loop.create_future()

  def note() -> None:
    if not readable.done():
      readable.set_result(None)

  loop.add_reader(file, note)
  try:
    await readable
  finally:
    loop.remove_reader(file)


async def read_pipes(
  pipes: Sequence[int], into: Sequence[bytearray], *, max_bytes: int
) -> None:
  """Reads all pipes to their ends; keeps the beginning of each."""
  async with asyncio.TaskGroup() as group:
    for pipe, kept in zip(pipes, into, strict=True):
      group.create_task(_read_pipe(pipe, kept, max_bytes))


async def _read_pipe(pipe: int, kept: bytearray, max_bytes: int) -> None:
  while True:
    try:
      data = os.read(pipe, READ_BYTES)
    except BlockingIOError:
      await until_readable(pipe)
      continue
    if not data:
      return
    kept += data[: max_bytes - len(kept)]
    await asyncio.sleep(0)  # others' turn, however fast this one is


class PtyTerminal(Terminal):
  """The outer side of a pseudo-terminal, as an open file that it now owns."""

  def __init__(self, file: int):
    self._file = file
    self._unwritten = bytearray()
    self._is_open = True
    os.set_blocking(file, False)

  async def read(self) -> bytes:
    """Waits for output; empty once nobody holds the inner side."""
    while True:
      try:
        return os.read(self._file, READ_BYTES)
      except BlockingIOError:
        await until_readable(self._file)
      except OSError:
        return b""

  def write(self, data: bytes) -> None:
    """Types `data` as fast as it is read."""
    if self._is_open:
      self._unwritten += data
      self._write_on()

  async def close(self) -> None:
    """Hangs up."""
    if self._is_open:
      self._is_open = False
      asyncio.get_running_loop().remove_writer(self._file)
      os.close(self._file)

  def _write_on(self) -> None:
    loop = asyncio.get_running_loop()
    try:
      del self._unwritten[: os.write(self._file, self._unwritten)]
    except BlockingIOError:
      pass
    except OSError:
      self._unwritten.clear()
    if self._unwritten:
      loop.add_writer(self._file, self._write_on)
    else:
      loop.remove_writer(self._file)
