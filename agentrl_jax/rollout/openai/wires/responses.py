"""OpenAI's `/v1/responses`, as a chat.

No response is kept: the client sends the items of earlier ones back. Fields
that ask for what the policy cannot be told (`reasoning`, verbosity), and tools
that OpenAI's own servers execute, are accepted, counted by name and have no
effect.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
  BeforeValidator,
  FailFast,
  Field,
  model_validator,
)

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, Delta, usage_of
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  TranslatedRequest,
  joined_parts,
)
from agentrl_jax.rollout.openai.validation import (
  JsonObject,
  LenientObject,
  number_between,
  only,
  read,
  require_fields,
  whole_number,
)
from agentrl_jax.rollout.openai.wires.wire import Event, Wire
from agentrl_jax.rollout.server.errors import error_body

# Fields that an item must have, by its type.
_FIELDS: Mapping[str, Sequence[str]] = {
  "message": ("role",),
  "reasoning": (),
  "function_call": ("call_id", "name", "arguments"),
  "function_call_output": ("call_id", "output"),
}
_ECHOED = (
  "instructions",
  "max_output_tokens",
  "metadata",
  "parallel_tool_calls",
  "reasoning",
  "temperature",
  "text",
  "tool_choice",
  "tools",
  "top_p",
)
_TEXTS = frozenset({"input_text", "output_text", "reasoning_text"})
_NOT_KEPT = "this server keeps no responses: send their items in the input"


def _as_items(value: Any) -> Any:
  is_text = isinstance(value, str)
  return [{"role": "user", "content": value}] if is_text else value


def _joined(content: Any) -> str:
  """Joins parts, whose types have other names than those of a chat."""
  if isinstance(content, list):
    content = [
      {**part, "type": "text"}
      if isinstance(part, dict) and part.get("type") in _TEXTS
      else part
      for part in content
    ]
  return joined_parts(content)


_Text = Annotated[str, BeforeValidator(_joined)]


class _Item(LenientObject):
  type: str = "message"
  role: Literal["system", "developer", "user", "assistant"] | None = None
  content: _Text = ""
  call_id: str | None = None
  namespace: str = ""
  name: str | None = None
  arguments: str | None = None
  output: _Text | None = None

  @model_validator(mode="after")
  def _refuse_incomplete(self) -> "_Item":
    require_fields(self, self.type, _FIELDS, what="an item")
    return self


class _ResponsesTool(LenientObject):
  type: str
  name: str = ""
  description: str = ""
  parameters: dict[str, Any] = {}
  strict: bool = False
  tools: "list[_ResponsesTool]" = []  # of a namespace

  def functions(self, namespace: str = "") -> Iterator[dict[str, Any]]:
    """Yields the functions as tools of a chat."""
    if self.type == "namespace":
      for tool in self.tools:
        yield from tool.functions(self.name)
    elif self.type == "function":
      function = {
        "name": _full_name(namespace, self.name),
        "description": self.description,
        "parameters": self.parameters,
        "strict": self.strict,
      }
      yield {"type": "function", "function": function}


class _NamedTool(LenientObject):
  type: Literal["function"]
  name: str


class _AllowedFunctions(LenientObject):
  type: Literal["allowed_tools"]
  mode: Literal["auto", "required"] = "auto"
  tools: Annotated[list[_NamedTool], FailFast()]


class _ResponsesFormat(LenientObject):
  type: Literal["text", "json_object", "json_schema"]
  name: str = "answer"
  definition: dict[str, Any] | None = Field(None, alias="schema")


class _TextConfig(LenientObject):
  format: _ResponsesFormat | None = None
  verbosity: Any = None


class ResponsesRequest(JsonObject):
  """A call of `/v1/responses`."""

  model: str
  input: Annotated[
    list[_Item], Field(min_length=1), FailFast(), BeforeValidator(_as_items)
  ]
  instructions: str = ""
  tools: Annotated[list[_ResponsesTool], FailFast()] = []
  tool_choice: (
    Literal["auto", "required", "none"] | _NamedTool | _AllowedFunctions | None
  ) = None
  parallel_tool_calls: bool | None = None
  max_output_tokens: Annotated[int, whole_number(1)] | None = None
  temperature: Annotated[float, number_between(0.0, 2.0)] | None = None
  top_p: Annotated[float, number_between(1e-6, 1.0)] | None = None
  stream: bool = False
  text: _TextConfig | None = None

  # Wishes that the policy is not told of.
  reasoning: Any = None
  max_tool_calls: Any = None
  context_management: Any = None

  # File, bill or cache a call; they do not change what is sampled.
  client_metadata: Any = None
  include: Any = None
  metadata: Any = None
  prompt_cache_key: Any = None
  prompt_cache_options: Any = None
  prompt_cache_retention: Any = None
  safety_identifier: Any = None
  service_tier: Any = None
  store: Any = None
  stream_options: Any = None
  user: Any = None

  # Accepted with the value that applies without them.
  background: Annotated[Any, only(False)] = False
  conversation: Annotated[Any, only(None, why=_NOT_KEPT)] = None
  previous_response_id: Annotated[Any, only(None, why=_NOT_KEPT)] = None
  top_logprobs: Annotated[
    Any, only(0, why="/v1/chat/completions has log-probabilities")
  ] = 0
  truncation: Annotated[Any, only("disabled")] = "disabled"

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    hosted = {t.type for t in self.tools} - {"function", "namespace"}
    wishes = [
      name
      for name in ("reasoning", "max_tool_calls", "context_management")
      if getattr(self, name) is not None
    ]
    wishes += sorted(hosted)
    if self.text and self.text.verbosity is not None:
      wishes.append("verbosity")
    head = [{"role": "system", "content": self.instructions}]
    return {
      "model": self.model,
      "messages": [
        *(head if self.instructions else []),
        *_messages(self.input),
      ],
      "tools": [f for tool in self.tools for f in tool.functions()],
      "max_tokens": self.max_output_tokens,
      "temperature": self.temperature,
      "top_p": self.top_p,
      "stream": self.stream,
      "wishes": wishes,
      **self._choice(),
      **self._format(),
    }

  def _choice(self) -> dict[str, Any]:
    choice = self.tool_choice
    fields: dict[str, Any] = {}
    if self.parallel_tool_calls is False:
      fields["parallel_tool_calls"] = False
    if isinstance(choice, _NamedTool):
      return fields | {"tool_choice": _named(choice)}
    if isinstance(choice, _AllowedFunctions):
      tools = [_named(tool) for tool in choice.tools]
      allowed = {"mode": choice.mode, "tools": tools}
      return fields | {
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}
      }
    return fields | (
      {} if choice in (None, "auto") else {"tool_choice": choice}
    )

  def _format(self) -> dict[str, Any]:
    format = self.text.format if self.text else None
    if format is None or format.type == "text":
      return {}
    if format.type == "json_object":
      return {"response_format": {"type": "json_object"}}
    schema = {"name": format.name, "schema": format.definition}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _named(tool: _NamedTool) -> dict[str, Any]:
  return {"type": "function", "function": {"name": tool.name}}


def _full_name(namespace: str, name: str) -> str:
  return f"{namespace}.{name}" if namespace else name


def _messages(items: Sequence[_Item]) -> list[dict[str, Any]]:
  """Returns messages of a chat: an answer is one, and several items."""
  messages: list[dict[str, Any]] = []
  rank = 0  # of the last item of the answer; 0: it is none of an answer
  for item in items:
    before, rank = rank, _rank(item)
    if not rank:
      messages.append(_said(item))
      continue
    if rank < before or not before or rank == before < 3:
      messages.append({"role": "assistant", "tool_calls": []})
    answer = messages[-1]
    if item.type == "function_call":
      name = _full_name(item.namespace, item.name or "")
      function = {"name": name, "arguments": item.arguments}
      answer["tool_calls"].append({"id": item.call_id, "function": function})
    else:
      is_thought = item.type == "reasoning"
      field = "reasoning_content" if is_thought else "content"
      answer[field] = item.content
  return messages


def _rank(item: _Item) -> int:
  """Returns the place of an item in an answer; 0 for other items."""
  if item.type == "message":
    return 2 * (item.role == "assistant")
  return {"reasoning": 1, "function_call": 3}.get(item.type, 0)


def _said(item: _Item) -> dict[str, Any]:
  if item.type == "function_call_output":
    return {
      "role": "tool",
      "tool_call_id": item.call_id,
      "content": item.output,
    }
  return {"role": item.role, "content": item.content}


class ResponsesChat(TranslatedRequest):
  """A call as a chat, with the fields that its response repeats."""

  echo: dict[str, Any] = {}


def read_responses(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call as a chat. Raises `ApiError`."""
  chat = read(ResponsesRequest, fields).to_chat()
  defaults = {
    "metadata": {},
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
  }
  echo = {name: fields.get(name) for name in _ECHOED}
  echo |= {n: x for n, x in defaults.items() if echo[n] is None}
  return read(ResponsesChat, chat | {"echo": echo})


class ResponsesReply:
  """The reply to a call of `/v1/responses`."""

  closing = ""

  def __init__(self, call: ChatCall):
    assert isinstance(call.request, ResponsesChat)
    self._call, self._echo = call, call.request.echo
    self._namespaces = {
      f"{tool['name']}."
      for tool in self._echo["tools"]
      if tool.get("type") == "namespace"
    }
    self._id, self._created = f"resp_{uuid.uuid4().hex}", int(time.time())
    self._number = 0  # of events
    self._done: list[dict[str, Any]] = []  # items
    self._open: Piece | None = None  # what was sent of the current item
    self._item: dict[str, Any] = {}

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """See `WireReply`."""
    (choice,) = choices
    items = [self._item_of(p) for p in self._call.answer_pieces(choice)]
    return self._response(items, choice)

  def events(self, choice: Choice, delta: Delta) -> Iterator[Event]:
    """See `WireReply`."""
    if not self._number:
      yield self._lifecycle("created")
    pieces = [*self._call.pieces(choice, delta)]
    if not pieces and not delta.is_last:
      yield self._lifecycle("in_progress")  # the answer grows
    for piece in pieces:
      yield from self._add(piece)
    if delta.is_last:
      yield from self._close()
      response = self._response(self._done, choice)
      yield self._event(f"response.{response['status']}", response=response)

  def last_events(self, choices: Sequence[Choice]) -> Iterator[Event]:
    """See `WireReply`."""
    yield from ()

  def failure(self, error: AgentRLError) -> Event:
    """See `WireReply`."""
    fields = error_body(error)["error"]
    response = self._response(self._done, None) | {
      "status": "failed",
      "error": {"code": fields["code"], "message": fields["message"]},
    }
    return self._event("response.failed", response=response)

  def _add(self, piece: Piece) -> Iterator[Event]:
    if self._open is None or self._open.kind != piece.kind or piece.call:
      yield from self._close()
      yield from self._begin(piece)
    assert self._open is not None
    if piece.call is not None:
      arguments = piece.call.arguments
      kind = "function_call_arguments"
      yield self._of_item(f"{kind}.delta", delta=arguments)
      yield self._of_item(f"{kind}.done", arguments=arguments)
      return
    self._open = Piece(piece.kind, self._open.text + piece.text)
    extra = {"logprobs": []} if piece.kind == "text" else {}
    yield self._of_part(
      f"{_part_of(piece)['type']}.delta", delta=piece.text, **extra
    )

  def _begin(self, piece: Piece) -> Iterator[Event]:
    self._open = Piece(piece.kind, call=piece.call)
    self._item = self._item_of(self._open)
    empty: dict[str, Any] = {"status": "in_progress"}
    empty |= {"arguments": ""} if piece.call else {"content": []}
    yield self._event(
      "response.output_item.added",
      output_index=len(self._done),
      item=self._item | empty,
    )
    if piece.call is None:
      yield self._of_part("content_part.added", part=_part_of(self._open))

  def _close(self) -> Iterator[Event]:
    if self._open is None:
      return
    if self._open.call is None:
      part = _part_of(self._open)
      extra = {"logprobs": []} if self._open.kind == "text" else {}
      text = self._open.text
      yield self._of_part(f"{part['type']}.done", text=text, **extra)
      yield self._of_part("content_part.done", part=part)
    item = self._item_of(self._open) | {"id": self._item["id"]}
    yield self._event(
      "response.output_item.done", output_index=len(self._done), item=item
    )
    self._done.append(item)
    self._open = None

  def _item_of(self, piece: Piece) -> dict[str, Any]:
    """Returns a piece as a complete item."""
    id = uuid.uuid4().hex
    if piece.call is not None:
      name = piece.call.name
      space = next((s for s in self._namespaces if name.startswith(s)), "")
      return {
        "id": f"fc_{id}",
        "type": "function_call",
        "status": "completed",
        "call_id": piece.call.id,
        "name": name.removeprefix(space),
        **({"namespace": space[:-1]} if space else {}),
        "arguments": piece.call.arguments,
      }
    item = {"status": "completed", "content": [_part_of(piece)]}
    if piece.kind == "thought":
      return {"id": f"rs_{id}", "type": "reasoning", "summary": [], **item}
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", **item}

  def _response(
    self, items: Sequence[dict[str, Any]], choice: Choice | None
  ) -> dict[str, Any]:
    """Returns the response; without a choice it is not complete."""
    is_cut = choice is not None and self._call.finish_reason(choice) == "length"
    status = "incomplete" if is_cut else "completed"
    return {
      "id": self._id,
      "object": "response",
      "created_at": self._created,
      "status": "in_progress" if choice is None else status,
      "error": None,
      "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
      "model": self._call.request.model,
      "output": list(items),
      "previous_response_id": None,
      "store": False,
      "truncation": "disabled",
      "usage": None if choice is None else self._usage(choice),
      **self._echo,
    }

  def _usage(self, choice: Choice) -> dict[str, Any]:
    usage = usage_of(self._call.prompts, [choice])
    return {
      "input_tokens": usage["prompt_tokens"],
      "input_tokens_details": usage["prompt_tokens_details"],
      "output_tokens": usage["completion_tokens"],
      "output_tokens_details": {
        "reasoning_tokens": self._call.num_thought(choice)
      },
      "total_tokens": usage["total_tokens"],
    }

  def _lifecycle(self, stage: str) -> Event:
    response = self._response([], None)
    return self._event(f"response.{stage}", response=response)

  def _of_item(self, kind: str, **fields: Any) -> Event:
    return self._event(
      f"response.{kind}",
      item_id=self._item["id"],
      output_index=len(self._done),
      **fields,
    )

  def _of_part(self, kind: str, **fields: Any) -> Event:
    return self._of_item(kind, content_index=0, **fields)

  def _event(self, kind: str, **fields: Any) -> Event:
    number, self._number = self._number, self._number + 1
    return kind, {"type": kind, "sequence_number": number, **fields}


def _part_of(piece: Piece) -> dict[str, Any]:
  if piece.kind == "thought":
    return {"type": "reasoning_text", "text": piece.text}
  return {"type": "output_text", "text": piece.text, "annotations": []}


RESPONSES = Wire("/responses", read_responses, ResponsesReply)
