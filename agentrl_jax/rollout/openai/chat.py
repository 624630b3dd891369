"""`/v1/chat/completions`: conversations with tools, exact to the token."""

import bisect
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from agentrl_jax.data.chat.call_grammar import THINK
from agentrl_jax.data.chat.codec import ChatCodec, num_bytes_of
from agentrl_jax.data.chat.marked_text import IN_TEXT
from agentrl_jax.data.recorder import call_flaws
from agentrl_jax.data.records import Message, ToolCall, message_to_json
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
from agentrl_jax.rollout.openai.conversation_cache import CallContext, begin
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  ServingLimits,
)
from agentrl_jax.rollout.openai.structured_output import StructuredOutput
from agentrl_jax.rollout.openai.thoughts import ThoughtSplitter, split
from agentrl_jax.rollout.openai.validation import wrong
from agentrl_jax.rollout.server.errors import ApiError

_ID_SIZE = 9  # letters and digits, as Mistral's templates want them


@dataclasses.dataclass(frozen=True)
class Piece:
  """A part of an answer: of its thought, of its text, or a whole call."""

  kind: Literal["thought", "text", "call"]
  text: str = ""
  call: ToolCall | None = None


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
    self._output = StructuredOutput.of(request, codec, context.calls)
    # An answer that the client begins, with its tokens.
    self._prefill = messages.pop() if request.continues else None
    is_free = not self._output.grammar
    self._prefill_ids = begin(codec, self._prefill, is_free=is_free)
    if self._output.grammar and request.ignore_eos:
      raise ApiError(
        "ignore_eos=true and structured output are not supported together: the "
        "grammar decides where the answer ends. Leave one out",
        param="ignore_eos",
        code="unsupported_value",
      )
    self.request = request
    self._messages, self._codec, self._context = messages, codec, context
    prompt = context.prompt(messages, self._output.tools, codec)
    begun = self._prefill_ids[: 0 if context.repeats else None]
    self.prompts: Sequence[np.ndarray] = [np.concatenate([prompt, begun])]
    context.check(request, self.prompts)
    self.envelope = Envelope("chat.completion", "chatcmpl", request.model)
    self._begun: set[int] = set()  # choices whose role was sent
    self._answers: dict[int, Message] = {}  # by choice
    self._splitters: dict[int, ThoughtSplitter] = {}  # by choice

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
        Detokenizer(
          functools.partial(self._codec.decode, after=int(prompt[-1])),
          request.stop,
        ),
      )
      for index in range(request.n)
    ]

  def finish(self, choice: Choice) -> None:
    """Parses a complete answer, and records it in the call's context."""
    read = self._read(choice)
    message = self._answers[choice.index] = self._parse(choice, read)
    calls = call_flaws(read, self._output.callable) if read else None
    self._context.record(
      choice, [*self._messages, message], self._output.tools, calls
    )
    if self._prefill:  # the client is sent what follows
      begun, text = (split(m.content)[1] for m in (self._prefill, message))
      message = dataclasses.replace(message, content=text.partition(begun)[2])
      self._answers[choice.index] = message

  def answer_pieces(self, choice: Choice) -> Iterator[Piece]:
    """Yields the pieces of a complete answer."""
    message = self._answers[choice.index]
    thought, text = split(message.content)
    if thought:
      yield Piece("thought", thought)
    if text.strip() or (text and not message.tool_calls):
      yield Piece("text", text)
    for call in message.tool_calls:
      yield Piece("call", call=call)

  def pieces(self, choice: Choice, delta: Delta) -> Iterator[Piece]:
    """Yields the pieces that a delta adds to the answer.

    Where the answer may have calls, or channels, all come at its end: only then
    is it known which part of it is a call.
    """
    if self._output.callable or self._codec.has_channels:
      if delta.is_last:
        yield from self.answer_pieces(choice)
      return
    splitter = self._splitters.setdefault(
      choice.index,
      ThoughtSplitter(is_open=self._codec.thinks and not self._prefill),
    )
    for is_thought, text in splitter.add(delta.text, is_last=delta.is_last):
      yield Piece("thought" if is_thought else "text", text)

  def choice_json(self, choice: Choice) -> dict[str, Any]:
    """Returns a choice of the whole answer."""
    answer = choice.answer
    return {
      "index": choice.index,
      "message": self._message_json(self._answers[choice.index]),
      "logprobs": self._logprobs(answer),
      "finish_reason": self.finish_reason(choice),
      "stop_reason": choice.stop_reason,
      **token_fields(self.request, answer),
    }

  def chunks_json(
    self, choice: Choice, delta: Delta
  ) -> Iterator[dict[str, Any]]:
    """Yields the choices of the chunks that a delta makes."""
    if choice.index not in self._begun:
      self._begun.add(choice.index)
      yield self._chunk(choice, {"role": "assistant", "content": ""})
    added: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for piece in self.pieces(choice, delta):
      if piece.call is not None:
        calls.append({"index": len(calls), **self._call_json(piece.call)})
        continue
      name = "reasoning_content" if piece.kind == "thought" else "content"
      added[name] = added.get(name, "") + piece.text
    if calls:
      added["tool_calls"] = calls
    yield {
      **self._chunk(choice, added),
      "logprobs": self._logprobs(delta.chunk),
      "finish_reason": self.finish_reason(choice) if delta.is_last else None,
      "stop_reason": choice.stop_reason if delta.is_last else None,
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
    decode = functools.partial(self._codec.decode, after=IN_TEXT)
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

  def num_thought(self, choice: Choice) -> int:
    """Returns the number of tokens of a complete answer up to its text."""
    if not split(self._answers[choice.index].content)[0]:
      return 0
    ids, decode = choice.answer.sampled.tolist(), self._codec.decode
    end = self._codec.thought_end
    return bisect.bisect_left(
      range(len(ids)), True, key=lambda n: end in decode(ids[:n])
    )

  def finish_reason(self, choice: Choice) -> str:
    """Returns the reason for the end of a complete answer, as OpenAI's."""
    has_calls = self._answers[choice.index].tool_calls
    return "tool_calls" if has_calls else choice.finish_reason

  def _message_json(self, message: Message) -> dict[str, Any]:
    """Returns an assistant's message; without text its content is null."""
    thought, text = split(message.content)
    body = message_to_json(message) | {"content": text, "refusal": None}
    if thought:
      body["reasoning_content"] = thought
    if message.tool_calls:
      body["content"] = text if text.strip() else None
      body["tool_calls"] = [*map(self._call_json, message.tool_calls)]
    return body

  def _call_json(self, call: ToolCall) -> dict[str, Any]:
    tool = self.request.functions.get(call.name)
    if tool is not None and tool.kind == "custom":
      custom = {"name": call.name, **json.loads(call.arguments)}
      return {"id": call.id, "type": "custom", "custom": custom}
    message = message_to_json(Message("assistant", tool_calls=(call,)))
    return dict(message["tool_calls"][0])

  def _read(self, choice: Choice) -> Message | None:
    """Returns the answer as it is; None if it could have no calls."""
    if not self._output.callable or choice.stop_reason is not None:
      return None
    return self._codec.read(self._whole(choice), self._output.callable)

  def _parse(self, choice: Choice, message: Message | None) -> Message:
    """Makes the message to send of what was read; malformed calls stay text."""
    opening = THINK if self._codec.thinks else ""
    calls = message.tool_calls if message else ()
    if message is None or not calls or not all(map(self._is_sendable, calls)):
      if self._codec.has_channels:
        return self._text_of_channels(choice)
      opening = self._prefill.content if self._prefill else opening
      return Message("assistant", opening + choice.text)
    sampled = choice.answer.sampled
    conversation = hashlib.sha256(choice.prompt.tobytes() + sampled.tobytes())
    return dataclasses.replace(
      message,
      content=opening + message.content,
      tool_calls=tuple(
        dataclasses.replace(call, id=_call_id(conversation.digest(), number))
        for number, call in enumerate(message.tool_calls)
      ),
    )

  def _whole(self, choice: Choice) -> np.ndarray:
    return np.concatenate([self._prefill_ids, choice.answer.sampled])

  def _text_of_channels(self, choice: Choice) -> Message:
    """Returns the text alone, up to a stop string; malformed calls as text."""
    read = self._codec.read(self._whole(choice))
    calls = (f"{c.name} {c.arguments}".lstrip() for c in read.tool_calls)
    content = "\n".join([read.content, *calls]).removeprefix("\n")
    if choice.stop_reason is not None:
      content = content.partition(choice.stop_reason)[0]
    return Message("assistant", content)

  def _is_sendable(self, call: ToolCall) -> bool:
    tool = self.request.functions.get(call.name)
    if not call.name or (tool and not tool.takes(call)):
      return False
    if not self.request.needs_objects:
      return True
    try:
      return isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
      return False


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
  tools = [tool.to_tool() for tool in request.shown]
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
