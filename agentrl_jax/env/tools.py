"""Reading a policy's tool call against the tool's JSON schema.

A call that cannot be read is the policy's mistake, never an error: the reader
returns a `ToolMistake` whose message says what was found and what is allowed.
Schemas are of draft 2020-12; see `data.json_schema` for what bounds them, and
`require_readable` for telling an environment's author what is not checked.
"""

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Sequence
from typing import Any

from agentrl_jax.data import json_schema
from agentrl_jax.data.json_schema import shortened
from agentrl_jax.data.messages import Tool, ToolCall
from agentrl_jax.env.argument_problems import problem_of, quoted, usage
from agentrl_jax.errors import ConfigError

_KEPT = 1024  # schemas that are kept compiled


class Flaw(enum.Enum):
  """What is wrong with a call, for environments with words of their own."""

  UNKNOWN_TOOL = "unknown tool"
  MALFORMED_JSON = "malformed JSON"
  WRONG_ARGUMENTS = "wrong arguments"


@dataclasses.dataclass(frozen=True)
class ToolMistake:
  """A call that cannot be played; `message` is for the policy."""

  flaw: Flaw
  message: str


def read_arguments(
  call: ToolCall, tools: Sequence[Tool]
) -> dict[str, Any] | ToolMistake:
  """The arguments of `call`, checked, or what is wrong with them.

  Raises `ConfigError` for a tool whose schema `require_readable` refuses.
  """
  tool = next((tool for tool in tools if tool.name == call.name), None)
  if tool is None:
    names = ", ".join(tool.name for tool in tools)
    return ToolMistake(
      Flaw.UNKNOWN_TOOL,
      f"Error: there is no tool {quoted(call.name)}. The tools are: {names}.",
    )
  validator = _validator_of(tool)
  try:
    arguments = _parse(call.arguments)
  except (ValueError, RecursionError) as error:
    return ToolMistake(
      Flaw.MALFORMED_JSON,
      f"Error: the arguments of {tool.name} cannot be read as JSON "
      f"({shortened(str(error), 160)}). {usage(tool)}",
    )
  problem = problem_of(validator, arguments)
  if problem is not None:
    return ToolMistake(Flaw.WRONG_ARGUMENTS, f"Error: {problem}. {usage(tool)}")
  return dict(arguments)


def require_readable(tools: Sequence[Tool]) -> None:
  """Raises `ConfigError` where a schema asks for what is not checked here."""
  names = [tool.name for tool in tools]
  if len(set(names)) != len(names):
    raise ConfigError(f"two tools have one name among {', '.join(names)}")
  for tool in tools:
    _validator_of(tool)


def _validator_of(tool: Tool) -> Any:
  """The compiled schema of a tool, by its text: compiled once."""
  try:
    text = json.dumps(tool.parameters)
  except (TypeError, ValueError, RecursionError) as error:
    raise ConfigError(
      f"the parameters of tool {tool.name} cannot be written as JSON: {error}"
    ) from error
  return _compiled(text, tool.name)


@functools.lru_cache(_KEPT)
def _compiled(parameters: str, name: str) -> Any:
  schema = {"type": "object", **json.loads(parameters)}
  return json_schema.validator_of(schema, f"the schema of tool {name}")


def _parse(text: str) -> Any:
  """JSON that every program can hold.

  64 bits a number, text that encodes, a bound on the depth.
  """
  value = json.loads(
    text,
    parse_constant=_refuse_constant,
    parse_int=_read_int,
    parse_float=_read_float,
  )
  if "\\u" in text:  # an escape may hide half of a surrogate pair
    json.dumps(value, ensure_ascii=False).encode()
  limit = json_schema.MAX_DEPTH
  may_be_deep = text.count("[") + text.count("{") > limit
  if may_be_deep and json_schema.depth_of(value) > limit:
    raise ValueError(f"it is nested deeper than {limit} lists and objects")
  return value


def _refuse_constant(name: str) -> Any:
  raise ValueError(f"{name} is no JSON number")


def _read_int(digits: str) -> int:
  if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
    raise ValueError(f"{shortened(digits)} does not fit in 64 bits")
  return value


def _read_float(digits: str) -> float:
  value = float(digits)
  if math.isinf(value):
    raise ValueError(f"{shortened(digits)} does not fit in 64 bits")
  return value
