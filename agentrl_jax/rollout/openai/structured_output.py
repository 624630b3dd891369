"""Grammars of answers, from `tools`, `tool_choice` and `response_format`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.openai.schema import (
  AllowedTools,
  ChatCompletionRequest,
  NamedTool,
)
from agentrl_jax.rollout.server.errors import ApiError


@dataclasses.dataclass(frozen=True)
class StructuredOutput:
  """The form of an answer: its grammar, and the reading of its text."""

  tools: tuple[Tool, ...]  # shown to the policy
  has_calls: bool  # False: all of the answer is text
  grammar: str  # of the answer; "": any tokens

  @classmethod
  def of(
    cls, request: ChatCompletionRequest, codec: ChatCodec, calls: str
  ) -> "StructuredOutput":
    """Compiles a call's grammar. Raises `ApiError` naming the field.

    `calls` is the run's `sampling.calls`: where the call leaves it to the
    policy if and how tools are called, the run decides.
    """
    tools = tuple(tool.to_tool() for tool in request.tools)
    choice = _choose_tools(request, tools)
    may_call = bool(tools) and choice.mode != "none"
    schema = request.answer_schema
    if schema is not None:
      return cls(tools, False, _json_grammar(codec, schema, may_call=may_call))
    strict = frozenset(
      tool.function.name for tool in request.tools if tool.function.strict
    )
    is_strict = bool(strict) or calls != "free"
    is_required = calls == "required" and choice.mode == "auto"
    mode = "required" if is_required else choice.mode
    if not may_call or (choice.is_free and not is_strict):
      return cls(tools, may_call, "")

    def call_grammar() -> str:
      return codec.call_grammar(
        choice.tools, choice=mode, parallel=choice.parallel, strict=strict
      )

    return cls(tools, True, _compile(call_grammar, "tools"))


@dataclasses.dataclass(frozen=True)
class _ToolChoice:
  """Functions that may be called."""

  mode: str  # "auto": may be called, "required": must be, "none"
  tools: Sequence[Tool]
  parallel: bool  # several calls in one answer
  is_free: bool = False  # no restriction beyond those of the mode "auto"


def _choose_tools(
  request: ChatCompletionRequest, tools: Sequence[Tool]
) -> _ToolChoice:
  choice = request.tool_choice
  parallel = request.parallel_tool_calls is not False
  if choice == "auto" or choice == "none":
    return _ToolChoice(choice, tools, parallel, is_free=parallel)
  if not tools:
    raise ApiError(
      f"tool_choice={choice!r} is for calls with tools, and this one has none: "
      "give tools, or leave tool_choice out",
      param="tool_choice",
    )
  if isinstance(choice, NamedTool):
    return _ToolChoice("required", [_find(choice, tools)], parallel=False)
  if isinstance(choice, AllowedTools):
    allowed = choice.allowed_tools
    if not allowed.tools:
      raise ApiError(
        "tool_choice allows none of the tools: name at least one, or give "
        "'none'",
        param="tool_choice",
      )
    by_name = {tool.function.name: _find(tool, tools) for tool in allowed.tools}
    return _ToolChoice(allowed.mode, [*by_name.values()], parallel)
  return _ToolChoice("required", tools, parallel)


def _find(named: NamedTool, tools: Sequence[Tool]) -> Tool:
  name = named.function.name
  for tool in tools:
    if tool.name == name:
      return tool
  raise ApiError(
    f"tool_choice names the function {name!r}, and tools has "
    f"{', '.join(repr(tool.name) for tool in tools)}: name one of these",
    param="tool_choice",
  )


def _json_grammar(
  codec: ChatCodec, schema: Mapping[str, Any], *, may_call: bool
) -> str:
  if may_call:
    raise ApiError(
      "a response_format of JSON and tools that may be called are not "
      "supported together, for an answer is then the one or the other: give "
      "tool_choice='none', or make the form of the last answer a function's",
      param="response_format",
      code="unsupported_value",
    )
  return _compile(lambda: codec.json_grammar(schema), "response_format")


def _compile(grammar: Callable[[], str], param: str) -> str:
  try:
    return grammar()
  except ConfigError as error:
    raise ApiError(str(error), param=param) from error
