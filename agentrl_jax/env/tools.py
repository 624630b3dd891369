"""Reads a policy's tool calls, checked against the tools' JSON schemas.

A call that cannot be read is the policy's mistake, never an error: the reader
returns a `ToolMistake` whose message says what was found and what is allowed.
See `data.grammar.json_schema` for what of a schema is checked.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jsonschema.exceptions import ValidationError

from agentrl_jax.data.grammar import json_schema
from agentrl_jax.data.grammar.json_schema import shortened
from agentrl_jax.data.records import Tool, ToolCall, unique_members
from agentrl_jax.data.tool_calls import Flaw, parse_portable, validator_of
from agentrl_jax.errors import ConfigError, refuse_constant


@dataclasses.dataclass(frozen=True)
class ToolMistake:
  """A call that cannot be played; the policy reads `message`."""

  flaw: Flaw
  message: str


def make_tool(
  name: str, description: str, arguments: Mapping[str, str | Mapping[str, Any]]
) -> Tool:
  """Makes a tool that requires all of its arguments, and takes no others.

  Each argument has its schema, or a description of a text.
  """
  properties = {
    key: {"type": "string", "description": schema}
    if isinstance(schema, str)
    else schema
    for key, schema in arguments.items()
  }
  parameters = {
    "type": "object",
    "properties": properties,
    "required": list(arguments),
    "additionalProperties": False,
  }
  return Tool(name, description, parameters)


def read_arguments(
  call: ToolCall, tools: Sequence[Tool]
) -> dict[str, Any] | ToolMistake:
  """Returns the checked arguments of `call`, or the mistake in them."""
  names = ", ".join(tool.name for tool in tools)
  if not call.name:
    return ToolMistake(
      Flaw.MALFORMED_JSON,
      f"Error: the call {quoted(call.arguments)} cannot be read. A call is "
      "JSON with a name and arguments, in which no key stands twice and all "
      f"numbers are finite. The tools are: {names}.",
    )
  tool = next((tool for tool in tools if tool.name == call.name), None)
  if tool is None:
    return ToolMistake(
      Flaw.UNKNOWN_TOOL,
      f"Error: there is no tool {quoted(call.name)}. The tools are: {names}.",
    )
  validator = validator_of(tool)
  try:
    arguments = parse_portable(call.arguments)
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


def parse_any(call: ToolCall) -> Any:
  """Returns the arguments of `call` as JSON of any kind, checked by no schema.

  Raises `ValueError` for other text, for text that cannot be sent on (with half
  a surrogate pair, or nested too deeply), and for a call that was not read.
  """
  if not call.name:
    raise ValueError("it has no name")
  try:
    arguments = json.loads(
      call.arguments,
      parse_constant=refuse_constant,
      object_pairs_hook=unique_members,
    )
    json.dumps(arguments, ensure_ascii=False).encode()
  except RecursionError as error:
    raise ValueError(str(error)) from error
  return arguments


def require_names_apart(tools: Sequence[Tool]) -> None:
  """Raises `ConfigError` if two tools have one name."""
  names = [tool.name for tool in tools]
  if len(set(names)) != len(names):
    raise ConfigError(f"two tools have one name among {', '.join(names)}")


_CONSIDERED = 16  # errors of a call, of which one is described
_FORMS = 3  # of a union that are described
_UNIONS = ("anyOf", "oneOf")

# JSON's types and Python's; bool before int, as Python's bool is an int.
_TYPES: Sequence[tuple[str, type]] = (
  ("object", dict),
  ("array", list),
  ("string", str),
  ("boolean", bool),
  ("null", type(None)),
  ("integer", int),
  ("number", float),
)

# Requirements of keywords with one value.
_BOUNDS: Mapping[str, str] = {
  "minimum": "at least {}",
  "maximum": "at most {}",
  "exclusiveMinimum": "above {}",
  "exclusiveMaximum": "below {}",
  "multipleOf": "a multiple of {}",
  "minLength": "{} characters or longer",
  "maxLength": "{} characters or shorter",
  "minItems": "a list of {} items or more",
  "maxItems": "a list of {} items or fewer",
  "uniqueItems": "a list in which no item is repeated",
  "minProperties": "an object of {} properties or more",
  "maxProperties": "an object of {} properties or fewer",
  "pattern": "text that matches the pattern {}",
}


def problem_of(validator: Any, value: Any) -> str | None:
  """Describes the first error in a value as half a sentence, or None."""
  try:
    errors = [
      *itertools.islice(json_schema.errors_of(validator, value), _CONSIDERED)
    ]
  except json_schema.TooManyReferences:
    return (
      f"the arguments take more than {json_schema.MAX_REFERENCES:,} steps to "
      "check; they must be shorter or less nested"
    )
  except RecursionError:
    return "the arguments are nested too deeply to be checked"
  return _describe(_first(errors)) if errors else None


def usage(tool: Tool) -> str:
  """Describes in one line how to call the tool."""
  schema = validator_of(tool).schema
  needed = schema.get("required", ())
  arguments = ", ".join(
    f"{name}{'' if name in needed else '?'}: {_kinds(rules, schema)}"
    for name, rules in schema.get("properties", {}).items()
  )
  return f"Usage: {tool.name}({arguments})."


def quoted(value: Any) -> str:
  """Formats a value as JSON, shortened."""
  return shortened(json.dumps(value))


def _first(errors: Sequence[ValidationError]) -> ValidationError:
  """Returns the error nearest to the root; among equals a wrong type first."""
  return min(
    errors, key=lambda e: (len(e.absolute_path), e.validator != "type")
  )


def _describe(error: ValidationError) -> str:
  describe = _DESCRIBERS.get(str(error.validator))
  if describe is not None:
    return describe(error)
  bound = _BOUNDS.get(str(error.validator))
  if bound is not None:
    return f"{_where(error)} must be {bound.format(error.validator_value)}"
  if error.validator is None:  # the schema `false`
    return f"there must be no {_where(error)}"
  rule = shortened(json.dumps(error.validator_value), 160)
  return f"{_where(error)} must keep to {error.validator}: {rule}"


def _describe_type(error: ValidationError) -> str:
  return _of_types(error, _as_list(error.validator_value))


def _of_types(error: ValidationError, kinds: Sequence[str]) -> str:
  kind_of_value = next(
    name for name, kind in _TYPES if isinstance(error.instance, kind)
  )
  return (
    f"{_where(error)} must be of type {' or '.join(kinds)}, not {kind_of_value}"
  )


def _describe_choice(error: ValidationError) -> str:
  return _one_of(error, _choices(error))


def _choices(error: ValidationError) -> Sequence[Any]:
  allowed = error.validator_value
  return allowed if error.validator == "enum" else [allowed]


def _one_of(error: ValidationError, choices: Sequence[Any]) -> str:
  shown = ", ".join(json.dumps(choice) for choice in choices)
  one_of = "one of " if len(choices) > 1 else ""
  return (
    f"{_where(error)} must be {one_of}{shortened(shown, 1000)}, not "
    f"{quoted(error.instance)}"
  )


def _describe_missing(error: ValidationError) -> str:
  name = next(n for n in error.validator_value if n not in error.instance)
  return f"`{_joined(_path(error), name)}` is missing"


def _describe_dependent(error: ValidationError) -> str:
  for name, needed in error.validator_value.items():
    for other in needed:
      if name in error.instance and other not in error.instance:
        path = _path(error)
        return (
          f"`{_joined(path, other)}` is missing, which "
          f"`{_joined(path, name)}` needs beside it"
        )
  raise AssertionError("an error of dependentRequired without one missing")


def _describe_unlisted(error: ValidationError) -> str:
  return f"there is no argument {quoted(_joined(_path(error), error.message))}"


def _describe_items(error: ValidationError) -> str:
  """Describes an error of `items: false`, which ends a list."""
  size = len(error.schema.get("prefixItems", ()))
  return f"{_where(error)} must be {_BOUNDS['maxItems'].format(size)}"


def _describe_union(error: ValidationError) -> str:
  """Describes the branches of a union that were probably meant."""
  branches: dict[Any, list[ValidationError]] = {}
  for inner in error.context or ():
    branches.setdefault(inner.schema_path[0], []).append(inner)
  if not branches:
    return (
      f"{_where(error)} fits several of the forms that its schema has, where "
      f"it must fit one: {shortened(json.dumps(error.instance), 160)}"
    )
  meant = _meant([*branches.values()])
  if len(meant) == 1:
    return _describe(meant[0])
  if all(_is_of_type(inner) for inner in meant):
    kinds = [k for inner in meant for k in _as_list(inner.validator_value)]
    return _of_types(error, [*dict.fromkeys(kinds)])
  if len({*map(_where, meant)}) == 1 and all(map(_is_constant, meant)):
    choices = [choice for inner in meant for choice in _choices(inner)]
    return _one_of(meant[0], choices)
  descriptions = [
    *dict.fromkeys(shortened(_describe(inner), 200) for inner in meant)
  ]
  return "; or ".join(descriptions[:_FORMS])


def _meant(
  branches: Sequence[Sequence[ValidationError]],
) -> Sequence[ValidationError]:
  """Returns an error of each branch that was probably meant."""
  fitting = [errors for errors in branches if not _is_of_type(_first(errors))]
  if not fitting:
    return [_first(errors) for errors in branches]
  untagged = [
    _first(errors)
    for errors in fitting
    if not any(_is_constant(e) and len(e.path) <= 1 for e in errors)
  ]
  if untagged:
    return untagged
  # A constant tags each branch: its allowed values are the clearest message.
  return [next(filter(_is_constant, errors), errors[0]) for errors in fitting]


def _is_constant(error: ValidationError) -> bool:
  return error.validator in ("enum", "const")


def _is_of_type(error: ValidationError) -> bool:
  """Returns whether the value has another type than the branch."""
  return error.validator == "type" and not error.path


def _as_list(kinds: str | Sequence[str]) -> list[str]:
  return [kinds] if isinstance(kinds, str) else list(kinds)


_DESCRIBERS: Mapping[str, Callable[[ValidationError], str]] = {
  "type": _describe_type,
  "enum": _describe_choice,
  "const": _describe_choice,
  "required": _describe_missing,
  "dependentRequired": _describe_dependent,
  "additionalProperties": _describe_unlisted,
  "items": _describe_items,
  **dict.fromkeys(_UNIONS, _describe_union),
}


def _where(error: ValidationError) -> str:
  path = _path(error)
  return f"`{path}`" if path else "the arguments"


def _path(error: ValidationError) -> str:
  path = ""
  for part in error.absolute_path:
    path = f"{path}[{part}]" if isinstance(part, int) else _joined(path, part)
  return path


def _joined(path: str, name: str) -> str:
  return f"{path}.{shortened(name)}" if path else shortened(name)


def _kinds(rules: Any, root: Mapping[str, Any]) -> str:
  """Names the types of an argument; a reference has those of its target."""
  return " or ".join(dict.fromkeys(_kinds_of(rules, root, 0))) or "any"


def _kinds_of(rules: Any, root: Mapping[str, Any], depth: int) -> list[str]:
  if not isinstance(rules, Mapping) or depth > 8:
    return []
  if "type" in rules:
    return _as_list(rules["type"])
  if "$ref" in rules:
    target = json_schema.target_of(rules["$ref"], root)
    return _kinds_of(target, root, depth + 1)
  members = [
    _kinds_of(inner, root, depth + 1)
    for union in _UNIONS
    for inner in rules.get(union, ())
  ]
  return [kind for kinds in members for kind in kinds] if all(members) else []
