"""Calls of functions: parsed from BFCL's gold, read from a policy's answers."""

import ast
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from agentrl_jax.data.records import ToolCall
from agentrl_jax.errors import ConfigError, refuse_constant


@dataclasses.dataclass(frozen=True)
class Call:
  """A function's name and its arguments."""

  name: str
  positional: tuple[Any, ...]
  named: Mapping[str, Any]


def parse_source(source: str) -> Call:
  """Parses `name(1, key="value")`; arguments must be literals.

  The source is never evaluated.
  """
  try:
    node = ast.parse(source.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
      raise ValueError("it is not a call of a function by its name")
    if any(keyword.arg is None for keyword in node.keywords):
      raise ValueError("it spreads a dict over its arguments")
    return Call(
      node.func.id,
      tuple(ast.literal_eval(argument) for argument in node.args),
      {str(k.arg): ast.literal_eval(k.value) for k in node.keywords},
    )
  except (ValueError, SyntaxError) as error:
    raise ConfigError(
      f"gold call {source!r} cannot be read: {error}"
    ) from error


def read_call(call: ToolCall) -> Call | None:
  """Reads a policy's call; None if its arguments are no JSON object."""
  if not call.name:  # it was not read, and its text may be any JSON
    return None
  try:
    arguments = json.loads(call.arguments, parse_constant=refuse_constant)
    # Half a surrogate pair would return in a reply, which cannot be encoded.
    json.dumps([call.name, arguments], ensure_ascii=False).encode()
  except (ValueError, RecursionError):
    return None
  if not isinstance(arguments, dict):
    return None
  return Call(call.name, (), arguments)
