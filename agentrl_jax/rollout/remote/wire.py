"""Requests and answers as bytes, and errors as HTTP statuses.

A message is an envelope (magic, version, CRC-32) around MessagePack; arrays are
little-endian bytes in it. Messages of another version, cut short or altered are
refused. Needs no jax.
"""

import dataclasses
import operator
import struct
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any

import aiohttp
import msgspec
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
from agentrl_jax.rollout.api import (
  MAX_BIASES,
  MAX_STOPS,
  Completion,
  SamplingParams,
)

VERSION = 6
MAX_GRAMMAR = 1 << 19  # bytes of a grammar
MAX_FRAME = 1 << 26  # bytes of a stream's frame; four million tokens at once
GENERATE, STREAM, HEALTH = "/generate", "/stream", "/health"
CONTENT_TYPE = "application/octet-stream"
ERROR_HEADER = "X-AgentRL-Error"  # the name of the error's class

# Magic, version, CRC-32 of all bytes after it.
_ENVELOPE = struct.Struct("<4sHxxI")
_REQUEST, _ANSWER = b"ARLQ", b"ARLA"
# Kind, size of the content.
_FRAME = struct.Struct("<cI")
_CHUNK, _END, _FAULT = b"P", b"E", b"F"
_TOKEN, _LOGPROB = np.dtype("<i4"), np.dtype("<f4")


class WireError(GeneratorFault):
  """The bytes are no request or answer of this version."""


class Draining(ServerFull):
  """The server finishes its requests and accepts no new ones."""


class NotServing(ServerFull):
  """The policy slot has no weights yet."""


# The first class that fits decides.
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

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Natural32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Request(
  msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True
):
  """A prompt and the fields of a `SamplingParams`, which have these names."""

  prompt: bytes
  policy_slot: _Int32
  temperature: float
  top_k: _Int32
  top_p: float
  min_p: float
  max_tokens: _Int32
  stop_tokens: Annotated[
    tuple[_Natural32, ...], msgspec.Meta(max_length=MAX_STOPS)
  ]
  seed: int
  conversation: int
  grammar: str
  frequency_penalty: float
  presence_penalty: float
  logit_bias: Annotated[
    tuple[tuple[_Int32, float], ...], msgspec.Meta(max_length=MAX_BIASES)
  ]
  num_top: _Int32
  top_is_raw: bool


class _Answer(
  msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True
):
  """A `Completion`; `num_top` is None where alternatives were not requested."""

  sampled: bytes
  behavior_logprob: bytes
  raw_logprob: bytes
  version: bytes
  policy_slot: int
  num_reused: int
  num_top: _Natural32 | None = None
  top_token: bytes = b""
  top_logprob: bytes = b""
  # Bytes of a number, and the shape; None without experts.
  experts_form: tuple[_Natural32, _Natural32, _Natural32, _Natural32] | None = (
    None
  )
  experts: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(_Request)
_answer_decoder = msgspec.msgpack.Decoder(_Answer)
_fault_decoder = msgspec.msgpack.Decoder(tuple[str, str])


def encode_request(
  prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
) -> bytes:
  """Encodes a request. Raises `ConfigError` if that is impossible."""
  try:
    content = _encoder.encode(
      _Request(
        prompt=_tokens(prompt).tobytes(),
        policy_slot=_int32(sampling.policy_slot),
        temperature=float(sampling.temperature),
        top_k=_int32(sampling.top_k),
        top_p=float(sampling.top_p),
        min_p=float(sampling.min_p),
        max_tokens=_int32(sampling.max_tokens),
        stop_tokens=tuple(map(_int32, sampling.stop_tokens)),
        seed=operator.index(sampling.seed) % 2**64,
        conversation=operator.index(sampling.conversation) % 2**64,
        grammar=sampling.grammar,
        frequency_penalty=float(sampling.frequency_penalty),
        presence_penalty=float(sampling.presence_penalty),
        logit_bias=tuple((_int32(t), float(x)) for t, x in sampling.logit_bias),
        num_top=_int32(sampling.num_top),
        top_is_raw=sampling.top_is_raw,
      )
    )
  except (TypeError, ValueError, OverflowError) as error:
    raise ConfigError(
      "a prompt is a row of token ids, a grammar is text, and "
      f"{dataclasses.replace(sampling, grammar='', logit_bias=())} has numbers "
      f"of 32 bits; this one cannot be sent: {error}"
    ) from error
  if (size := len(sampling.grammar.encode())) > MAX_GRAMMAR:
    raise ConfigError(
      f"a grammar of {size} bytes cannot be sent, {MAX_GRAMMAR} are the limit: "
      "offer fewer functions at once, or ones with smaller schemas"
    )
  return _seal(_REQUEST, content)


def decode_request(body: bytes) -> tuple[np.ndarray, SamplingParams]:
  """Decodes the prompt, int32 [T], and its parameters. Raises `WireError`."""
  content = _open(_REQUEST, body)
  try:
    request = _request_decoder.decode(content)
    fields = msgspec.structs.asdict(request)
    prompt = _array(fields.pop("prompt"), _TOKEN)
    return prompt, SamplingParams(**fields)
  except _UNREADABLE as error:
    raise WireError(f"{len(body)} bytes are no request: {error}") from error


def encode_answer(answer: Completion) -> bytes:
  """Encodes an answer."""
  top: tuple[Any, ...] = (None, b"", b"")
  if answer.top_token is not None and answer.top_logprob is not None:
    top = (
      answer.top_token.shape[1],
      _bytes(answer.top_token, _TOKEN),
      _bytes(answer.top_logprob, _LOGPROB),
    )
  experts: tuple[Any, ...] = ()
  if (numbers := answer.experts) is not None:
    form = (numbers.dtype.itemsize, *numbers.shape)
    experts = form, _bytes(numbers, numbers.dtype.newbyteorder("<"))
  return _seal(
    _ANSWER,
    _encoder.encode(
      _Answer(
        _bytes(answer.sampled, _TOKEN),
        _bytes(answer.behavior_logprob, _LOGPROB),
        _bytes(answer.raw_logprob, _LOGPROB),
        _bytes(answer.version, _TOKEN),
        int(answer.policy_slot),
        int(answer.num_reused),
        *top,
        *experts,
      )
    ),
  )


def decode_answer(body: bytes) -> Completion:
  """Decodes an answer. Raises `WireError`."""
  content = _open(_ANSWER, body)
  try:
    answer = _answer_decoder.decode(content)
    sampled = _array(answer.sampled, _TOKEN)
    top_token = top_logprob = None
    if answer.num_top is not None:
      shape = (len(sampled), answer.num_top)
      top_token = _array(answer.top_token, _TOKEN).reshape(shape)
      top_logprob = _array(answer.top_logprob, _LOGPROB).reshape(shape)
    experts = None
    if answer.experts_form is not None:
      size, *form = answer.experts_form
      if size not in (1, 2):
        raise ValueError(f"numbers of experts have 1 or 2 bytes, not {size}")
      experts = _array(answer.experts, np.dtype(f"<u{size}")).reshape(form)
    rows = {
      "behavior_logprob": _array(answer.behavior_logprob, _LOGPROB),
      "raw_logprob": _array(answer.raw_logprob, _LOGPROB),
      "version": _array(answer.version, _TOKEN),
    }
    for name, row in rows.items():
      if len(row) != len(sampled):
        raise ValueError(f"{name} has {len(row)} of {len(sampled)} tokens")
  except _UNREADABLE as error:
    raise WireError(f"{len(body)} bytes are no answer: {error}") from error
  return Completion(
    sampled,
    **rows,
    policy_slot=answer.policy_slot,
    num_reused=answer.num_reused,
    top_token=top_token,
    top_logprob=top_logprob,
    experts=experts,
  )


def encode_chunk(chunk: Completion) -> bytes:
  """Encodes the frame of sampled tokens."""
  return _frame(_CHUNK, encode_answer(chunk))


def encode_end() -> bytes:
  """Encodes the frame after the last chunk."""
  return _frame(_END, b"")


def encode_fault(error: AgentRLError) -> bytes:
  """Encodes the frame of an error, which is the last one."""
  return _frame(_FAULT, _encoder.encode((name_of(error), str(error)[:1000])))


async def read_chunks(
  reader: aiohttp.StreamReader, sender: str
) -> AsyncGenerator[Completion]:
  """Yields the chunks of one answer as they come.

  Raises the error with which `sender` ended it, `EOFError` if it was cut, and
  `WireError` for bytes that are no frame.
  """
  while True:
    kind, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if kind not in (_CHUNK, _END, _FAULT) or size > MAX_FRAME:
      raise WireError(
        f"{sender}: a frame of an answer is a chunk, an end or a fault of up "
        f"to {MAX_FRAME} bytes; one of kind {kind!r} and {size} bytes came"
      )
    content = await reader.readexactly(size)
    if kind == _END:
      return
    if kind == _FAULT:
      raise _decode_fault(content, sender)
    yield decode_answer(content)


def status_of(error: AgentRLError) -> int:
  """Returns the HTTP status of an error."""
  return next(
    (status for kind, status in STATUSES.items() if isinstance(error, kind)),
    500,
  )


def name_of(error: AgentRLError) -> str:
  """Returns the name from which `error_of` restores the error."""
  kinds = (kind for kind in STATUSES if isinstance(error, kind))
  return next(kinds, GeneratorFault).__name__


def error_of(name: str | None, status: int, reason: str) -> AgentRLError:
  """Restores the error with which a server answered."""
  if name in _BY_NAME:
    return _BY_NAME[name](reason)
  return GeneratorFault(f"HTTP {status} came instead of an answer: {reason}")


class ServedPolicySlot(msgspec.Struct, frozen=True, rename={"version": "step"}):
  """The weights that a policy slot serves."""

  version: int  # optimizer updates behind them; `step` on the wire
  publication: int  # counts publications: no two share one


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerStatus:
  """The health that a server reports."""

  policy_slots: tuple[ServedPolicySlot | None, ...]
  num_inside: int  # requests that are being answered
  num_waiting: int  # requests that wait for a slot
  is_draining: bool = False
  trouble: str = ""  # a sentence, while something is wrong

  def answers(self, policy_slot: int) -> bool:
    """Returns whether the server accepts requests for a policy slot."""
    return (
      not self.is_draining
      and 0 <= policy_slot < len(self.policy_slots)
      and self.policy_slots[policy_slot] is not None
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the JSON that `status_from_json` reads."""
    return {"protocol": VERSION, **msgspec.to_builtins(self)}


def status_from_json(content: bytes) -> ServerStatus:
  """Reads a server's health. Raises `WireError` for another protocol."""
  try:
    fields = msgspec.json.decode(content, type=dict[str, Any])
    if (version := fields.pop("protocol", None)) != VERSION:
      raise ValueError(f"protocol {version}, not {VERSION}")
    return msgspec.convert(fields, ServerStatus)
  except _UNREADABLE as error:
    raise WireError(
      f"{content[:200]!r} is no rollout server's health: {error!r}"
    ) from error


# Errors of decoding; deep nesting is a RecursionError.
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, ConfigError)


def _tokens(prompt: Sequence[int] | np.ndarray) -> np.ndarray:
  token_T = np.asarray(prompt)
  if token_T.ndim != 1 or not np.can_cast(token_T.dtype, np.int64):
    raise TypeError(f"found {token_T.dtype}{list(token_T.shape)}")
  if np.any(token_T != token_T.astype(_TOKEN)):
    raise ValueError("found ids beyond 32 bits")
  return token_T.astype(_TOKEN)


def _int32(number: int) -> int:
  number = operator.index(number)
  if not -(2**31) <= number < 2**31:
    raise ValueError(f"found {number}")
  return number


def _bytes(array: np.ndarray, dtype: np.dtype[Any]) -> bytes:
  return array.astype(dtype).tobytes()


def _array(content: bytes, dtype: np.dtype[Any]) -> np.ndarray:
  """Copies an array, so that it can be written to."""
  return np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))


def _seal(magic: bytes, content: bytes) -> bytes:
  return _ENVELOPE.pack(magic, VERSION, zlib.crc32(content)) + content


def _open(magic: bytes, body: bytes) -> memoryview:
  """Returns the content of an intact message of this version."""
  kind = "a request" if magic == _REQUEST else "an answer"
  if body[: len(magic)] != magic:
    raise WireError(
      f"{kind} begins with {magic!r}; {len(body)} bytes came that begin with "
      f"{body[: len(magic)]!r}"
    )
  if len(body) < _ENVELOPE.size:
    raise WireError(f"{len(body)} bytes are less than the header of {kind}")
  _, version, checksum = _ENVELOPE.unpack_from(body)
  if version != VERSION:
    raise WireError(
      f"{kind} of wire version {version} came and this is version {VERSION}: "
      "run the same code on the learner and on every rollout server"
    )
  content = memoryview(body)[_ENVELOPE.size :]
  if zlib.crc32(content) != checksum:
    raise WireError(f"{kind} of {len(body)} bytes was altered on its way")
  return content


def _frame(kind: bytes, content: bytes) -> bytes:
  return _FRAME.pack(kind, len(content)) + content


def _decode_fault(content: bytes, sender: str) -> AgentRLError:
  try:
    name, reason = _fault_decoder.decode(content)
  except _UNREADABLE as error:
    raise WireError(
      f"{sender}: {content[:200]!r} came in place of an error: {error}"
    ) from error
  return error_of(name, 200, f"{sender}: {reason}")
