"""Requests and answers as bytes, and errors as HTTP statuses.

Token ids travel as little-endian arrays behind a small header, never as JSON:
an answer of a thousand tokens is 16 kB and takes microseconds to read. What is
of another version, cut short or altered is refused with a sentence. Needs no
jax.
"""

import dataclasses
import json
import struct
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from agentrl_jax.errors import (
  AgentRLError,
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  GrammarFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.rollout.api import MAX_STOPS, Answer, SamplingSpec

VERSION = 4
MAX_GRAMMAR = 1 << 19  # bytes of a grammar
GENERATE, HEALTH = "/generate", "/health"
CONTENT_TYPE = "application/octet-stream"
ERROR_HEADER = "X-AgentRL-Error"  # the name of what was raised

# Magic, version, CRC-32 of all that follows.
_ENVELOPE = struct.Struct("<4sHxxI")
_REQUEST, _ANSWER = b"ARLQ", b"ARLA"
# Prompt tokens, entries of the bias and bytes of the grammar after them, policy
# slot, max_tokens, top_k, alternatives, whether these are the policy's own,
# temperature, top_p, min_p, two penalties, seed, conversation, stop tokens.
_SPEC = struct.Struct(f"<IIIiiii?dddddQQ{MAX_STOPS}i")
_NO_STOP = -1  # fills up the stop tokens
# Sampled tokens, policy slot, prompt tokens reused, alternatives of each token;
# -1: none were asked for.
_SAMPLED = struct.Struct("<Iiii")
_TOKEN, _LOGPROB = np.dtype("<i4"), np.dtype("<f4")
_BIAS = np.dtype("<f8")


class WireError(GeneratorFault):
  """What came over the wire is no request or answer of this version."""


class Draining(ServerFull):
  """The server finishes what it has and takes nothing new."""


class NotServing(ServerFull):
  """The policy slot has no weights yet."""


# By the first that fits; what is no error of ours never gets here.
STATUSES: Mapping[type[AgentRLError], int] = {
  PromptTooLong: 413,
  Draining: 503,
  NotServing: 503,
  ServerFull: 503,
  WireError: 400,
  ConfigError: 400,
  DeadlineExceeded: 504,
  GrammarFault: 422,
  GeneratorFault: 500,
}
_BY_NAME = {kind.__name__: kind for kind in STATUSES}


def encode_request(
  prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
) -> bytes:
  """The bytes that `decode_request` reads. `ConfigError` if none can."""
  try:
    token_T, grammar = _tokens(prompt), spec.grammar.encode()
    head = _SPEC.pack(
      len(token_T),
      len(spec.logit_bias),
      len(grammar),
      spec.policy_slot,
      spec.max_tokens,
      spec.top_k,
      spec.num_top,
      spec.top_is_raw,
      spec.temperature,
      spec.top_p,
      spec.min_p,
      spec.frequency_penalty,
      spec.presence_penalty,
      spec.seed % 2**64,
      spec.conversation % 2**64,
      *spec.stop_tokens,
      *[_NO_STOP] * (MAX_STOPS - len(spec.stop_tokens)),
    )
    bias = _bias_bytes(spec)
  except (struct.error, TypeError, ValueError, OverflowError) as error:
    raise ConfigError(
      "a prompt is a row of token ids, a grammar is text, and "
      f"{dataclasses.replace(spec, grammar='', logit_bias=())} has numbers of "
      f"32 bits; this one cannot be sent: {error}"
    ) from error
  if len(grammar) > MAX_GRAMMAR:
    raise ConfigError(
      f"a grammar of {len(grammar)} bytes cannot be sent, {MAX_GRAMMAR} are "
      "the limit: offer fewer functions at once, or ones with smaller schemas"
    )
  return _sealed(_REQUEST, head + token_T.tobytes() + bias + grammar)


def decode_request(body: bytes) -> tuple[np.ndarray, SamplingSpec]:
  """The prompt, int32 [T], and how to answer it. Raises `WireError`."""
  content = _opened(_REQUEST, body, _SPEC.size)
  number, num_biases, size, *fields = _SPEC.unpack_from(content)
  end = len(content) - size
  begin = end - num_biases * (_TOKEN.itemsize + _BIAS.itemsize)
  if begin < _SPEC.size:
    raise WireError(
      f"{num_biases} biases and {size} bytes of a grammar are not in "
      f"{len(content)}"
    )
  (token_T,) = _arrays(content[_SPEC.size : begin], number, (_TOKEN,))
  biases = _arrays(content[begin:end], num_biases, (_TOKEN, _BIAS))
  policy_slot, max_tokens, top_k, num_top, top_is_raw, temperature, *fields = (
    fields
  )
  top_p, min_p, frequency, presence, seed, chat, *stops = fields
  return token_T.astype(np.int32), SamplingSpec(
    policy_slot=policy_slot,
    temperature=temperature,
    top_k=top_k,
    top_p=top_p,
    min_p=min_p,
    max_tokens=max_tokens,
    stop_tokens=tuple(id for id in stops if id >= 0),
    seed=seed,
    conversation=chat,
    grammar=_text(content[end:]),
    frequency_penalty=frequency,
    presence_penalty=presence,
    logit_bias=tuple(zip(*(x.tolist() for x in biases), strict=True)),
    num_top=num_top,
    top_is_raw=top_is_raw,
  )


def encode_answer(answer: Answer) -> bytes:
  """The bytes that `decode_answer` reads."""
  number = -1 if answer.top_token is None else answer.top_token.shape[1]
  head = _SAMPLED.pack(
    len(answer.sampled), answer.policy_slot, answer.num_reused, number
  )
  arrays = [
    (answer.sampled, _TOKEN),
    (answer.behavior_logprob, _LOGPROB),
    (answer.raw_logprob, _LOGPROB),
    (answer.version, _TOKEN),
  ]
  if answer.top_token is not None and answer.top_logprob is not None:
    arrays += [(answer.top_token, _TOKEN), (answer.top_logprob, _LOGPROB)]
  return _sealed(
    _ANSWER, head + b"".join(x.astype(dtype).tobytes() for x, dtype in arrays)
  )


def decode_answer(body: bytes) -> Answer:
  """What was sampled. Raises `WireError`."""
  content = _opened(_ANSWER, body, _SAMPLED.size)
  number, policy_slot, num_reused, num_top = _SAMPLED.unpack_from(content)
  dtypes = (_TOKEN, _LOGPROB, _LOGPROB, _TOKEN)
  end = _SAMPLED.size + number * sum(dtype.itemsize for dtype in dtypes)
  sampled, behavior, raw, version = _arrays(
    content[_SAMPLED.size : end], number, dtypes
  )
  return Answer(
    sampled.astype(np.int32),
    behavior.astype(np.float32),
    raw.astype(np.float32),
    version.astype(np.int32),
    policy_slot=policy_slot,
    num_reused=num_reused,
    **_alternatives(content[end:], number, num_top),
  )


def _alternatives(
  content: bytes, number: int, num_top: int
) -> dict[str, np.ndarray]:
  """The likeliest tokens of an answer; nothing if none were asked for."""
  size = max(num_top, 0)
  token, logprob = _arrays(content, number * size, (_TOKEN, _LOGPROB))
  if num_top < 0:
    return {}
  return {
    "top_token": token.reshape(number, size).astype(np.int32),
    "top_logprob": logprob.reshape(number, size).astype(np.float32),
  }


def _bias_bytes(spec: SamplingSpec) -> bytes:
  tokens = [token for token, _ in spec.logit_bias]
  biases = [bias for _, bias in spec.logit_bias]
  return np.array(tokens, _TOKEN).tobytes() + np.array(biases, _BIAS).tobytes()


def status_of(error: AgentRLError) -> int:
  """The HTTP status that stands for an error."""
  return next(
    (status for kind, status in STATUSES.items() if isinstance(error, kind)),
    500,
  )


def name_of(error: AgentRLError) -> str:
  """What `error_of` knows the error by."""
  kinds = (kind for kind in STATUSES if isinstance(error, kind))
  return next(kinds, GeneratorFault).__name__


def error_of(name: str | None, status: int, reason: str) -> AgentRLError:
  """The error that a server answered with, to be raised here."""
  if name in _BY_NAME:
    return _BY_NAME[name](reason)
  return GeneratorFault(f"HTTP {status} came instead of an answer: {reason}")


@dataclasses.dataclass(frozen=True)
class ServedPolicySlot:
  """What a policy slot serves."""

  step: int  # optimizer updates behind the weights
  publication: int  # counts publications: no two share one


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerStatus:
  """What a server says of itself when it is asked for its health."""

  policy_slots: tuple[ServedPolicySlot | None, ...]
  num_inside: int  # requests that are being answered
  num_waiting: int  # for a slot
  is_draining: bool = False
  trouble: str = ""  # a sentence, while something is wrong

  def answers(self, policy_slot: int) -> bool:
    """Whether it takes requests for a policy slot."""
    return (
      not self.is_draining
      and 0 <= policy_slot < len(self.policy_slots)
      and self.policy_slots[policy_slot] is not None
    )

  def to_json(self) -> dict[str, Any]:
    """For `status_from_json`."""
    return {"protocol": VERSION, **dataclasses.asdict(self)}


def status_from_json(content: bytes) -> ServerStatus:
  """Raises `WireError` for what is no status of this protocol."""
  try:
    fields = json.loads(content)
    if (found := fields.pop("protocol")) != VERSION:
      raise ValueError(f"protocol {found}, not {VERSION}")
    policy_slots = tuple(
      s and ServedPolicySlot(**s) for s in fields.pop("policy_slots")
    )
    return ServerStatus(policy_slots=policy_slots, **fields)
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise WireError(
      f"{content[:200]!r} is no rollout server's health: {error!r}"
    ) from error


def _tokens(prompt: Sequence[int] | np.ndarray) -> np.ndarray:
  token_T = np.asarray(prompt)
  if token_T.ndim != 1 or not np.can_cast(token_T.dtype, np.int64):
    raise TypeError(f"found {token_T.dtype}{list(token_T.shape)}")
  if np.any(token_T != token_T.astype(_TOKEN)):
    raise ValueError("found ids beyond 32 bits")
  return token_T.astype(_TOKEN)


def _text(content: bytes) -> str:
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    raise WireError(f"a grammar came that is no text: {error}") from error


def _sealed(magic: bytes, content: bytes) -> bytes:
  return _ENVELOPE.pack(magic, VERSION, zlib.crc32(content)) + content


def _opened(magic: bytes, body: bytes, head_size: int) -> bytes:
  what = "a request" if magic == _REQUEST else "an answer"
  if body[: len(magic)] != magic:
    raise WireError(
      f"{what} begins with {magic!r}; {len(body)} bytes came that begin with "
      f"{body[: len(magic)]!r}"
    )
  if len(body) < _ENVELOPE.size + head_size:
    raise WireError(f"{len(body)} bytes are less than the header of {what}")
  _, version, checksum = _ENVELOPE.unpack_from(body)
  if version != VERSION:
    raise WireError(
      f"{what} of wire version {version} came and {VERSION} is spoken here: "
      "run the same code on the learner and on every rollout server"
    )
  content = body[_ENVELOPE.size :]
  if zlib.crc32(content) != checksum:
    raise WireError(f"{what} of {len(body)} bytes was altered on its way")
  return content


def _arrays(
  content: bytes, number: int, dtypes: Sequence[np.dtype[Any]]
) -> list[np.ndarray]:
  """Arrays of `number` entries each, one after the other."""
  expected = number * sum(dtype.itemsize for dtype in dtypes)
  if len(content) != expected:
    raise WireError(
      f"{number} tokens make {expected} bytes, and {len(content)} came"
    )
  arrays, begin = [], 0
  for dtype in dtypes:
    arrays.append(np.frombuffer(content, dtype, number, begin))
    begin += number * dtype.itemsize
  return arrays


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
  return _framed(_PIECE, encode_answer(piece))


def encode_end() -> bytes:
  """The frame after the last piece."""
  return _framed(_END, b"")


def encode_fault(error: AgentRLError) -> bytes:
  """The frame of an error, after which nothing comes."""
  return _framed(
    _FAULT, json.dumps([name_of(error), str(error)[:1000]]).encode()
  )


async def read_chunks(reader: Reader, sender: str) -> AsyncGenerator[Answer]:
  """The pieces of one answer, as they come.

  Raises the error that `sender` ended it with, `EOFError` if it was cut, and
  `WireError` for what is no frame.
  """
  while True:
    kind, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if kind not in (_PIECE, _END, _FAULT) or size > MAX_FRAME:
      raise WireError(
        f"{sender}: a frame of an answer is a piece, an end or a fault of up "
        f"to {MAX_FRAME} bytes; one of kind {kind!r} and {size} bytes came"
      )
    content = await reader.readexactly(size)
    if kind == _END:
      return
    if kind == _FAULT:
      raise _fault(content, sender)
    yield decode_answer(content)


def _framed(kind: bytes, content: bytes) -> bytes:
  return _FRAME.pack(kind, len(content)) + content


def _fault(content: bytes, sender: str) -> AgentRLError:
  try:
    name, reason = json.loads(content)
  except ValueError as error:
    raise WireError(
      f"{sender}: {content[:200]!r} came in place of an error: {error}"
    ) from error
  return error_of(name, 200, f"{sender}: {reason}")
