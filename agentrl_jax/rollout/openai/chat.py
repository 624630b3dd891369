"""`/v1/chat/completions`: conversations with tools, exact to the token."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.data.chat.codec import ChatCodec, num_bytes_of
from agentrl_jax.data.records import Message, message_to_json
from agentrl_jax.rollout.api import Completion
from agentrl_jax.rollout.openai.choices import (
  Choice,
  Delta,
  Envelope,
  alternatives_of,
  logprobs_of,
  sampling_params,
  token_fields,
)
from agentrl_jax.rollout.openai.conversation_cache import CallContext
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  ServingLimits,
)
from agentrl_jax.rollout.openai.structured_output import StructuredOutput
from agentrl_jax.rollout.openai.validation import wrong
from agentrl_jax.rollout.server.errors import ApiError

_ID_SIZE = 9  # letters and digits, as Mistral's templates want them


class ChatCall:
  """One call of `/v1/chat/completions`."""

  def __init__(
    self,
    request: ChatCompletionRequest,
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
    if request.n > limits.max_choices:
      raise wrong("n", request.n, f"at most {limits.max_choices}")
    messages = [message.to_message() for message in request.messages]
    _refuse_long(request, messages, limits, codec)
    self._output = StructuredOutput.of(request, codec)
    if self._output.grammar and request.ignore_eos:
      raise ApiError(
        "ignore_eos=true and structured output are not supported together: the "
        "grammar decides where the answer ends. Leave one out",
        param="ignore_eos",
        code="unsupported_value",
      )
    self.request = request
    self._messages, self._codec, self._context = messages, codec, context
    self.prompts: Sequence[np.ndarray] = [
      context.prompt(messages, self._output.tools, codec)
    ]
    context.check(request, self.prompts)
    self.envelope = Envelope("chat.completion", "chatcmpl", request.model)
    self._begun: set[int] = set()  # choices whose role was sent
    self._answers: dict[int, Message] = {}  # by choice

  def choices(self, policy_slot: int) -> list[Choice]:
    """Returns the choices to be sampled."""
    (prompt,) = self.prompts
    request = self._context.fill_in(self.request)
    max_tokens = self._context.answer_budget(
      prompt, request, "max_completion_tokens"
    )
    return [
      Choice(
        index,
        prompt,
        sampling_params(
          request,
          policy_slot=policy_slot,
          max_tokens=max_tokens,
          template_stops=self._codec.stop_tokens,
          number=index,
          grammar=self._output.grammar,
        ),
        Detokenizer(self._codec.decode, request.stop),
      )
      for index in range(request.n)
    ]

  def finish(self, choice: Choice) -> None:
    """Parses a complete answer, and records it in the call's context."""
    read = self._read(choice)
    self._answers[choice.index] = message = self._parse(choice, read)
    self._context.record(
      choice, [*self._messages, message], self._output.tools, read
    )

  def choice_json(self, choice: Choice) -> dict[str, Any]:
    """Returns a choice of the whole answer."""
    answer = choice.answer
    return {
      "index": choice.index,
      "message": _message_json(self._answers[choice.index]),
      "logprobs": self._logprobs(answer),
      "finish_reason": self._finish_reason(choice),
      "stop_reason": choice.stop_reason,
      **token_fields(self.request, answer),
    }

  def chunks_json(
    self, choice: Choice, delta: Delta
  ) -> Iterator[dict[str, Any]]:
    """Yields the choices of the chunks that a delta makes.

    Where the answer may have calls, its text is sent with the last chunk: only
    then is it known which part of it is a call.
    """
    if choice.index not in self._begun:
      self._begun.add(choice.index)
      yield self._chunk(choice, {"role": "assistant", "content": ""})
    message = self._answers[choice.index] if delta.is_last else None
    text = delta.text
    if self._output.has_calls:
      text = message.content if message else ""
    added = {"content": text} if text else {}
    if message is not None and message.tool_calls:
      calls = _message_json(message)["tool_calls"]
      added["tool_calls"] = [{"index": n, **c} for n, c in enumerate(calls)]
    yield {
      **self._chunk(choice, added),
      "logprobs": self._logprobs(delta.chunk),
      "finish_reason": self._finish_reason(choice) if message else None,
      "stop_reason": choice.stop_reason if message else None,
      **token_fields(self.request, delta.chunk),
    }

  def extra_json(self) -> dict[str, Any]:
    """Returns the fields of the answer beside its choices."""
    if not self.request.return_token_ids:
      return {}
    return {"prompt_token_ids": self.prompts[0].tolist()}

  def _chunk(self, choice: Choice, added: dict[str, Any]) -> dict[str, Any]:
    return {
      "index": choice.index,
      "delta": added,
      "logprobs": None,
      "finish_reason": None,
    }

  def _logprobs(self, chunk: Completion) -> dict[str, Any] | None:
    if not self.request.logprobs:
      return None
    decode = self._codec.decode
    tokens = zip(
      chunk.sampled.tolist(),
      logprobs_of(self.request, chunk),
      alternatives_of(chunk),
      strict=True,
    )
    return {
      "content": [
        {
          **_token_json(decode([id]), logprob),
          "top_logprobs": [_token_json(decode([id]), x) for id, x in top],
        }
        for id, logprob, top in tokens
      ],
      "refusal": None,
    }

  def _finish_reason(self, choice: Choice) -> str:
    has_calls = self._answers[choice.index].tool_calls
    return "tool_calls" if has_calls else choice.finish_reason

  def _read(self, choice: Choice) -> Message | None:
    """Returns the answer as it is; None if it could have no calls."""
    if not self._output.has_calls or choice.stop_reason is not None:
      return None
    return self._codec.read(choice.answer.sampled, self._output.tools)

  def _parse(self, choice: Choice, message: Message | None) -> Message:
    """Makes the message to send of what was read; malformed calls stay text."""
    calls = message.tool_calls if message else ()
    if message is None or not calls or not all(call.name for call in calls):
      return Message("assistant", choice.text)
    sampled = choice.answer.sampled
    conversation = hashlib.sha256(choice.prompt.tobytes() + sampled.tobytes())
    return dataclasses.replace(
      message,
      tool_calls=tuple(
        dataclasses.replace(call, id=_call_id(conversation.digest(), number))
        for number, call in enumerate(message.tool_calls)
      ),
    )


def _refuse_long(
  request: ChatCompletionRequest,
  messages: Sequence[Message],
  limits: ServingLimits,
  codec: ChatCodec,
) -> None:
  """Refuses text that cannot fit, before anything is made of it.

  Templates show the names and descriptions of all tools, and all text but the
  policy's; of schemas, and of earlier answers, they may leave out a part.
  """
  sizes = [(m.role, num_bytes_of(m.content)) for m in messages]
  tools = [tool.to_tool() for tool in request.tools]
  shown = sum(size for role, size in sizes if role != "assistant") + sum(
    num_bytes_of(tool.name) + num_bytes_of(tool.description) for tool in tools
  )
  codec.require_room(shown, limits.context)
  calls = [call for message in messages for call in message.tool_calls]
  num_called = sum(num_bytes_of(call.arguments) for call in calls)
  num_answered = sum(size for role, size in sizes if role == "assistant")
  schemas = sum(len(json.dumps(dict(tool.parameters))) for tool in tools)
  codec.require_room(
    shown + num_answered + num_called + schemas, limits.context, times=4
  )


def _call_id(conversation: bytes, number: int) -> str:
  """Derives the id from the tokens, so that a repeated answer has the same."""
  digest = hashlib.sha256(conversation + number.to_bytes(4))
  return digest.hexdigest()[:_ID_SIZE]


def _token_json(text: str, logprob: float) -> dict[str, Any]:
  # The bytes of a part of a character are unknown.
  utf8 = None if "\ufffd" in text else list(text.encode())
  return {"token": text, "logprob": logprob, "bytes": utf8}


def _message_json(message: Message) -> dict[str, Any]:
  """Returns an assistant's message; without text its content is null."""
  body = message_to_json(message) | {"refusal": None}
  if message.tool_calls and not message.content:
    body["content"] = None
  return body
