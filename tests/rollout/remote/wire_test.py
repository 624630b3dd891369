"""Requests and answers are encoded without loss; other bytes are refused."""

import asyncio
import dataclasses
import json
import struct
import unittest

import msgspec
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax import errors
from agentrl_jax.errors import DeadlineExceeded, GeneratorFault, GrammarFault
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.remote import wire
from agentrl_jax.rollout.remote.generator import ResumableStream, StreamDiverged

INT32 = st.integers(-(2**31), 2**31 - 1)
TOKENS = st.lists(INT32, min_size=1, max_size=40)
SPECS = st.builds(
  SamplingParams,
  policy_slot=INT32,
  temperature=st.floats(allow_nan=False),
  top_k=INT32,
  top_p=st.floats(allow_nan=False),
  min_p=st.floats(allow_nan=False),
  max_tokens=INT32,
  stop_tokens=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
  seed=st.integers(0, 2**64 - 1),
  conversation=st.integers(0, 2**64 - 1),
  grammar=st.text(max_size=30),
  frequency_penalty=st.floats(allow_nan=False),
  presence_penalty=st.floats(allow_nan=False),
  logit_bias=st.lists(
    st.tuples(INT32, st.floats(allow_nan=False)), max_size=5
  ).map(tuple),
  num_top=INT32,
  top_is_raw=st.booleans(),
)
HEADER = wire._ENVELOPE.size
REQUEST = wire.encode_request([1, 2, 3], SamplingParams(seed=7))
ANSWER = wire.encode_answer(
  Completion(
    np.int32([4, 5]),
    np.float32([-0.5, -1]),
    np.float32([-0.25, -2]),
    np.int32([8, 9]),
    policy_slot=1,
    num_reused=2,
  )
)


def packed(fields) -> bytes:
  is_raw = isinstance(fields, bytes)
  return fields if is_raw else msgspec.msgpack.encode(fields)


class RoundTripTest(parameterized.TestCase):
  @pytest.mark.slow
  @given(TOKENS, SPECS)
  @settings(max_examples=60, deadline=None, derandomize=True)
  def test_request(self, tokens, spec):
    prompt, actual = wire.decode_request(wire.encode_request(tokens, spec))
    self.assertEqual(prompt.tolist(), tokens)
    self.assertEqual(prompt.dtype, np.int32)
    self.assertEqual(actual, spec)

  @given(st.integers(0, 50), st.integers(0, 2**32 - 1), INT32, INT32)
  @settings(max_examples=60, deadline=None, derandomize=True)
  def test_answer(self, size, seed, policy_slot, num_reused):
    # Any bits at all, so not-a-numbers and minus zero are among them.
    rows = np.random.default_rng(seed).integers(
      -(2**31), 2**31, (4, size), np.int32
    )
    answer = Completion(
      rows[0],
      rows[1].view(np.float32),
      rows[2].view(np.float32),
      rows[3],
      policy_slot=policy_slot,
      num_reused=num_reused,
    )
    actual = wire.decode_answer(wire.encode_answer(answer))
    self.assertEqual(
      (actual.policy_slot, actual.num_reused), (policy_slot, num_reused)
    )
    for name in ("sampled", "behavior_logprob", "raw_logprob", "version"):
      sent, came = getattr(answer, name), getattr(actual, name)
      self.assertEqual(came.dtype, sent.dtype, name)
      self.assertEqual(came.tobytes(), sent.tobytes(), name)

  @given(st.integers(0, 9), st.integers(0, 20))
  @settings(max_examples=30, deadline=None, derandomize=True)
  def test_alternatives(self, size, number):
    rng = np.random.default_rng(size)
    top = rng.integers(0, 2**31, (size, number), np.int32)
    logprob = -rng.random((size, number), np.float32)
    logprob[:, number // 2 :] = -np.inf
    zeros = np.zeros(size, np.float32)
    row = np.arange(size, dtype=np.int32)
    answer = Completion(
      row, zeros, zeros, row, policy_slot=0, top_token=top, top_logprob=logprob
    )
    actual = wire.decode_answer(wire.encode_answer(answer))
    np.testing.assert_array_equal(actual.top_token, top)
    np.testing.assert_array_equal(actual.top_logprob, logprob)

  @parameterized.parameters((np.uint8, 3), (np.uint16, 3), (np.uint8, 0))
  def test_experts(self, dtype, size):
    numbers = np.arange(size * 8).astype(dtype).reshape(size, 4, 2)
    answer = wire.decode_answer(ANSWER)
    self.assertIsNone(answer.experts)
    answer = dataclasses.replace(answer, experts=numbers)
    actual = wire.decode_answer(wire.encode_answer(answer)).experts
    self.assertEqual(actual.dtype, numbers.dtype)
    np.testing.assert_array_equal(actual, numbers)

  @parameterized.parameters(((1, 3, 4, 3),), ((4, 3, 4, 2),), ((1, 3, 4),))
  def test_experts_of_another_form_are_refused(self, form):
    fields = msgspec.msgpack.decode(ANSWER[HEADER:])
    body = packed([*fields[:6], None, b"", b"", form, bytes(24)])
    with self.assertRaises(wire.WireError):
      wire.decode_answer(wire._seal(wire._ANSWER, body))

  def test_a_negative_seed_draws_what_it_draws_here(self):
    spec = SamplingParams(seed=-5)
    _, actual = wire.decode_request(wire.encode_request([1], spec))
    self.assertEqual(actual.seed, spec.seed % 2**64)

  def test_numbers_that_do_not_fit_are_refused(self):
    for prompt, spec in (
      ([2**31], SamplingParams()),
      ([0.5], SamplingParams()),
      ([[1]], SamplingParams()),
      ([1], SamplingParams(max_tokens=2**31)),
      ([1], SamplingParams(grammar="\ud800")),
    ):
      with self.assertRaisesRegex(errors.ConfigError, "cannot be sent"):
        wire.encode_request(prompt, spec)


class GarbageTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("nothing", b"", "0 bytes came"),
    ("short", REQUEST[:20], "altered"),
    ("cut", REQUEST[:-1], "altered"),
    ("cut_to_its_name", REQUEST[:4], "less than the header"),
    ("longer", REQUEST + b"\0", "altered"),
    ("an_answer", ANSWER, "a request begins with"),
    ("json", b'{"prompt": [1, 2, 3], "temperature": 1.0}' * 3, "begins with"),
  )
  def test_request(self, body, sentence):
    with self.assertRaisesRegex(wire.WireError, sentence):
      wire.decode_request(body)

  def test_every_flipped_bit_is_seen(self):
    for body, decode in (
      (REQUEST, wire.decode_request),
      (ANSWER, wire.decode_answer),
    ):
      for bit in range(8 * len(body)):
        if 6 <= bit // 8 < 8:
          continue  # padding
        altered = bytearray(body)
        altered[bit // 8] ^= 1 << bit % 8
        with self.subTest(bit), self.assertRaises(wire.WireError):
          decode(bytes(altered))

  def test_another_version_is_named(self):
    other = bytearray(ANSWER)
    other[4] = 9
    with self.assertRaisesRegex(
      wire.WireError, "version 9 came and this is version 6"
    ):
      wire.decode_answer(bytes(other))

  def test_wrong_contents_are_refused(self):
    request = msgspec.msgpack.decode(REQUEST[HEADER:])
    answer = msgspec.msgpack.decode(ANSWER[HEADER:])

    def changed(fields, place, value):
      return [*fields[:place], value, *fields[place + 1 :]]

    for fields, sentence in (
      (changed(request, 0, b"abc"), "buffer size"),
      (changed(request, 1, 2**31), "<= 2147483647"),
      (changed(request, 2, "warm"), "Expected `float`"),
      (changed(request, 7, [1] * 5), "length <= 4"),
      (changed(request, 7, [-1]), ">= 0"),
      (changed(request, 13, [[1, 1.0]] * 1025), "length <= 1024"),
      (changed(request, 13, [[1]]), "length 2"),
      ([*request, 0], "length"),
      (request[:-1], "length"),
      ({"prompt": b""}, "Expected `array`"),
      (b"\x91" * 100_000, "recursion|depth|Expected"),
    ):
      body = wire._seal(wire._REQUEST, packed(fields))
      with (
        self.subTest(sentence),
        self.assertRaisesRegex(wire.WireError, f"no request: .*{sentence}"),
      ):
        wire.decode_request(body)
    for fields, sentence in (
      (changed(answer, 0, b"\0" * 4), "has 2 of 1 tokens"),
      (changed(answer, 3, b"\0" * 12), "version has 3 of 2 tokens"),
      (changed(answer, 2, b"\0" * 3), "buffer size"),
      (changed(answer, 6, 3), "reshape"),
      (changed(answer, 6, 2**31 - 1), "reshape"),
      (changed(answer, 6, -1), ">= 0"),
      ([*answer, 0], "length"),
    ):
      body = wire._seal(wire._ANSWER, packed(fields))
      with (
        self.subTest(sentence),
        self.assertRaisesRegex(wire.WireError, f"no answer: .*{sentence}"),
      ):
        wire.decode_answer(body)

  def test_a_grammar_is_text(self):
    altered = REQUEST[HEADER:].replace(b"\xa0", b"\xa1\xff", 1)
    with self.assertRaisesRegex(wire.WireError, "no request"):
      wire.decode_request(wire._seal(wire._REQUEST, altered))

  def test_a_grammar_has_a_limit(self):
    spec = SamplingParams(grammar="é" * (wire.MAX_GRAMMAR // 2))
    _, actual = wire.decode_request(wire.encode_request([1], spec))
    self.assertEqual(actual, spec)
    longer = dataclasses.replace(spec, grammar=spec.grammar + "x")
    with self.assertRaisesRegex(errors.ConfigError, "524289 bytes cannot"):
      wire.encode_request([1], longer)


class ErrorsTest(parameterized.TestCase):
  @parameterized.parameters(
    (errors.PromptTooLong, 413),
    (errors.ServerFull, 503),
    (wire.Draining, 503),
    (errors.GeneratorFault, 500),
    (errors.GrammarFault, 422),
    (errors.DeadlineExceeded, 504),
    (errors.ConfigError, 400),
    (wire.WireError, 400),
  )
  def test_errors_are_restored_from_name_and_status(self, kind, status):
    error = kind("why")
    self.assertEqual(wire.status_of(error), status)
    back = wire.error_of(wire.name_of(error), status, str(error))
    self.assertIs(type(back), kind)
    self.assertEqual(str(back), "why")

  def test_an_unknown_error_becomes_a_generator_fault(self):
    back = wire.error_of(None, 502, "bad gateway")
    self.assertIs(type(back), errors.GeneratorFault)
    self.assertIn("502", str(back))


class StatusTest(absltest.TestCase):
  def test_round_trip(self):
    status = wire.ServerStatus(
      policy_slots=(wire.ServedPolicySlot(3, 17), None),
      num_inside=2,
      num_waiting=1,
      trouble="x",
    )
    sent = json.dumps(status.to_json()).encode()
    self.assertEqual(wire.status_from_json(sent), status)
    self.assertEqual(
      [status.answers(policy_slot) for policy_slot in (-1, 0, 1, 2)],
      [False, True, False, False],
    )
    draining = dataclasses.replace(status, is_draining=True)
    self.assertFalse(draining.answers(0))

  def test_others_are_refused(self):
    for body in (b"", b"[]", b'{"protocol": 3}', b'{"protocol": 1}', b"<html>"):
      with self.assertRaisesRegex(wire.WireError, "no rollout server"):
        wire.status_from_json(body)


def piece_of(*tokens, version=3, reused=7):
  logprob = -np.arange(len(tokens), dtype=np.float32)
  return Completion(
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
  return [x async for x in wire.read_chunks(reader, "server:1")]


class FramesTest(unittest.IsolatedAsyncioTestCase):
  async def test_pieces_come_back_until_the_end(self):
    pieces = [piece_of(4, 5, 6), piece_of(7)]
    frames = [wire.encode_chunk(piece) for piece in pieces]
    actual = await read(*frames, wire.encode_end(), b"no more is read")
    self.assertEqual(len(actual), 2)
    for a, b in zip(actual, pieces, strict=True):
      for name in ("sampled", "behavior_logprob", "raw_logprob", "version"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
      self.assertEqual((a.policy_slot, a.num_reused), (1, 7))

  async def test_a_cut_stream_is_no_end(self):
    frame = wire.encode_chunk(piece_of(4, 5))
    for cut in (0, 3, len(frame) - 1, len(frame)):
      with self.assertRaises(EOFError):
        await read(frame[:cut])

  async def test_errors_keep_their_kind_and_sentence(self):
    for error in (
      GrammarFault("nothing is allowed"),
      DeadlineExceeded("too late"),
      GeneratorFault("the engine stopped"),
    ):
      frames = (wire.encode_chunk(piece_of(1)), wire.encode_fault(error))
      with self.assertRaisesRegex(type(error), f"server:1: {error}") as actual:
        await read(*frames)
      self.assertIs(type(actual.exception), type(error))

  async def test_bytes_that_are_no_frame_are_refused(self):
    too_large = struct.pack("<cI", b"P", wire.MAX_FRAME + 1)
    for frame in (b"HTTP/1.1 200 OK", too_large):
      with self.assertRaisesRegex(wire.WireError, "server:1: a frame of"):
        await read(frame)
    with self.assertRaisesRegex(wire.WireError, "in place of an error"):
      await read(struct.pack("<cI", b"F", 2) + b"ow")
    altered = bytearray(wire.encode_chunk(piece_of(1, 2)))
    altered[-1] ^= 1
    with self.assertRaisesRegex(wire.WireError, "altered"):
      await read(bytes(altered))


class PiecesTest(unittest.IsolatedAsyncioTestCase):
  async def handed(self, pieces):
    pieces.end()
    actual = []
    while (piece := await pieces.get()) is not None:
      actual.append(piece.sampled.tolist())
    return actual

  async def test_another_server_goes_on_where_one_was_lost(self):
    pieces = ResumableStream()
    for piece in (piece_of(1, 2), piece_of(3)):
      pieces.put(piece)
    pieces.restart()
    for piece in (piece_of(1), piece_of(2, 3, 4), piece_of(5)):
      pieces.put(piece)
    self.assertEqual(await self.handed(pieces), [[1, 2], [3], [4], [5]])

  async def test_logprobs_are_cut_with_their_tokens(self):
    pieces = ResumableStream()
    pieces.put(piece_of(1))
    pieces.restart()
    pieces.put(piece_of(1, 2, 3))
    await pieces.get()
    rest = await pieces.get()
    np.testing.assert_array_equal(rest.behavior_logprob, [-1, -2])
    np.testing.assert_array_equal(rest.raw_logprob, [-2, -4])
    np.testing.assert_array_equal(rest.version, [3, 3])

  async def test_a_server_with_other_tokens_does_not_continue_a_stream(self):
    for other in (piece_of(1, 9, 3), piece_of(1, 2, 3, version=4)):
      pieces = ResumableStream()
      pieces.put(piece_of(1, 2))
      pieces.restart()
      with self.assertRaisesRegex(StreamDiverged, "2 tokens of an answer"):
        pieces.put(other)
      self.assertEqual(await self.handed(pieces), [[1, 2]])
