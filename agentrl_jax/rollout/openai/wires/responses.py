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

from pydantic import BeforeValidator, FailFast, Field

from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, usage_of
from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  TranslatedRequest,
  joined_parts,
)
from agentrl_jax.rollout.openai.validation import (
  LenientObject,
  only,
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
from agentrl_jax.rollout.server.errors import error_body

_NOT_KEPT = "this server keeps no responses: send their items in the input"
_Text = Annotated[str, BeforeValidator(joined_parts)]


def _as_items(value: Any) -> Any:
  is_text = isinstance(value, str)
  return [{"role": "user", "content": value}] if is_text else value


class _Item(Part):
  needs = {
    "message": ("role",),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
  }

  type: str = "message"
  role: Literal["system", "developer", "user", "assistant"] | None = None
  content: _Text = ""
  call_id: str | None = None
  namespace: str = ""
  name: str | None = None
  arguments: str | None = None
  output: _Text | None = None


class _ResponsesTool(OfferedTool):
  parameters: dict[str, Any] = {}
  tools: "list[_ResponsesTool]" = []  # of a namespace

  def functions(self, namespace: str = "") -> Iterator[dict[str, Any]]:
    if self.type == "namespace":
      for tool in self.tools:
        yield from tool.functions(self.name)
    elif self.type == "function":
      yield self.to_chat(_full_name(namespace, self.name), self.parameters)


class _ResponsesToolChoice(LenientObject):
  type: Literal["function", "allowed_tools"]
  name: str = ""
  mode: Literal["auto", "required"] = "auto"
  tools: "Annotated[list[_ResponsesToolChoice], FailFast()]" = []

  def to_chat(self) -> dict[str, Any]:
    """Returns the choice in a chat's form."""
    if self.type == "function":
      return {"type": "function", "function": {"name": self.name}}
    tools = [tool.to_chat() for tool in self.tools]
    allowed = {"mode": self.mode, "tools": tools}
    return {"type": "allowed_tools", "allowed_tools": allowed}


class _TextConfig(LenientObject):
  format: JsonFormat | None = None
  verbosity: Any = None


class ResponsesRequest(TranslatedCall):
  """A call of `/v1/responses`."""

  input: Annotated[
    list[_Item], Field(min_length=1), FailFast(), BeforeValidator(_as_items)
  ]
  instructions: str = ""
  tools: Annotated[list[_ResponsesTool], FailFast()] = []
  tool_choice: Literal["auto", "required", "none"] | _ResponsesToolChoice = (
    "auto"
  )
  parallel_tool_calls: bool = True
  max_output_tokens: Annotated[int, whole_number(1)] | None = None
  text: _TextConfig = _TextConfig()

  # Wishes that the policy is not told of.
  reasoning: Any = None
  max_tool_calls: Any = None

  # As in `FiledCall`.
  client_metadata: Any = None
  include: Any = None
  prompt_cache_options: Any = None
  store: Any = None
  stream_options: Any = None

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
    choice, form = self.tool_choice, self.text.format
    head = [{"role": "system", "content": self.instructions}]
    return {
      **super().to_chat(),
      "messages": [
        *(head if self.instructions else []),
        *_messages(self.input),
      ],
      "tools": [f for tool in self.tools for f in tool.functions()],
      "tool_choice": choice if isinstance(choice, str) else choice.to_chat(),
      "parallel_tool_calls": self.parallel_tool_calls,
      "response_format": form.to_chat() if form else None,
      "max_tokens": self.max_output_tokens,
      "wishes": self._wishes(),
    }

  def _wishes(self) -> list[str]:
    """Returns names of what is accepted and has no effect."""
    wishes = {
      "reasoning": self.reasoning,
      "max_tool_calls": self.max_tool_calls,
      "context_management": self.context_management,
      "verbosity": self.text.verbosity,
    }
    hosted = sorted({t.type for t in self.tools} - {"function", "namespace"})
    return [*(name for name, value in wishes.items() if value), *hosted]


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
    if not before or rank <= before < 3 or rank < before:
      messages.append({"role": "assistant", "tool_calls": []})
    answer = messages[-1]
    if item.type == "function_call":
      name = _full_name(item.namespace, item.name or "")
      function = {"name": name, "arguments": item.arguments}
      answer["tool_calls"].append({"id": item.call_id, "function": function})
    else:
      is_thought = item.type == "reasoning"
      answer["reasoning_content" if is_thought else "content"] = item.content
  return messages


def _rank(item: _Item) -> int:
  """Returns the place of an item in an answer; 0 for other items."""
  if item.type == "message":
    return 2 * (item.role == "assistant")
  return {"reasoning": 1, "function_call": 3}.get(item.type, 0)


def _said(item: _Item) -> dict[str, Any]:
  if item.type == "function_call_output":
    reply = {"tool_call_id": item.call_id, "content": item.output}
    return {"role": "tool", **reply}
  return {"role": item.role, "content": item.content}


class ResponsesChat(TranslatedRequest):
  """A call as a chat, with the fields that its response repeats."""

  echo: dict[str, Any] = {}


def read_responses(fields: Mapping[str, Any]) -> ChatCompletionRequest:
  """Reads a call as a chat. Raises `ApiError`."""
  chat = read(ResponsesRequest, fields).to_chat()
  defaults = {"metadata": {}, "tools": [], "tool_choice": "auto"}
  given = {name: value for name, value in fields.items() if value is not None}
  echo = defaults | {"parallel_tool_calls": True} | given
  for name in ("input", "stream", "stream_options", "store"):
    echo.pop(name, None)
  return read(ResponsesChat, chat | {"echo": echo})


class ResponsesReply(TranslatedReply):
  """The reply to a call of `/v1/responses`."""

  def __init__(self, call: ChatCall):
    super().__init__(call)
    assert isinstance(call.request, ResponsesChat)
    self._echo = call.request.echo
    self._namespaces = [
      f"{tool['name']}."
      for tool in self._echo["tools"]
      if tool.get("type") == "namespace"
    ]
    self._id, self._created = uuid.uuid4().hex, int(time.time())
    self._number = 0  # of events

  def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
    """See `WireReply`."""
    (choice,) = choices
    return self._response([*self._call.answer_pieces(choice)], choice)

  def failure(self, error: AgentRLError) -> Event:
    """See `WireReply`."""
    fields = error_body(error)["error"]
    response = self._response(self._closed) | {
      "status": "failed",
      "error": {"code": fields["code"], "message": fields["message"]},
    }
    return self._event("failed", response=response)

  def _first_event(self, choice: Choice) -> Event:
    return self._event("created", response=self._response([]))

  def _sign_of_growth(self) -> Event:
    return self._event("in_progress", response=self._response([]))

  def _opening(self, piece: Piece) -> Iterator[Event]:
    item = self._item(len(self._closed), piece) | {"status": "in_progress"}
    name = "arguments" if piece.call else "content"
    item[name] = item[name][:0]  # empty
    yield self._of_item("output_item.added", item=item)
    if not piece.call:
      yield self._of_part("content_part.added", part=_part_of(piece))

  def _addition(self, piece: Piece) -> Iterator[Event]:
    if piece.call:
      arguments, kind = piece.call.arguments, "function_call_arguments"
      yield self._of_part(f"{kind}.delta", delta=arguments)
      yield self._of_part(f"{kind}.done", arguments=arguments)
    else:
      kind = _part_of(piece)["type"]
      yield self._of_part(f"{kind}.delta", delta=piece.text, logprobs=[])

  def _closing(self, piece: Piece) -> Iterator[Event]:
    if not piece.call:
      part = _part_of(piece)
      done = f"{part['type']}.done"
      yield self._of_part(done, text=piece.text, logprobs=[])
      yield self._of_part("content_part.done", part=part)
    item = self._item(len(self._closed), piece)
    yield self._of_item("output_item.done", item=item)

  def _last_of(self, choice: Choice) -> Iterator[Event]:
    response = self._response(self._closed, choice)
    yield self._event(response["status"], response=response)

  def _item(self, index: int, piece: Piece) -> dict[str, Any]:
    """Returns a piece as a complete item."""
    id = f"{self._id}_{index}"
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
    self, pieces: Sequence[Piece], choice: Choice | None = None
  ) -> dict[str, Any]:
    """Returns the response; without a choice it is not complete."""
    is_cut = choice is not None and self._call.finish_reason(choice) == "length"
    status = "incomplete" if is_cut else "completed"
    return {
      **self._echo,
      "id": f"resp_{self._id}",
      "object": "response",
      "created_at": self._created,
      "status": "in_progress" if choice is None else status,
      "error": None,
      "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
      "output": [self._item(*numbered) for numbered in enumerate(pieces)],
      "previous_response_id": None,
      "store": False,
      "truncation": "disabled",
      "usage": None if choice is None else self._usage(choice),
    }

  def _usage(self, choice: Choice) -> dict[str, Any]:
    usage = usage_of(self._call.prompts, [choice])
    num_thought = self._call.num_thought(choice)
    return {
      "input_tokens": usage["prompt_tokens"],
      "input_tokens_details": usage["prompt_tokens_details"],
      "output_tokens": usage["completion_tokens"],
      "output_tokens_details": {"reasoning_tokens": num_thought},
      "total_tokens": usage["total_tokens"],
    }

  def _of_item(self, kind: str, **fields: Any) -> Event:
    return self._event(kind, output_index=len(self._closed), **fields)

  def _of_part(self, kind: str, **fields: Any) -> Event:
    assert self._open is not None
    id = self._item(len(self._closed), self._open)["id"]
    place = {} if self._open.call else {"content_index": 0}
    return self._of_item(kind, item_id=id, **place, **fields)

  def _event(self, kind: str, **fields: Any) -> Event:
    number, self._number = self._number, self._number + 1
    kind = f"response.{kind}"
    return kind, {"type": kind, "sequence_number": number, **fields}


def _part_of(piece: Piece) -> dict[str, Any]:
  if piece.kind == "thought":
    return {"type": "reasoning_text", "text": piece.text}
  return {"type": "output_text", "text": piece.text, "annotations": []}


RESPONSES = Wire("/responses", read_responses, ResponsesReply)
