"""An answer on its way in pieces: frames of a response that is not over yet.

A frame is a byte that says what it is, a length, and content: a piece is an
answer as `rollout.remote.wire` has it, an end is empty, and a fault is what
ended the answer too early. A response that breaks off without either was cut.
Needs no jax.
"""

import json
import struct
from collections.abc import AsyncGenerator
from typing import Protocol

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.api import Answer
from agentrl_jax.rollout.remote import wire

STREAM = "/stream"
MAX_FRAME = 1 << 26  # bytes; four million tokens at once

_FRAME = struct.Struct("<cI")
_PIECE, _END, _FAULT = b"P", b"E", b"F"


class Reader(Protocol):
  """What frames are read from, such as an `asyncio.StreamReader`."""

  async def readexactly(self, n: int) -> bytes:
    """Waits for n bytes; raises `EOFError` if there are fewer."""
    ...


def encode_chunk(piece: Answer) -> bytes:
  """The frame of tokens that were sampled."""
  return _framed(_PIECE, wire.encode_answer(piece))


def encode_end() -> bytes:
  """The frame after the last piece."""
  return _framed(_END, b"")


def encode_fault(error: AgentRLError) -> bytes:
  """The frame of an error, after which nothing comes."""
  return _framed(
    _FAULT, json.dumps([wire.name_of(error), str(error)[:1000]]).encode()
  )


async def read_chunks(reader: Reader, sender: str) -> AsyncGenerator[Answer]:
  """The pieces of one answer, as they come.

  Raises the error that `sender` ended it with, `EOFError` if it was cut, and
  `WireError` for what is no frame.
  """
  while True:
    kind, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if kind not in (_PIECE, _END, _FAULT) or size > MAX_FRAME:
      raise wire.WireError(
        f"{sender}: a frame of an answer is a piece, an end or a fault of up "
        f"to {MAX_FRAME} bytes; one of kind {kind!r} and {size} bytes came"
      )
    content = await reader.readexactly(size)
    if kind == _END:
      return
    if kind == _FAULT:
      raise _fault(content, sender)
    yield wire.decode_answer(content)


def _framed(kind: bytes, content: bytes) -> bytes:
  return _FRAME.pack(kind, len(content)) + content


def _fault(content: bytes, sender: str) -> AgentRLError:
  try:
    name, reason = json.loads(content)
  except ValueError as error:
    raise wire.WireError(
      f"{sender}: {content[:200]!r} came in place of an error: {error}"
    ) from error
  return wire.error_of(name, 200, f"{sender}: {reason}")
