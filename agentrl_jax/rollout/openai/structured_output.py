"""What a chat call says of its answer's form, and the grammar that makes it so.

`tool_choice`, `parallel_tool_calls`, functions that are `strict`, and
`response_format`. Without any of them an answer is what the policy writes.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.messages import Tool
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.openai.fields import Fields, wrong
from agentrl_jax.rollout.openai.messages import any_strict, read_tools
from agentrl_jax.rollout.server.errors import ApiError

_CHOICES = (
  "'auto', 'required', 'none', "
  '{"type": "function", "function": {"name": ...}}, or {"type": '
  '"allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": '
  "[...]}}"
)
_FORMATS = (
  '{"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", '
  '"json_schema": {"name": ..., "schema": {...}}}'
)


@dataclasses.dataclass(frozen=True)
class StructuredOutput:
  """How an answer is to be sampled, and how read."""

  tools: tuple[Tool, ...]  # that the policy is shown
  reads_calls: bool  # or all that it says is text
  grammar: str  # of the answer; "" is anything


@dataclasses.dataclass(frozen=True)
class _ToolChoice:
  """Whether tools may be called ("auto"), must be, or not ("none"), and which.

  `is_free` says that the policy has all the choice there is.
  """

  mode: str
  tools: Sequence[Tool]
  is_free: bool = True
  parallel: bool = True


def has_structured_output(fields: Fields) -> bool:
  """Whether a call may ask for a form; it need not be one that is valid."""
  named = ("response_format", "tool_choice", "parallel_tool_calls")
  if any(fields.peek(name) is not None for name in named):
    return True
  tools = fields.peek("tools")
  functions = [
    tool.get("function")
    for tool in (tools if isinstance(tools, list) else ())
    if isinstance(tool, dict)
  ]
  return any(isinstance(f, dict) and f.get("strict") for f in functions)


def read_structured_output(
  fields: Fields, codec: ChatCodec
) -> StructuredOutput:
  """Raises `ApiError` for what cannot be done, naming the field."""
  offered = fields.take("tools", [])
  tools = read_tools(offered)
  parallel = fields.flag("parallel_tool_calls", True)
  choice = _choice(fields.take("tool_choice", "auto"), tools)
  schema = _schema(fields.take("response_format", {"type": "text"}))
  calls = bool(tools) and choice.mode != "none"
  if schema is not None:
    return StructuredOutput(
      tools, False, _json_grammar(codec, schema, calls=calls)
    )
  if not calls or (choice.is_free and parallel and not any_strict(offered)):
    return StructuredOutput(tools, calls, "")

  def call_grammar() -> str:
    return codec.call_grammar(
      choice.tools, choice=choice.mode, parallel=parallel and choice.parallel
    )

  return StructuredOutput(tools, True, _made(call_grammar, "tools"))


def _choice(found: Any, tools: Sequence[Tool]) -> _ToolChoice:
  if found in ("auto", "none"):
    return _ToolChoice(found, tools)
  if not tools:
    raise ApiError(
      f"tool_choice={found!r} is for calls with tools, and this one has none: "
      "give tools, or leave tool_choice out",
      param="tool_choice",
    )
  if found == "required":
    return _ToolChoice("required", tools, is_free=False)
  kind = found.get("type") if isinstance(found, dict) else None
  if kind == "function":
    named = [_tool_named(found, tools)]
    return _ToolChoice("required", named, is_free=False, parallel=False)
  if kind == "allowed_tools" and isinstance(found.get("allowed_tools"), dict):
    return _allowed(found["allowed_tools"], tools)
  raise wrong("tool_choice", found, _CHOICES)


def _allowed(found: Mapping[str, Any], tools: Sequence[Tool]) -> _ToolChoice:
  names = found.get("tools")
  mode = found.get("mode", "auto")
  if mode not in ("auto", "required") or not isinstance(names, list):
    raise wrong("tool_choice", found, _CHOICES)
  if not names:
    raise ApiError(
      "tool_choice allows none of the tools: name at least one, or give 'none'",
      param="tool_choice",
    )
  allowed = {tool.name: tool for tool in (_tool_named(n, tools) for n in names)}
  return _ToolChoice(mode, [*allowed.values()], is_free=False)


def _tool_named(found: Any, tools: Sequence[Tool]) -> Tool:
  function = found.get("function") if isinstance(found, dict) else None
  name = function.get("name") if isinstance(function, dict) else None
  for tool in tools:
    if tool.name == name:
      return tool
  raise ApiError(
    f"tool_choice names the function {name!r}, and tools has "
    f"{', '.join(repr(tool.name) for tool in tools)}: name one of these",
    param="tool_choice",
  )


def _schema(found: Any) -> Mapping[str, Any] | None:
  """The JSON schema that the answer is to keep to; None: it is text."""
  kind = found.get("type") if isinstance(found, dict) else None
  if kind == "text":
    return None
  if kind == "json_object":
    return {"type": "object"}
  described = found.get("json_schema") if kind == "json_schema" else None
  schema = described.get("schema") if isinstance(described, dict) else None
  if not isinstance(schema, dict):
    raise wrong("response_format", found, _FORMATS)
  return schema


def _json_grammar(
  codec: ChatCodec, schema: Mapping[str, Any], *, calls: bool
) -> str:
  if calls:
    raise ApiError(
      "a response_format of JSON and tools that may be called are not "
      "supported together, for an answer is then the one or the other: give "
      "tool_choice='none', or make the form of the last answer a function's",
      param="response_format",
      code="unsupported_value",
    )
  return _made(lambda: codec.json_grammar(schema), "response_format")


def _made(grammar: Callable[[], str], param: str) -> str:
  try:
    return grammar()
  except ConfigError as error:
    raise ApiError(str(error), param=param) from error
