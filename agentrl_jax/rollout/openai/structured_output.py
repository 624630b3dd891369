"""Grammars of answers, from `tools`, `tool_choice` and `response_format`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.openai.schema import ChatCompletionRequest
from agentrl_jax.rollout.openai.tools import ToolChoice
from agentrl_jax.rollout.server.errors import ApiError


@dataclasses.dataclass(frozen=True)
class StructuredOutput:
  """The form of an answer: its grammar, and the reading of its text."""

  tools: tuple[Tool, ...]  # that the conversation begins with
  callable: tuple[Tool, ...]  # empty: all of the answer is text
  grammar: str  # of the answer; "": any tokens

  @classmethod
  def of(
    cls, request: ChatCompletionRequest, codec: ChatCodec, calls: str
  ) -> "StructuredOutput":
    """Compiles a call's grammar. Raises `ApiError` naming the field.

    `calls` is the run's `sampling.calls`: where the call leaves it to the
    policy if and how tools are called, the run decides.
    """
    shown = tuple(tool.to_tool() for tool in request.shown)
    tools = tuple(tool.to_tool() for tool in request.functions.values())
    choice = request.tool_choice
    allowed = _allowed(choice, tools)
    may_call = bool(tools) and choice.mode != "none"
    schema = request.answer_schema
    if schema is not None:
      return cls(shown, (), _json_grammar(codec, schema, may_call=may_call))
    strict = frozenset(f.name for f in request.functions.values() if f.strict)
    is_free = choice.names is None and request.may_call_several
    is_free &= choice.mode == "auto" and calls == "free" and not strict
    if not may_call or is_free:
      return cls(shown, tools if may_call else (), "")
    is_required = calls == "required" and choice.mode == "auto"
    mode = "required" if is_required else choice.mode
    parallel = request.may_call_several

    def call_grammar() -> str:
      return codec.call_grammar(
        allowed, choice=mode, parallel=parallel, strict=strict
      )

    return cls(shown, tools, _compile(call_grammar, "tools"))


def _allowed(choice: ToolChoice, tools: Sequence[Tool]) -> Sequence[Tool]:
  """Returns the tools that a choice allows. Raises `ApiError`."""
  by_name = {tool.name: tool for tool in tools}
  names = dict.fromkeys(by_name if choice.names is None else choice.names)
  is_open = choice.names is None and choice.mode != "required"
  if not is_open and (not names or names.keys() - by_name.keys()):
    raise ApiError(
      f"tool_choice={choice.mode!r} is for the functions {[*names]}, and the "
      f"policy is shown {[*by_name]}: name some of these, or leave it out",
      param="tool_choice",
    )
  return [by_name[name] for name in names]


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
