"""Frames of answers in pieces: what comes back, and what is refused."""

import asyncio
import struct
import unittest

import numpy as np

from agentrl_jax.errors import (
  DeadlineExceeded,
  GeneratorFault,
  GrammarFault,
)
from agentrl_jax.rollout.api import Answer
from agentrl_jax.rollout.remote import wire, wire_stream
from agentrl_jax.rollout.remote.chunks import Chunks, Differs


def piece_of(*tokens, version=3, reused=7):
  logprob = -np.arange(len(tokens), dtype=np.float32)
  return Answer(
    np.array(tokens, np.int32),
    logprob,
    2 * logprob,
    np.full(len(tokens), version, np.int32),
    policy_slot=1,
    num_reused=reused,
  )


async def read(*frames):
  reader = asyncio.StreamReader()
  reader.feed_data(b"".join(frames))
  reader.feed_eof()
  return [x async for x in wire_stream.read_chunks(reader, "server:1")]


class FramesTest(unittest.IsolatedAsyncioTestCase):
  async def test_pieces_come_back_until_the_end(self):
    pieces = [piece_of(4, 5, 6), piece_of(7)]
    frames = [wire_stream.encode_chunk(piece) for piece in pieces]
    found = await read(*frames, wire_stream.encode_end(), b"no more is read")
    self.assertEqual(len(found), 2)
    for a, b in zip(found, pieces, strict=True):
      for name in ("sampled", "behavior_logprob", "raw_logprob", "version"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
      self.assertEqual((a.policy_slot, a.num_reused), (1, 7))

  async def test_what_breaks_off_is_no_end(self):
    frame = wire_stream.encode_chunk(piece_of(4, 5))
    for cut in (0, 3, len(frame) - 1, len(frame)):
      with self.assertRaises(EOFError):
        await read(frame[:cut])

  async def test_errors_keep_their_kind_and_sentence(self):
    for error in (
      GrammarFault("nothing is allowed"),
      DeadlineExceeded("too late"),
      GeneratorFault("the engine stopped"),
    ):
      frames = (
        wire_stream.encode_chunk(piece_of(1)),
        (wire_stream.encode_fault(error)),
      )
      with self.assertRaisesRegex(type(error), f"server:1: {error}") as found:
        await read(*frames)
      self.assertIs(type(found.exception), type(error))

  async def test_what_is_no_frame_is_refused(self):
    too_large = struct.pack("<cI", b"P", wire_stream.MAX_FRAME + 1)
    for frame in (b"HTTP/1.1 200 OK", too_large):
      with self.assertRaisesRegex(wire.WireError, "server:1: a frame of"):
        await read(frame)
    with self.assertRaisesRegex(wire.WireError, "in place of an error"):
      await read(struct.pack("<cI", b"F", 2) + b"ow")
    altered = bytearray(wire_stream.encode_chunk(piece_of(1, 2)))
    altered[-1] ^= 1
    with self.assertRaisesRegex(wire.WireError, "altered"):
      await read(bytes(altered))


class PiecesTest(unittest.IsolatedAsyncioTestCase):
  async def handed(self, pieces):
    pieces.end()
    found = []
    while (piece := await pieces.get()) is not None:
      found.append(piece.sampled.tolist())
    return found

  async def test_another_server_goes_on_where_one_was_lost(self):
    pieces = Chunks()
    for piece in (piece_of(1, 2), piece_of(3)):
      pieces.put(piece)
    pieces.begin()
    for piece in (piece_of(1), piece_of(2, 3, 4), piece_of(5)):
      pieces.put(piece)
    self.assertEqual(await self.handed(pieces), [[1, 2], [3], [4], [5]])

  async def test_logprobs_are_cut_with_their_tokens(self):
    pieces = Chunks()
    pieces.put(piece_of(1))
    pieces.begin()
    pieces.put(piece_of(1, 2, 3))
    await pieces.get()
    rest = await pieces.get()
    np.testing.assert_array_equal(rest.behavior_logprob, [-1, -2])
    np.testing.assert_array_equal(rest.raw_logprob, [-2, -4])
    np.testing.assert_array_equal(rest.version, [3, 3])

  async def test_other_words_or_weights_are_no_continuation(self):
    for other in (piece_of(1, 9, 3), piece_of(1, 2, 3, version=4)):
      pieces = Chunks()
      pieces.put(piece_of(1, 2))
      pieces.begin()
      with self.assertRaisesRegex(Differs, "2 tokens of an answer"):
        pieces.put(other)
      self.assertEqual(await self.handed(pieces), [[1, 2]])


if __name__ == "__main__":
  unittest.main()
