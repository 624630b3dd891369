"""Anthropic's `/v1/messages`, as a chat.

Fields of Anthropic's reference that ask for what the policy cannot be told
(`thinking`, effort, context management), tools that Anthropic's own servers
execute, and tools whose loading is deferred are accepted, counted by name and
have no effect.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, usage_of
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  StopTexts,
  TranslatedRequest,
  joined_parts,
)
from agentrl_jax.rollout.openai.validation import (
  LenientObject,
  read,
  whole_number,
)
from agentrl_jax.rollout.openai.wires.translation import (
  JsonFormat,
  OfferedTool,
  Part,
  TranslatedCall,
  TranslatedReply,
)
from agentrl_jax.rollout.openai.wires.wire import Event, Wire
from agentrl_jax.rollout.server.errors import anthropic_error_body

# Claude Code begins its system prompt with one, for the bill; parts of it may
# change from call to call.
_BILLING = "x-anthropic-billing-header:"
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _as_blocks(content: Any) -> Any:
  is_text = isinstance(content, str)
  return [{"type": "text", "text": content}] if is_text else content


class _Block(Part):
  needs = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
  }

  text: str | None = None
  thinking: str | None = None
  id: str | None = None
  name: str | None = None
  input: dict[str, Any] | None = None
  tool_use_id: str | None = None
  content: Annotated[str, BeforeValidator(joined_parts)] = ""
  is_error: bool = False


_Blocks = Annotated[list[_Block], FailFast(), BeforeValidator(_as_blocks)]


class _Message(LenientObject):
  role: Literal["user", "assistant", "system"]
  content: _Blocks = []

  def to_chat(self) -> Iterator[dict[str, Any]]:
    """Yields the message as messages of a chat."""
    if self.role == "assistant":
      yield self._answer()
      return
    texts: list[str] = []
    for block in self.content:
      if block.type == "tool_result":
        yield from self._said(texts)
        yield {
          "role": "tool",
          "tool_call_id": block.tool_use_id,
          "content": block.content,
        }
      elif block.text is not None:
        texts.append(block.text)
    yield from self._said(texts)

  def _said(self, texts: list[str]) -> Iterator[dict[str, Any]]:
    if texts:
      yield {"role": self.role, "content": "\n".join(texts)}
      texts.clear()

  def _answer(self) -> dict[str, Any]:
    return {
      "role": "assistant",
      "reasoning_content": "".join(b.thinking or "" for b in self.content),
      "content": "".join(block.text or "" for block in self.content),
      "tool_calls": [
        {
          "id": block.id,
          "function": {
            "name": block.name,
            "arguments": json.dumps(block.input, ensure_ascii=False),
          },
        }
        for block in self.content
        if block.type == "tool_use"
      ],
    }


class _MessagesTool(OfferedTool):
  type: str = "custom"
  input_schema: dict[str, Any] = {}
  defer_loading: bool = False

  def functions(self) -> Iterator[dict[str, Any]]:
    if self.type == "custom" and not self.defer_loading:
      yield self.to_chat(self.name, self.input_schema)


class _MessagesToolChoice(LenientObject):
  type: Literal["auto", "any", "tool", "none"]
  name: str = ""
  disable_parallel_tool_use: bool = False

  def to_chat(self) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": self.name}}
    choices = {"any": "required", "tool": named}
    return {
      "tool_choice": choices.get(self.type, self.type),
      "parallel_tool_calls": not self.disable_parallel_tool_use,
    }


class _OutputConfig(LenientObject):
  format: JsonFormat | None = None
  effort: Any = None


class MessagesRequest(TranslatedCall):
  """A call of `/v1/messages`, or of its `count_tokens`."""

  messages: Annotated[list[_Message], Field(min_length=1), FailFast()]
  system: _Blocks = []
  tools: Annotated[list[_MessagesTool], FailFast()] = []
  tool_choice: _MessagesToolChoice = _MessagesToolChoice(type="auto")
  output_config: _OutputConfig = _OutputConfig()
  thinking: Any = None
  max_tokens: Annotated[int, whole_number(1)]
  stop_sequences: StopTexts = []
  top_k: Annotated[int, whole_number(0, 2**31 - 1)] | None = None

  # As in `FiledCall`.
  cache_control: Any = None
  diagnostics: Any = None
  inference_geo: Any = None
  speed: Any = None
  user_profile_id: Any = None
  workspace_id: Any = None

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    form = self.output_config.format
    return {
      **super().to_chat(),
      **self.tool_choice.to_chat(),
      "messages": [*self._system(), *self._messages()],
      "tools": [f for tool in self.tools for f in tool.functions()],
      "response_format": form.to_chat() if form else None,
      "max_tokens": self.max_tokens,
      "stop": self.stop_sequences,
      "top_k": self.top_k,
      "wishes": self._wishes(),
      "objects_only": True,
    }

  def _system(self) -> list[dict[str, Any]]:
    texts = [block.text or "" for block in self.system]
    kept = [text for text in texts if not text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []

  def _messages(self) -> Iterator[dict[str, Any]]:
    for message in self.messages:
      yield from message.to_chat()

  def _wishes(self) -> list[str]:
    """Returns names of what is accepted and has no effect."""
    blocks = (block for message in self.messages for block in message.content)
    wishes = {
      "thinking": self.thinking,
      "context_management": self.context_management,
      "effort": self.output_config.effort,
      "defer_loading": any(tool.defer_loading for tool in self.tools),
      "is_error": any(block.is_error for block in blocks),
    }
    hosted = [tool.type for tool in self.tools if tool.type != "custom"]
    return [*(name for name, value in wishes.items() if value), *hosted]


def read_messages(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call as a chat. Raises `ApiError`."""
  return read(TranslatedRequest, read(MessagesRequest, fields).to_chat())


def read_count(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call of `/v1/messages/count_tokens`. Raises `ApiError`."""
  return read_messages({"max_tokens": 1} | dict(fields))


class MessagesReply(TranslatedReply):
  """The reply to a call of `/v1/messages`."""

  def __init__(self, call: ChatCall):
    super().__init__(call)
    self._id = f"msg_{uuid.uuid4().hex}"

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """See `WireReply`."""
    (choice,) = choices
    blocks = [_block(piece) for piece in self._call.answer_pieces(choice)]
    return self._message(choice, blocks) | self._ending(choice)

  def _first_event(self, choice: Choice) -> Event:
    message = self._message(choice, [])
    message["usage"]["output_tokens"] = 0
    return _event("message_start", message=message)

  def _sign_of_growth(self) -> Event:
    return _event("ping")

  def _opening(self, piece: Piece) -> Iterator[Event]:
    block = _block(piece) | ({"input": {}} if piece.call else {})
    yield self._numbered("content_block_start", content_block=block)

  def _addition(self, piece: Piece) -> Iterator[Event]:
    delta = {"type": "text_delta", "text": piece.text}
    if piece.kind == "thought":
      delta = {"type": "thinking_delta", "thinking": piece.text}
    elif piece.call:
      arguments = piece.call.arguments
      delta = {"type": "input_json_delta", "partial_json": arguments}
    yield self._numbered("content_block_delta", delta=delta)

  def _closing(self, piece: Piece) -> Iterator[Event]:
    yield self._numbered("content_block_stop")

  def _last_of(self, choice: Choice) -> Iterator[Event]:
    usage = self._usage(choice)
    yield _event("message_delta", delta=self._ending(choice), usage=usage)
    yield _event("message_stop")

  def failure(self, error: AgentRLError) -> Event:
    """See `WireReply`."""
    return "error", anthropic_error_body(error)

  def _numbered(self, kind: str, **fields: Any) -> Event:
    return _event(kind, index=len(self._closed), **fields)

  def _message(self, choice: Choice, blocks: list[Any]) -> dict[str, Any]:
    return {
      "id": self._id,
      "type": "message",
      "role": "assistant",
      "model": self._call.request.model,
      "content": blocks,
      "stop_reason": None,
      "stop_sequence": None,
      "usage": self._usage(choice),
    }

  def _ending(self, choice: Choice) -> dict[str, Any]:
    reason = _STOPS.get(self._call.finish_reason(choice), "end_turn")
    if choice.stop_reason is not None:
      reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": choice.stop_reason}

  def _usage(self, choice: Choice) -> dict[str, Any]:
    usage = usage_of(self._call.prompts, [choice])
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
      "input_tokens": usage["prompt_tokens"] - cached,
      "cache_read_input_tokens": cached,
      "cache_creation_input_tokens": 0,
      "output_tokens": usage["completion_tokens"],
    }


def _block(piece: Piece) -> dict[str, Any]:
  if piece.call is not None:
    return {
      "type": "tool_use",
      "id": piece.call.id,
      "name": piece.call.name,
      "input": json.loads(piece.call.arguments),
    }
  if piece.kind == "thought":
    # A signature shows Anthropic that a thought is its own; here nobody asks.
    return {"type": "thinking", "thinking": piece.text, "signature": ""}
  return {"type": "text", "text": piece.text}


def _event(kind: str, **fields: Any) -> Event:
  return kind, {"type": kind, **fields}


MESSAGES = Wire("/messages", read_messages, MessagesReply)
