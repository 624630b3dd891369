"""Reading a policy's tool call against the tool's JSON schema.

A call that cannot be read is the policy's mistake, never an error: the reader
returns a `ToolMistake` whose message says what was found and what is allowed.
Plain checks of the schema keywords that tools use; no `$ref`, no `oneOf`:
`require_readable` tells an environment's author what is not understood here.
"""

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.messages import Tool, ToolCall
from agentrl_jax.errors import ConfigError


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
  """The arguments of `call`, checked, or what is wrong with them."""
  tool = next((tool for tool in tools if tool.name == call.name), None)
  if tool is None:
    names = ", ".join(tool.name for tool in tools)
    return ToolMistake(
      Flaw.UNKNOWN_TOOL,
      f"Error: there is no tool {_quote(call.name)}. The tools are: {names}.",
    )
  try:
    arguments = _parse(call.arguments)
  except (ValueError, RecursionError) as error:
    return ToolMistake(
      Flaw.MALFORMED_JSON,
      f"Error: the arguments of {tool.name} cannot be read as JSON "
      f"({_shorten(str(error), 160)}). {_usage(tool)}",
    )
  problem = _problem(arguments, {"type": "object", **tool.parameters}, "")
  if problem is not None:
    return ToolMistake(
      Flaw.WRONG_ARGUMENTS, f"Error: {problem}. {_usage(tool)}"
    )
  return dict(arguments)


def require_readable(tools: Sequence[Tool]) -> None:
  """Raises `ConfigError` where a schema asks for what is not checked here."""
  names = [tool.name for tool in tools]
  if len(set(names)) != len(names):
    raise ConfigError(f"two tools have one name among {', '.join(names)}")
  for tool in tools:
    _require_known(tool.parameters, f"tool {tool.name}")


def _parse(text: str) -> Any:
  """JSON that every program can hold: 64 bits a number, text that encodes."""
  value = json.loads(
    text,
    parse_constant=_refuse_constant,
    parse_int=_read_int,
    parse_float=_read_float,
  )
  if "\\u" in text:  # an escape may hide half of a surrogate pair
    json.dumps(value, ensure_ascii=False).encode()
  return value


def _refuse_constant(name: str) -> Any:
  raise ValueError(f"{name} is no JSON number")


def _read_int(digits: str) -> int:
  if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
    raise ValueError(f"{_shorten(digits)} does not fit in 64 bits")
  return value


def _read_float(digits: str) -> float:
  value = float(digits)
  if math.isinf(value):
    raise ValueError(f"{_shorten(digits)} does not fit in 64 bits")
  return value


# Which Python types each JSON type is read as. A bool is an int in Python and
# not in JSON; a float without a fraction is an integer in JSON Schema.
_TYPES: Mapping[str, Callable[[Any], bool]] = {
  "object": lambda x: isinstance(x, dict),
  "array": lambda x: isinstance(x, list),
  "string": lambda x: isinstance(x, str),
  "boolean": lambda x: isinstance(x, bool),
  "null": lambda x: x is None,
  "integer": lambda x: (
    (isinstance(x, int) and not isinstance(x, bool))
    or (isinstance(x, float) and x.is_integer() and abs(x) < 2**63)
  ),
  "number": lambda x: isinstance(x, int | float) and not isinstance(x, bool),
}

# keyword -> (whom it concerns, is it kept to, what it asks for)
_BOUNDS: Mapping[str, tuple[type | tuple[type, ...], Any, str]] = {
  "minimum": ((int, float), lambda x, bound: x >= bound, "at least {}"),
  "maximum": ((int, float), lambda x, bound: x <= bound, "at most {}"),
  "minLength": (str, lambda x, n: len(x) >= n, "{} characters or longer"),
  "maxLength": (str, lambda x, n: len(x) <= n, "{} characters or shorter"),
  "minItems": (list, lambda x, n: len(x) >= n, "a list of {} items or more"),
  "maxItems": (list, lambda x, n: len(x) <= n, "a list of {} items or fewer"),
}
_STRUCTURE = frozenset(
  {"type", "enum", "properties", "required", "additionalProperties", "items"}
)
_ANNOTATIONS = frozenset(
  {"title", "description", "default", "examples", "$schema"}
)


def _problem(value: Any, schema: Mapping[str, Any], path: str) -> str | None:
  """What is wrong with `value`, or None; the first thing found."""
  problem = _scalar_problem(value, schema, path)
  if problem is not None:
    return problem
  if isinstance(value, dict):
    return _object_problem(value, schema, path)
  if isinstance(value, list) and "items" in schema:
    items = schema["items"]
    problems = (_problem(x, items, f"{path}[{i}]") for i, x in enumerate(value))
    return next((p for p in problems if p is not None), None)
  return None


def _scalar_problem(
  value: Any, schema: Mapping[str, Any], path: str
) -> str | None:
  where = f"`{path}`" if path else "the arguments"
  kinds = _kinds(schema)
  if kinds and not any(_TYPES[kind](value) for kind in kinds):
    return f"{where} must be of type {' or '.join(kinds)}, not {_name(value)}"
  if "enum" in schema and value not in schema["enum"]:
    choices = ", ".join(json.dumps(choice) for choice in schema["enum"])
    return f"{where} must be one of {choices}, not {_quote(value)}"
  for keyword in schema.keys() & _BOUNDS.keys():
    types, is_kept, asks = _BOUNDS[keyword]
    if isinstance(value, types) and not is_kept(value, schema[keyword]):
      return f"{where} must be {asks.format(schema[keyword])}"
  return None


def _object_problem(
  value: dict[str, Any], schema: Mapping[str, Any], path: str
) -> str | None:
  properties = schema.get("properties", {})
  for name in schema.get("required", ()):
    if name not in value:
      return f"`{_join(path, name)}` is missing"
  others = schema.get("additionalProperties", True)
  for name, item in value.items():
    if name not in properties and others is False:
      return f"there is no argument {_quote(_join(path, name))}"
    rules = properties.get(name, others)
    if isinstance(rules, Mapping):
      problem = _problem(item, rules, _join(path, name))
      if problem is not None:
        return problem
  return None


def _require_known(schema: Mapping[str, Any], where: str) -> None:
  unknown = schema.keys() - _STRUCTURE - _ANNOTATIONS - _BOUNDS.keys()
  if unknown:
    allowed = ", ".join(sorted(_STRUCTURE | _BOUNDS.keys()))
    raise ConfigError(
      f"{where}: schema keywords {', '.join(sorted(unknown))} are not checked "
      f"by agentrl_jax.env.tools; it knows {allowed}"
    )
  for kind in _kinds(schema):
    if kind not in _TYPES:
      raise ConfigError(
        f"{where}: type {kind!r} is not one of {', '.join(_TYPES)}"
      )
  for name, inner in schema.get("properties", {}).items():
    _require_known(inner, f"{where}, argument {name}")
  for keyword in ("items", "additionalProperties"):
    if isinstance(schema.get(keyword), Mapping):
      _require_known(schema[keyword], f"{where}, {keyword}")


def _kinds(schema: Mapping[str, Any]) -> Sequence[str]:
  kinds: str | Sequence[str] = schema.get("type", ())
  return (kinds,) if isinstance(kinds, str) else kinds


def _usage(tool: Tool) -> str:
  """One line on how the tool is called."""
  properties = tool.parameters.get("properties", {})
  needed = tool.parameters.get("required", ())
  arguments = ", ".join(
    f"{name}{'' if name in needed else '?'}: {rules.get('type', 'any')}"
    for name, rules in properties.items()
  )
  return f"Usage: {tool.name}({arguments})."


def _name(value: Any) -> str:
  return next(name for name, is_of in _TYPES.items() if is_of(value))


def _join(path: str, name: str) -> str:
  return f"{path}.{_shorten(name)}" if path else _shorten(name)


def _quote(value: Any) -> str:
  return _shorten(json.dumps(value))


def _shorten(text: str, limit: int = 80) -> str:
  return text if len(text) <= limit else text[:limit] + "..."
