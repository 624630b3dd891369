"""Anthropic's `/v1/messages`, as a chat.

Fields of Anthropic's reference that ask for what the policy cannot be told
(`thinking`, effort, context management), and tools that Anthropic's own servers
execute, are accepted, counted by name and have no effect. A tool whose loading
is deferred is shown by the result that refers to it, as Anthropic shows it.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, model_validator

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, usage_of
from agentrl_jax.rollout.openai.schema import (
  FILED,
  ChatCompletionRequest,
  StopTexts,
  TranslatedRequest,
)
from agentrl_jax.rollout.openai.tools import (
  ANY_CHOICE,
  AnyToolChoice,
  OfferedTool,
  shown_later,
)
from agentrl_jax.rollout.openai.validation import (
  LenientObject,
  invalid,
  read,
  whole_number,
)
from agentrl_jax.rollout.openai.wires.translation import (
  JsonFormat,
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


class _ResultPart(Part):
  needs = {"text": ("text",), "tool_reference": ("tool_name",)}

  text: str | None = None
  tool_name: str | None = None


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
  content: Annotated[
    list[_ResultPart], FailFast(), BeforeValidator(_as_blocks)
  ] = []

  def result(self, tools: Mapping[str, OfferedTool]) -> str:
    """Returns a result as text; `tools` are those that it may refer to."""
    found = (tools.get(part.tool_name or "") for part in self.content)
    return "".join(
      shown_later(tool) if tool else part.text or part.tool_name or ""
      for part, tool in zip(self.content, found, strict=True)
    )


_Blocks = Annotated[list[_Block], FailFast(), BeforeValidator(_as_blocks)]


class _Message(LenientObject):
  role: Literal["user", "assistant", "system"]
  content: _Blocks = []

  def to_chat(
    self, tools: Mapping[str, OfferedTool]
  ) -> Iterator[dict[str, Any]]:
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
          "content": block.result(tools),
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
  @model_validator(mode="after")
  def _refuse_without_schema(self) -> "_MessagesTool":
    if self.parameters is None and self.kind in ("function", "custom"):
      raise invalid("a tool with an input_schema")
    return self


class _OutputConfig(LenientObject):
  format: JsonFormat | None = None


class MessagesRequest(TranslatedCall):
  """A call of `/v1/messages`, or of its `count_tokens`."""

  messages: Annotated[list[_Message], Field(min_length=1), FailFast()]
  system: _Blocks = []
  tools: Annotated[list[_MessagesTool], FailFast()] = []
  tool_choice: AnyToolChoice = ANY_CHOICE
  output_config: _OutputConfig = _OutputConfig()
  max_tokens: Annotated[int, whole_number(1)]
  stop_sequences: StopTexts = []
  top_k: Annotated[int, whole_number(0, 2**31 - 1)] | None = None

  wishes = frozenset(("context_management", "thinking"))
  without_effect = FILED | (
    {"anthropic_beta", "anthropic_version", "betas", "billing_policy"}
    | {"cache_control", "diagnostics", "fallback_credit_token", "fallbacks"}
    | {"inference_geo", "speed", "user_profile_id", "workspace_id"}
  )
  refused = {
    "compaction": (None, "send a shorter history yourself"),
    "container": (None, "nothing is executed here"),
    "mcp_servers": ([], "call them yourself, and give their tools"),
    "thread": (None, "this server keeps no history: send all messages"),
  }

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    form = self.output_config.format
    blocks = (block for m in self.messages for block in m.content)
    found = {part.tool_name for block in blocks for part in block.content}
    # A search that nobody runs here finds none of the others.
    is_searched = any(t.kind.startswith("tool_search") for t in self.tools)
    late = [] if is_searched else [t for t in self.tools if t.defer_loading]
    return {
      **super().to_chat(),
      "messages": [*self._system(), *self._messages()],
      "tools": [tool for tool in self.tools if tool not in late],
      "found": [tool for tool in late if tool.name in found],
      "tool_choice": self.tool_choice,
      "response_format": form.to_chat() if form else None,
      "max_tokens": self.max_tokens,
      "continue_final_message": self.messages[-1].role == "assistant",
      "stop": self.stop_sequences,
      "top_k": self.top_k,
    }

  def _system(self) -> list[dict[str, Any]]:
    texts = [block.text or "" for block in self.system]
    kept = [text for text in texts if not text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []

  def _messages(self) -> Iterator[dict[str, Any]]:
    tools = {tool.name: tool for tool in self.tools}
    for message in self.messages:
      yield from message.to_chat(tools)


class MessagesChat(TranslatedRequest):
  """A call as a chat."""

  needs_objects = True


def read_messages(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call as a chat. Raises `ApiError`."""
  return read(MessagesChat, read(MessagesRequest, fields).to_chat())


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
