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

from pydantic import BeforeValidator, FailFast, Field, model_validator

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, Delta, usage_of
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  StopTexts,
  TranslatedRequest,
  joined_parts,
)
from agentrl_jax.rollout.openai.validation import (
  JsonObject,
  LenientObject,
  number_between,
  read,
  require_fields,
  whole_number,
)
from agentrl_jax.rollout.openai.wires.wire import Event, Wire
from agentrl_jax.rollout.server.errors import anthropic_error_body

# Fields that a block must have, by its type.
_FIELDS: Mapping[str, Sequence[str]] = {
  "text": ("text",),
  "thinking": ("thinking",),
  "redacted_thinking": (),
  "tool_use": ("id", "name", "input"),
  "tool_result": ("tool_use_id",),
}
# Claude Code begins its system prompt with one, for the bill; parts of it may
# change from call to call.
_BILLING = "x-anthropic-billing-header:"
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _as_blocks(content: Any) -> Any:
  is_text = isinstance(content, str)
  return [{"type": "text", "text": content}] if is_text else content


class _Block(LenientObject):
  type: str
  text: str | None = None
  thinking: str | None = None
  id: str | None = None
  name: str | None = None
  input: dict[str, Any] | None = None
  tool_use_id: str | None = None
  content: Annotated[str, BeforeValidator(joined_parts)] = ""
  is_error: bool = False

  @model_validator(mode="after")
  def _refuse_incomplete(self) -> "_Block":
    require_fields(self, self.type, _FIELDS, what="a block")
    return self


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


class _MessagesTool(LenientObject):
  name: str
  type: str = "custom"
  description: str = ""
  input_schema: dict[str, Any] = {}
  strict: bool = False
  defer_loading: bool = False


class _MessagesToolChoice(LenientObject):
  type: Literal["auto", "any", "tool", "none"]
  name: str = ""
  disable_parallel_tool_use: bool = False


class _MessagesFormat(LenientObject):
  type: Literal["json_schema"]
  definition: dict[str, Any] = Field(alias="schema")


class _OutputConfig(LenientObject):
  format: _MessagesFormat | None = None
  effort: Any = None


class CountRequest(JsonObject):
  """A call of `/v1/messages/count_tokens`."""

  model: str
  messages: Annotated[list[_Message], Field(min_length=1), FailFast()]
  system: _Blocks = []
  tools: Annotated[list[_MessagesTool], FailFast()] = []
  tool_choice: _MessagesToolChoice | None = None
  output_config: _OutputConfig | None = None
  thinking: Any = None
  context_management: Any = None
  cache_control: Any = None

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    wishes = [
      name
      for name in ("thinking", "context_management")
      if getattr(self, name) is not None
    ]
    if self.output_config and self.output_config.effort is not None:
      wishes.append("effort")
    wishes += [t.type for t in self.tools if t.type != "custom"]
    if any(tool.defer_loading for tool in self.tools):
      wishes.append("defer_loading")
    if any(b.is_error for m in self.messages for b in m.content):
      wishes.append("is_error")
    return {
      "model": self.model,
      "messages": [*self._system(), *self._messages()],
      "tools": [_tool(tool) for tool in self.tools if _is_shown(tool)],
      "wishes": wishes,
      "objects_only": True,
      **self._choice(),
      **self._format(),
    }

  def _system(self) -> list[dict[str, Any]]:
    texts = [block.text or "" for block in self.system]
    kept = [text for text in texts if not text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []

  def _messages(self) -> Iterator[dict[str, Any]]:
    for message in self.messages:
      yield from message.to_chat()

  def _choice(self) -> dict[str, Any]:
    choice = self.tool_choice
    if choice is None:
      return {}
    kind: Any = {"any": "required"}.get(choice.type, choice.type)
    if kind == "tool":
      kind = {"type": "function", "function": {"name": choice.name}}
    parallel = {"parallel_tool_calls": False}
    only_one = choice.disable_parallel_tool_use
    return {"tool_choice": kind, **(parallel if only_one else {})}

  def _format(self) -> dict[str, Any]:
    config = self.output_config
    if config is None or config.format is None:
      return {}
    schema = {"name": "answer", "schema": config.format.definition}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


class MessagesRequest(CountRequest):
  """A call of `/v1/messages`."""

  max_tokens: Annotated[int, whole_number(1)]
  stream: bool = False
  stop_sequences: StopTexts = []
  temperature: Annotated[float, number_between(0.0, 1.0)] | None = None
  top_p: Annotated[float, number_between(1e-6, 1.0)] | None = None
  top_k: Annotated[int, whole_number(0, 2**31 - 1)] | None = None

  # File, bill or cache a call; they do not change what is sampled.
  metadata: Any = None
  service_tier: Any = None
  inference_geo: Any = None
  speed: Any = None
  diagnostics: Any = None
  user_profile_id: Any = None
  workspace_id: Any = None

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    return super().to_chat() | {
      "max_tokens": self.max_tokens,
      "stream": self.stream,
      "stop": self.stop_sequences,
      "temperature": self.temperature,
      "top_p": self.top_p,
      "top_k": self.top_k,
    }


def _is_shown(tool: _MessagesTool) -> bool:
  return tool.type == "custom" and not tool.defer_loading


def _tool(tool: _MessagesTool) -> dict[str, Any]:
  function = {
    "name": tool.name,
    "description": tool.description,
    "parameters": tool.input_schema,
    "strict": tool.strict,
  }
  return {"type": "function", "function": function}


def read_messages(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call as a chat. Raises `ApiError`."""
  return read(TranslatedRequest, read(MessagesRequest, fields).to_chat())


def read_count(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call of `/v1/messages/count_tokens`. Raises `ApiError`."""
  known = {n: x for n, x in fields.items() if n in CountRequest.model_fields}
  return read(TranslatedRequest, read(CountRequest, known).to_chat())


class MessagesReply:
  """The reply to a call of `/v1/messages`."""

  closing = ""

  def __init__(self, call: ChatCall):
    self._call = call
    self._id = f"msg_{uuid.uuid4().hex}"
    self._open: str | None = None  # kind of the block that is being sent
    self._number = -1  # of this block; of the first 0
    self._has_begun = False

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """See `WireReply`."""
    (choice,) = choices
    blocks = [_block(piece) for piece in self._call.answer_pieces(choice)]
    return self._message(choice, blocks) | self._ending(choice)

  def events(self, choice: Choice, delta: Delta) -> Iterator[Event]:
    """See `WireReply`."""
    if not self._has_begun:
      self._has_begun = True
      message = self._message(choice, [])
      message["usage"]["output_tokens"] = 0
      yield _event("message_start", message=message)
    pieces = [*self._call.pieces(choice, delta)]
    if not pieces and not delta.is_last:
      yield _event("ping")  # the client sees that the answer grows
    for piece in pieces:
      yield from self._add(piece)
    if delta.is_last:
      yield from self._close()
      usage = self._usage(choice)
      yield _event("message_delta", delta=self._ending(choice), usage=usage)
      yield _event("message_stop")

  def last_events(self, choices: Sequence[Choice]) -> Iterator[Event]:
    """See `WireReply`."""
    yield from ()

  def failure(self, error: AgentRLError) -> Event:
    """See `WireReply`."""
    return "error", anthropic_error_body(error)

  def _add(self, piece: Piece) -> Iterator[Event]:
    if piece.kind != self._open or piece.call:
      yield from self._close()
      self._open, self._number = piece.kind, self._number + 1
      block = _block(Piece(piece.kind, call=piece.call)) | (
        {"input": {}} if piece.call else {}
      )
      yield self._numbered("content_block_start", content_block=block)
    delta = {"type": "text_delta", "text": piece.text}
    if piece.kind == "thought":
      delta = {"type": "thinking_delta", "thinking": piece.text}
    elif piece.call:
      delta = {
        "type": "input_json_delta",
        "partial_json": piece.call.arguments,
      }
    yield self._numbered("content_block_delta", delta=delta)

  def _close(self) -> Iterator[Event]:
    if self._open:
      yield self._numbered("content_block_stop")
      self._open = None

  def _numbered(self, kind: str, **fields: Any) -> Event:
    return _event(kind, index=self._number, **fields)

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
