"""Keeps conversations as tokens, so that no answer is tokenized twice.

A chat call sends the whole conversation as text. Where it begins with one that
this server answered, the tokens of that one are used as they were sent and
sampled, and only the new messages are rendered. A conversation that is not
cached is rendered completely by the chat template.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import Message, Tool, message_to_json
from agentrl_jax.errors import PromptTooLong
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.schema import CompletionRequest, ServingLimits
from agentrl_jax.rollout.openai.thoughts import agree, split, thought_keys
from agentrl_jax.rollout.server.errors import ApiError

MAX_CACHED_TOKENS = 1 << 22  # 16 MiB of them


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedPrefix:
  """A conversation up to the end of an answer, as tokens."""

  stream: np.ndarray  # int32 [T]
  ended_by: int | None  # the stop token at the end
  thoughts: Sequence[bytes] = ()  # keys of its messages' thoughts

  @classmethod
  def by(cls, choice: Choice, messages: Sequence[Message]) -> "TokenizedPrefix":
    """Returns the conversation that ends with an answer."""
    stream = np.concatenate([choice.prompt, choice.answer.sampled])
    return cls(stream.astype(np.int32), choice.ended_by, thought_keys(messages))


class CallContext:
  """Context of a call; this one keeps nothing."""

  calls = "free"  # the run's `sampling.calls`
  repeats = False  # an answer that is recorded

  def __init__(self, limits: ServingLimits):
    self.limits = limits

  def answer_budget(
    self, prompt: np.ndarray, request: CompletionRequest, name: str
  ) -> int:
    """Returns the tokens that the answer may have.

    Refuses what was asked for and does not fit, as OpenAI's servers do. Raises
    `PromptTooLong`; `name` is the field of the request.
    """
    asked = request.answer_tokens
    left = self.limits.context - len(prompt)
    if asked and not request.must_fit:
      asked = min(asked, max(left, 1))
    if left < (asked or 1):
      raise PromptTooLong(
        f"the prompt has {len(prompt)} tokens and {name}={asked or 1} more are "
        f"asked for; {self.limits.context} fit together. Shorten the prompt, "
        f"or ask for up to {max(left, 0)}"
      )
    return asked or left

  def policy_slot(self, named: int | None) -> int:
    """Returns the policy slot that answers; None: the call names none."""
    return named or 0

  def fill_in(self, request: CompletionRequest) -> CompletionRequest:
    """Returns the request with a seed, and what else the context decides."""
    if request.seed is not None:
      return request
    return request.model_copy(update={"seed": secrets.randbits(63)})

  def check(
    self, request: CompletionRequest, prompts: Sequence[np.ndarray]
  ) -> None:
    """Raises `ApiError` for a call that does not belong to the context."""

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns a conversation as tokens, up to where the policy writes."""
    return render(codec, messages, tools, self.limits.context)

  def record(
    self,
    choice: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
    calls: tuple[str, ...] | None = None,
  ) -> None:
    """Records a complete answer; in a chat, `messages` ends with it.

    `calls` are as in `Turn`.
    """


class ConversationCache(CallContext):
  """Caches the conversations that were answered last."""

  def __init__(
    self, limits: ServingLimits, *, max_tokens: int = MAX_CACHED_TOKENS
  ):
    super().__init__(limits)
    self._max_tokens, self._num_tokens = max_tokens, 0
    self._lock = threading.Lock()  # calls are read in threads
    self._prefixes: collections.OrderedDict[bytes, TokenizedPrefix] = (
      collections.OrderedDict()
    )

  def prompt(
    self, messages: Sequence[Message], tools: Sequence[Tool], codec: ChatCodec
  ) -> np.ndarray:
    """Returns the longest cached prefix with the other messages rendered."""
    keys = conversation_keys(messages, tools)
    thoughts = thought_keys(messages)
    for end in range(len(messages) - 1, 0, -1):
      if messages[end - 1].role == "assistant":
        prefix = self._find(keys[end - 1])
        if prefix is not None and agree(thoughts, prefix.thoughts):
          context = self.limits.context
          return extend(prefix, messages, end, codec, context)
    return render(codec, messages, tools, self.limits.context)

  def _find(self, key: bytes) -> TokenizedPrefix | None:
    with self._lock:
      prefix = self._prefixes.get(key)
      if prefix is not None:
        self._prefixes.move_to_end(key)
      return prefix

  def record(
    self,
    choice: Choice,
    messages: Sequence[Message] = (),
    tools: Sequence[Tool] = (),
    calls: tuple[str, ...] | None = None,
  ) -> None:
    """Caches the conversation, and evicts the least recently used ones."""
    key = conversation_keys(messages, tools)[-1]
    prefix = TokenizedPrefix.by(choice, messages)
    with self._lock:
      if (previous := self._prefixes.pop(key, None)) is not None:
        self._num_tokens -= len(previous.stream)
      self._prefixes[key] = prefix
      self._num_tokens += len(prefix.stream)
      while self._num_tokens > self._max_tokens:
        _, evicted = self._prefixes.popitem(last=False)
        self._num_tokens -= len(evicted.stream)


def render(
  codec: ChatCodec,
  messages: Sequence[Message],
  tools: Sequence[Tool],
  context: int,
) -> np.ndarray:
  """Renders a whole conversation with its template.

  Raises `PromptTooLong`, before it is tokenized, if `context` cannot hold it.
  """
  with _template_errors():
    return codec.start(messages, tools, room=context)


def extend(
  prefix: TokenizedPrefix,
  messages: Sequence[Message],
  num_known: int,
  codec: ChatCodec,
  context: int,
) -> np.ndarray:
  """Renders new messages with their template, after an unchanged prefix.

  The prefix has the first `num_known` messages. Raises as `render` does.
  """
  # A stop token of the request does not end a message.
  is_end = prefix.ended_by in codec.stop_tokens
  ended_by = prefix.ended_by if is_end else None
  with _template_errors():
    new = codec.extend(
      messages[num_known:],
      ended_by=ended_by,
      after=messages[num_known - 1],
      room=context - len(prefix.stream),
    )
  return np.concatenate([prefix.stream, new]).astype(np.int32)


def begin(
  codec: ChatCodec, prefill: Message | None, *, is_free: bool
) -> np.ndarray:
  """Returns the tokens of an answer that the client begins.

  Raises `ApiError` if the template, or a grammar, cannot go on from there.
  """
  if prefill is None:
    return np.empty(0, np.int32)
  with _template_errors():
    ids, text = codec.write(prefill)[:-1], split(prefill.content)[1]
  if not is_free or not codec.decode(ids).endswith(text):
    raise ApiError(
      "the last message begins the answer, and this model's template, or the "
      f"grammar of the call, cannot go on from {text[-40:]!r}: let it end "
      "without white space, or send a user's message after it",
      param="messages",
    )
  return ids


@contextlib.contextmanager
def _template_errors() -> Iterator[None]:
  """Translates errors of a template, which is a program of the model's.

  Schemas can have any shape, and not every template expects each.
  """
  try:
    yield
  except (ValueError, TypeError, AttributeError, LookupError) as error:
    raise ApiError(
      "the chat template cannot show these messages and tools: "
      f"{type(error).__name__}: {str(error)[:500]}",
      param="messages",
    ) from error


def conversation_keys(
  messages: Sequence[Message], tools: Sequence[Tool]
) -> list[bytes]:
  """Returns a key of each prefix of the conversation."""
  key, keys = tools_key(tools), []
  for message in messages:
    key = _digest([key.hex(), _canonical(message)])
    keys.append(key)
  return keys


def tools_key(tools: Sequence[Tool]) -> bytes:
  """Returns a key that is equal for equal tools."""
  return _digest([[t.name, t.description, dict(t.parameters)] for t in tools])


def _canonical(message: Message) -> Any:
  """Normalizes a message, since clients' own objects may rewrite its JSON.

  Thoughts have keys of their own, since clients may drop them.
  """
  body = message_to_json(message)
  if message.role == "assistant":
    body["content"] = split(message.content)[1].strip()
    for call in body.get("tool_calls", ()):
      call["function"]["arguments"] = _parsed(call["function"]["arguments"])
  return body


def _parsed(text: str) -> Any:
  try:
    return json.loads(text, parse_float=_number, parse_int=_number)
  except (ValueError, RecursionError):
    return text


def _number(text: str) -> float | int:
  """Reads a number as JavaScript does, which writes 1.0 as 1."""
  number = float(text)
  return int(number) if number.is_integer() else number


def _digest(value: Any) -> bytes:
  text = json.dumps(value, sort_keys=True, ensure_ascii=False)
  return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
