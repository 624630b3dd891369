"""Tells what is wrong with a policy's tool call, by the tools' JSON schemas.

`flaw_of` never raises: a recorder asks it about answers of any policy and tools
of any origin, to count them. Environments read calls with `env.tools`, which
also says it to the policy. See `data.grammar.json_schema` for what of a schema
is checked.
"""

import enum
import functools
import json
import math
from collections.abc import Sequence
from typing import Any

from agentrl_jax.data.grammar import json_schema
from agentrl_jax.data.grammar.json_schema import shortened
from agentrl_jax.data.records import Tool, ToolCall, unique_members
from agentrl_jax.errors import refuse_constant

_KEPT = 1024  # size of the cache of compiled schemas


class Flaw(enum.Enum):
  """Kind of mistake in a call, for environments with messages of their own."""

  UNKNOWN_TOOL = "unknown tool"
  MALFORMED_JSON = "malformed JSON"
  WRONG_ARGUMENTS = "wrong arguments"


def flaw_of(call: ToolCall, tools: Sequence[Tool]) -> Flaw | None:
  """Returns the first flaw of a call; None if it fits one of the tools."""
  if not call.name:
    return Flaw.MALFORMED_JSON
  tool = next((tool for tool in tools if tool.name == call.name), None)
  if tool is None:
    return Flaw.UNKNOWN_TOOL
  try:
    arguments = parse_portable(call.arguments)
  except (ValueError, RecursionError):
    return Flaw.MALFORMED_JSON
  try:
    errors = json_schema.errors_of(validator_of(tool), arguments)
    return None if next(errors, None) is None else Flaw.WRONG_ARGUMENTS
  except (json_schema.TooManyReferences, RecursionError):
    return Flaw.WRONG_ARGUMENTS


def validator_of(tool: Tool) -> Any:
  """Returns the compiled schema of a tool, cached by its text."""
  return _compiled(json.dumps(tool.parameters))


@functools.lru_cache(_KEPT)
def _compiled(parameters: str) -> Any:
  schema = {**json.loads(parameters), "type": "object", "nullable": False}
  return json_schema.validator_of(schema)


def parse_portable(text: str) -> Any:
  """Parses JSON that every program reads alike, and can hold.

  Numbers have 64 bits at most, text can be encoded, and the depth is bounded.
  Raises `ValueError` or `RecursionError` for other text.
  """
  value = json.loads(
    text,
    parse_constant=refuse_constant,
    object_pairs_hook=unique_members,
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


def _read_int(digits: str) -> int:
  if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
    raise ValueError(f"{shortened(digits)} does not fit in 64 bits")
  return value


def _read_float(digits: str) -> float:
  value = float(digits)
  if math.isinf(value):
    raise ValueError(f"{shortened(digits)} does not fit in 64 bits")
  return value
