"""`/v1/chat/completions`: conversations with tools, kept exact to the token."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.messages import Message
from agentrl_jax.rollout.api import MAX_TOP
from agentrl_jax.rollout.openai.choices import Choice, Delta
from agentrl_jax.rollout.openai.conversation_cache import CallContext
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.fields import Fields
from agentrl_jax.rollout.openai.messages import (
  read_messages,
  unknown_fields,
)
from agentrl_jax.rollout.openai.requests import (
  CompletionRequest,
  ServingLimits,
  read_completion_request,
  refuse_long,
)
from agentrl_jax.rollout.openai.responses import (
  Envelope,
  chat_logprobs,
  message_json,
  token_fields,
)
from agentrl_jax.rollout.openai.structured_output import read_structured_output
from agentrl_jax.rollout.server.errors import ApiError

_ID_SIZE = 9  # letters and digits, as Mistral's templates want them


class ChatCall:
  """One call, read and checked."""

  def __init__(
    self,
    fields: Fields,
    limits: ServingLimits,
    codec: ChatCodec | None,
    context: CallContext,
  ):
    if codec is None:
      raise ApiError(
        "a chat needs a tokenizer and a chat template, and this server was "
        "started without: give it the run's folder",
        code="no_tokenizer",
      )
    found = fields.required("messages")
    messages = read_messages(found)
    self.ignored = unknown_fields(found)
    _refuse_long(messages, limits, codec)
    self._form = read_structured_output(fields, codec)
    self._wants_logprobs = fields.flag("logprobs")
    num_top = _num_top(fields, self._wants_logprobs)
    fields.rename("max_completion_tokens", "max_tokens")
    self.request: CompletionRequest = read_completion_request(
      fields, limits, max_tokens=None, num_top=num_top
    )
    fields.close()
    if self._form.grammar and not self.request.ends_at_stops:
      raise ApiError(
        "ignore_eos=true and an answer that has to keep to a form are not "
        "supported together: its form says where it ends. Leave one out",
        param="ignore_eos",
        code="unsupported_value",
      )
    self._messages, self._tools = messages, self._form.tools
    self._codec, self._talk = codec, context
    self.prompts: Sequence[np.ndarray] = [
      context.prompt(messages, self._tools, codec)
    ]
    context.check(self.request, self.prompts)
    self.envelope = Envelope("chat.completion", "chatcmpl", self.request.model)
    self._begun: set[int] = set()  # choices whose role has been said
    self._told: dict[int, Message] = {}

  def draws(self, policy_slot: int) -> list[Choice]:
    """The answers to be drawn."""
    (prompt,) = self.prompts
    request = self._talk.complete(self.request)
    size = self._talk.room(prompt, request, "max_completion_tokens")
    return [
      Choice(
        index,
        prompt,
        request.spec(
          policy_slot=policy_slot,
          max_tokens=size,
          template_stops=self._codec.stop_tokens,
          number=index,
          grammar=self._form.grammar,
        ),
        Detokenizer(self._codec.decode, request.stops),
      )
      for index in range(request.n)
    ]

  def settled(self, draw: Choice) -> None:
    """Reads the answer, and has it remembered."""
    self._told[draw.index] = message = self._read(draw)
    self._talk.heard(draw, [*self._messages, message], self._tools)

  def whole(self, draw: Choice) -> dict[str, Any]:
    """One choice, complete."""
    piece = draw.answer
    return {
      "index": draw.index,
      "message": message_json(self._told[draw.index]),
      "logprobs": self._logprobs(piece),
      "finish_reason": self._finish_reason(draw),
      "stop_reason": draw.stop_reason,
      **token_fields(self.request, piece),
    }

  def chunks(self, draw: Choice, delta: Delta) -> Iterator[dict[str, Any]]:
    """What a delta of one choice adds.

    Where calls are looked for, the text is read once it is whole: only then is
    it known what of it is a call.
    """
    if draw.index not in self._begun:
      self._begun.add(draw.index)
      yield self._chunk(draw, {"role": "assistant", "content": ""})
    told = self._told[draw.index] if delta.is_last else None
    text = delta.text
    if self._form.reads_calls:
      text = told.content if told else ""
    added = {"content": text} if text else {}
    if told is not None and told.tool_calls:
      calls = message_json(told)["tool_calls"]
      added["tool_calls"] = [{"index": n, **c} for n, c in enumerate(calls)]
    yield {
      **self._chunk(draw, added),
      "logprobs": self._logprobs(delta.piece),
      "finish_reason": self._finish_reason(draw) if told else None,
      "stop_reason": draw.stop_reason if told else None,
      **token_fields(self.request, delta.piece),
    }

  def extra(self) -> dict[str, Any]:
    """What the answer says beside its choices."""
    if not self.request.return_token_ids:
      return {}
    return {"prompt_token_ids": self.prompts[0].tolist()}

  def _chunk(self, draw: Choice, added: dict[str, Any]) -> dict[str, Any]:
    return {
      "index": draw.index,
      "delta": added,
      "logprobs": None,
      "finish_reason": None,
    }

  def _logprobs(self, piece: Any) -> dict[str, Any] | None:
    if not self._wants_logprobs:
      return None
    return chat_logprobs(self.request, piece, self._codec.decode)

  def _finish_reason(self, draw: Choice) -> str:
    return (
      "tool_calls" if self._told[draw.index].tool_calls else draw.finish_reason
    )

  def _read(self, draw: Choice) -> Message:
    """The answer as a message; calls that cannot be read stay text."""
    plain = Message("assistant", draw.text)
    if not self._form.reads_calls or draw.stop_reason is not None:
      return plain
    found = self._codec.read(draw.answer.sampled)
    if not found.tool_calls or not all(c.name for c in found.tool_calls):
      return plain
    seen = hashlib.sha256(draw.prompt.tobytes())
    seen.update(draw.answer.sampled.tobytes())
    return dataclasses.replace(
      found,
      tool_calls=tuple(
        dataclasses.replace(call, id=_call_id(seen.digest(), n))
        for n, call in enumerate(found.tool_calls)
      ),
    )


def _num_top(fields: Fields, wants_logprobs: bool) -> int:
  found = fields.integer("top_logprobs", 0, low=0, high=MAX_TOP) or 0
  if found and not wants_logprobs:
    raise ApiError(
      f"top_logprobs={found} are told beside the chosen token's own: give "
      "logprobs=true with it",
      param="top_logprobs",
    )
  return found


def _refuse_long(
  messages: Sequence[Message], limits: ServingLimits, codec: ChatCodec
) -> None:
  """Templates may leave out thoughts of the policy's, and nothing else."""
  sizes = [(m.role, len(m.content.encode())) for m in messages]
  refuse_long(
    limits, codec, sum(size for role, size in sizes if role != "assistant")
  )
  calls = [call for message in messages for call in message.tool_calls]
  called = sum(len(call.arguments.encode()) for call in calls)
  refuse_long(limits, codec, sum(n for _, n in sizes) + called, times=4)


def _call_id(conversation: bytes, number: int) -> str:
  """The same for the same tokens, so that a repeated answer is the same."""
  named = hashlib.sha256(conversation + number.to_bytes(4))
  return named.hexdigest()[:_ID_SIZE]
