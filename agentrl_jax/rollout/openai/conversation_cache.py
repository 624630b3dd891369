"""What was said is kept as tokens, so that no answer is tokenised twice.

A chat call sends the whole conversation as text. Where it begins with one that
this server has answered, the tokens of that one are taken as they were sent and
sampled, and only what is new is rendered. What is not remembered (any more) is
rendered as a whole by the chat template.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.messages import Message, Tool, message_to_json
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.requests import (
  CompletionRequest,
  ServingLimits,
  room,
)
from agentrl_jax.rollout.server.errors import ApiError

REMEMBERED_TOKENS = 1 << 22  # 16 MiB of them


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedPrefix:
  """A conversation up to the end of an answer of ours, as tokens."""

  stream: np.ndarray  # int32 [T]
  ended_by: int | None  # the stop token that it ends with

  @classmethod
  def by(cls, draw: Choice) -> "TokenizedPrefix":
    """What stands after an answer."""
    stream = np.concatenate([draw.prompt, draw.answer.sampled])
    return cls(stream.astype(np.int32), draw.ended_by)


class CallContext:
  """What a call belongs to; this one belongs to nothing, and leaves nothing."""

  def __init__(self, limits: ServingLimits):
    self.limits = limits

  def room(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Tokens that the answer may have; `PromptTooLong` if there are none."""
    return room(self.limits, prompt, request.max_tokens, name=name)

  def policy_slot(self, named: int | None) -> int:
    """The policy slot that answers; None: the call names none."""
    return named or 0

  def complete(self, request: CompletionRequest) -> CompletionRequest:
    """The call, with what it leaves to whom it belongs to."""
    return request

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Raises `ApiError` for a call that does not belong here."""

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """A conversation as tokens, up to where the policy writes."""
    return rendered(codec, messages, tools)

  def heard(
    self,
    draw: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
  ) -> None:
    """An answer is whole; in a chat, `messages` ends with it."""


class ConversationCache(CallContext):
  """Remembers the conversations that were answered last."""

  def __init__(
    self, limits: ServingLimits, *, max_tokens: int = REMEMBERED_TOKENS
  ):
    super().__init__(limits)
    self._max_tokens, self._num_tokens = max_tokens, 0
    self._lock = threading.Lock()  # calls are read in threads
    self._said: collections.OrderedDict[bytes, TokenizedPrefix] = (
      collections.OrderedDict()
    )

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """The longest beginning that is remembered, and the rest rendered."""
    keys = conversation_keys(messages, tools)
    for end in range(len(messages) - 1, 0, -1):
      if messages[end - 1].role == "assistant":
        said = self._find(keys[end - 1])
        if said is not None:
          return extended(said, messages[end:], codec)
    return rendered(codec, messages, tools)

  def _find(self, key: bytes) -> TokenizedPrefix | None:
    with self._lock:
      found = self._said.get(key)
      if found is not None:
        self._said.move_to_end(key)
      return found

  def heard(
    self,
    draw: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
  ) -> None:
    """Keeps it, and forgets what was not asked for the longest."""
    key = conversation_keys(messages, tools)[-1]
    said = TokenizedPrefix.by(draw)
    with self._lock:
      if (known := self._said.pop(key, None)) is not None:
        self._num_tokens -= len(known.stream)
      self._said[key] = said
      self._num_tokens += len(said.stream)
      while self._num_tokens > self._max_tokens:
        _, forgotten = self._said.popitem(last=False)
        self._num_tokens -= len(forgotten.stream)


def rendered(
  codec: ChatCodec, messages: Sequence[Message], tools: Sequence[Tool]
) -> np.ndarray:
  """A whole conversation by its template."""
  with _shown():
    return codec.start(messages, tools)


def extended(
  said: TokenizedPrefix, messages: Sequence[Message], codec: ChatCodec
) -> np.ndarray:
  """What was said, verbatim, and new messages by their template."""
  with _shown():
    new = codec.extend(messages, ended_by=_stop(said, codec))
  return np.concatenate([said.stream, new]).astype(np.int32)


@contextlib.contextmanager
def _shown() -> Iterator[None]:
  """Around a template, which is a model's own program and takes what it takes.

  A schema can be of any shape, and not every template expects each.
  """
  try:
    yield
  except (ValueError, TypeError, AttributeError, LookupError) as error:
    raise ApiError(
      "the chat template cannot show these messages and tools: "
      f"{type(error).__name__}: {str(error)[:500]}",
      param="messages",
    ) from error


def _stop(said: TokenizedPrefix, codec: ChatCodec) -> int | None:
  """A stop token of the caller's own does not end a message."""
  return said.ended_by if said.ended_by in codec.stop_tokens else None


def conversation_keys(
  messages: Sequence[Message], tools: Sequence[Tool]
) -> list[bytes]:
  """A key after each message, of all up to it."""
  key, keys = tools_key(tools), []
  for message in messages:
    key = _digest([key.hex(), _canonical(message)])
    keys.append(key)
  return keys


def tools_key(tools: Sequence[Tool]) -> bytes:
  """Equal for equal tools."""
  return _digest([[t.name, t.description, dict(t.parameters)] for t in tools])


def _canonical(message: Message) -> Any:
  """A message, whatever its way through a client's own objects did to it."""
  body = message_to_json(message)
  if message.role == "assistant":
    body["content"] = message.content.strip()
    for call in body.get("tool_calls", ()):
      call["function"]["arguments"] = _parsed(call["function"]["arguments"])
  return body


def _parsed(text: str) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return text


def _digest(value: Any) -> bytes:
  text = json.dumps(value, sort_keys=True, ensure_ascii=False)
  return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
