"""OpenAI's `/v1/responses`, as a chat.

No response is kept: the client sends the items of earlier ones back. Fields
that ask for what the policy cannot be told (`reasoning`, verbosity), and tools
that OpenAI's own servers execute, are accepted, counted by name and have no
effect.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field

from agentrl_jax.data.records import ToolCall
from agentrl_jax.errors import AgentRLError
from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, usage_of
from agentrl_jax.rollout.openai.schema import (
  FILED,
  ChatCompletionRequest,
  TranslatedRequest,
  joined_parts,
)
from agentrl_jax.rollout.openai.tools import (
  ANY_CHOICE,
  AnyToolChoice,
  OfferedTool,
  shown_later,
)
from agentrl_jax.rollout.openai.validation import (
  LenientObject,
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
from agentrl_jax.rollout.server.errors import error_body

_NOT_KEPT = "this server keeps no responses: send their items in the input"
_Text = Annotated[str, BeforeValidator(joined_parts)]
# What the items of a vendor's own tools have beside what the policy wrote.
_ADDED = {"type": "exec", "env": {}}
_OWN = {
  "custom": ("custom_tool_call", "input"),
  "local_shell": ("local_shell_call", "action"),
  "shell": ("shell_call", "action"),
  "apply_patch": ("apply_patch_call", "operation"),
  "tool_search": ("tool_search_call", "arguments"),
}
_STREAMED = (
  ("arguments", "function_call_arguments"),
  ("input", "custom_tool_call_input"),
)


def _as_items(value: Any) -> Any:
  is_text = isinstance(value, str)
  return [{"role": "user", "content": value}] if is_text else value


def _output(value: Any) -> Any:
  """Reads what a tool answered; a shell's parts have no type."""
  is_own = isinstance(value, list) and value and "type" not in value[0]
  return (
    json.dumps(value, ensure_ascii=False) if is_own else joined_parts(value)
  )


class _Item(Part):
  needs = {
    "message": ("role",),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "local_shell_call": ("call_id", "action"),
    "local_shell_call_output": ("output",),
    "shell_call": ("call_id", "action"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("call_id", "operation"),
    "apply_patch_call_output": ("call_id", "status"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    "additional_tools": ("tools",),
  }

  type: str = "message"
  role: Literal["system", "developer", "user", "assistant"] | None = None
  content: _Text = ""
  id: str = ""
  call_id: str | None = None
  namespace: str = ""
  name: str | None = None
  arguments: str | dict[str, Any] | None = None
  input: str | None = None
  action: dict[str, Any] | None = None
  operation: dict[str, Any] | None = None
  output: Annotated[str, BeforeValidator(_output)] | None = None
  status: str = ""
  tools: Annotated[list[OfferedTool] | None, FailFast()] = None

  def called(self) -> dict[str, str]:
    """Returns the function that a call's item calls."""
    name, own = self.name or "", self.action or self.operation or self.arguments
    if self.input is not None:
      own = {"input": self.input}
    if not self.name:
      name = self.type.removesuffix("_call")
    if isinstance(own, dict):
      own = {
        k: x
        for k, x in own.items()
        if x is not None and _ADDED.get(k, ...) != x
      }
      own = json.dumps(own, ensure_ascii=False)
    full = f"{self.namespace}.{name}" if self.namespace else name
    return {"name": full, "arguments": own or ""}

  def text(self) -> str:
    """Returns what a tool's item says to the policy."""
    tools = [f for tool in self.tools or () for f in tool.functions()]
    said = [self.status] if self.type == "apply_patch_call_output" else []
    return "\n".join(
      [*said, *filter(None, [self.output]), *map(shown_later, tools)]
    )


class _TextConfig(LenientObject):
  format: JsonFormat | None = None


class ResponsesRequest(TranslatedCall):
  """A call of `/v1/responses`."""

  input: Annotated[
    list[_Item], Field(min_length=1), FailFast(), BeforeValidator(_as_items)
  ]
  instructions: str = ""
  tools: Annotated[list[OfferedTool], FailFast()] = []
  tool_choice: AnyToolChoice = ANY_CHOICE
  parallel_tool_calls: bool = True
  max_output_tokens: Annotated[int, whole_number(1)] | None = None
  text: _TextConfig = _TextConfig()

  wishes = frozenset(("context_management", "max_tool_calls", "reasoning"))
  without_effect = FILED | (
    {"access_programs", "background_options", "client_metadata", "include"}
    | {"stream_options"}
  )
  refused = {
    "background": (False, "this server does not do it"),
    "conversation": (None, _NOT_KEPT),
    "image": (None, "the policy writes text alone"),
    "moderation": (None, "this server does not do it"),
    "previous_response_id": (None, _NOT_KEPT),
    "prompt": (None, _NOT_KEPT),
    "top_logprobs": (0, "/v1/chat/completions has log-probabilities"),
    "truncation": ("disabled", "send a shorter input"),
  }

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    form = self.text.format
    # A search that nobody runs here finds none of the others.
    is_searched = any(tool.kind == "tool_search" for tool in self.tools)
    offered = [f for tool in self.tools for f in tool.functions()]
    head = [{"role": "system", "content": self.instructions}]
    return {
      **super().to_chat(),
      "messages": [
        *(head if self.instructions else []),
        *_messages(self.input),
      ],
      "tools": [f for f in offered if not (is_searched and f.defer_loading)],
      "found": [tool for item in self.input for tool in item.tools or ()],
      "tool_choice": self.tool_choice,
      "parallel_tool_calls": self.parallel_tool_calls,
      "response_format": form.to_chat() if form else None,
      "max_tokens": self.max_output_tokens,
    }


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
    if item.type.endswith("_call"):
      call = {"id": item.call_id or item.id, "function": item.called()}
      answer["tool_calls"].append(call)
    else:
      is_thought = item.type == "reasoning"
      answer["reasoning_content" if is_thought else "content"] = item.content
  return messages


def _rank(item: _Item) -> int:
  """Returns the place of an item in an answer; 0 for other items."""
  if item.type == "message":
    return 2 * (item.role == "assistant")
  return 3 * item.type.endswith("_call") or int(item.type == "reasoning")


def _said(item: _Item) -> dict[str, Any]:
  if item.type.endswith("_output"):
    reply = {"tool_call_id": item.call_id or item.id, "content": item.text()}
    return {"role": "tool", **reply}
  if item.type == "additional_tools":
    return {"role": "developer", "content": item.text()}
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
    self._echo, self._tools = call.request.echo, call.request.functions
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
    for name in ("arguments", "input", "content"):
      if isinstance(item.get(name), str | list):
        item[name] = item[name][:0]  # empty
    yield self._of_item("output_item.added", item=item)
    if not piece.call:
      yield self._of_part("content_part.added", part=_part_of(piece))

  def _addition(self, piece: Piece) -> Iterator[Event]:
    if piece.call:
      item = self._item(len(self._closed), piece)
      for name, kind in _STREAMED:
        if isinstance(text := item.get(name), str):
          yield self._of_part(f"{kind}.delta", delta=text)
          yield self._of_part(f"{kind}.done", **{name: text})
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
      return self._call_item(id, piece.call)
    item = {"status": "completed", "content": [_part_of(piece)]}
    if piece.kind == "thought":
      return {"id": f"rs_{id}", "type": "reasoning", "summary": [], **item}
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", **item}

  def _call_item(self, id: str, call: ToolCall) -> dict[str, Any]:
    """Returns a call in the form of the tool that it calls."""
    tool = self._tools.get(call.name) or OfferedTool(name=call.name)
    space = {"namespace": tool.namespace} if tool.namespace else {}
    named = {"name": call.name.removeprefix(f"{tool.namespace}."), **space}
    item = {"call_id": call.id, "status": "completed"}
    if tool.kind not in _OWN:
      item |= {"id": f"fc_{id}", "type": "function_call", **named}
      return item | {"arguments": call.arguments}
    name, field = _OWN[tool.kind]
    own = json.loads(call.arguments)
    if tool.kind == "custom":
      return item | {"id": f"ctc_{id}", "type": name, **named, **own}
    item |= {"execution": "client"} if tool.kind == "tool_search" else {}
    # The output of a local shell names its call by the item's id.
    own = _ADDED | own if tool.kind == "local_shell" else own
    return item | {"id": call.id, "type": name, field: own}

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
