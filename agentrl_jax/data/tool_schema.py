"""Copies the JSON schema of a tool's arguments, so that all can show it.

Schemas come from environments, workers, MCP servers, clients and tables, which
write null for what they leave out, and true for a part that may be anything.
Those who render a tool or check a call by its schema (templates, grammars,
messages to the policy) get one without either. `json_schema` says what can be
checked.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 64  # of nested lists and objects
# Keywords of JSON schemas whose values are plain JSON, perhaps null.
_VALUES = frozenset({"const", "default", "example"})
# Keywords whose values are plain JSON, and schemas by name.
_PLAIN_KEYWORDS = _VALUES | {"enum", "examples"}
_NAMED_SCHEMAS = frozenset(
  {
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
  }
)


def copied_parameters(given: Any) -> dict[str, Any]:
  """Returns a copy of the schema of a tool's arguments, as readers need it.

  Keywords that are null are left out, and so are properties, unless they are
  required; the schema true of a part becomes {}. Raises ValueError for what is
  no schema, or no JSON.
  """
  if not isinstance(given, Mapping):
    raise ValueError(f"a JSON schema is an object, found {reprlib.repr(given)}")
  schema: dict[str, Any] = _schema(given, 0)
  properties = schema.get("properties", {})
  if not isinstance(properties, Mapping):
    raise ValueError(
      f"'properties' is an object, found {reprlib.repr(properties)}"
    )
  required = schema.get("required", [])
  if not isinstance(required, list) or not all(
    isinstance(name, str) for name in required
  ):
    raise ValueError(
      f"'required' is a list of names, found {reprlib.repr(required)}"
    )
  return schema


def _schema(given: Any, depth: int) -> Any:
  """Copies a schema, without keywords that are null."""
  if not isinstance(given, Mapping):
    return _plain(given, depth)
  _require_shallow(depth)
  required = given.get("required")
  required = required if isinstance(required, list | tuple) else ()
  takes_null = "null" in str(given.get("type") or "null")
  schema = {
    _key(keyword): _keyword(keyword, value, depth + 1, required)
    for keyword, value in given.items()
    if value is not None or keyword in _VALUES and takes_null
  }
  if not isinstance(schema.get("description", ""), str):
    raise ValueError(
      f"'description' is a text, found {reprlib.repr(schema['description'])}"
    )
  return schema


def _keyword(
  keyword: Any, value: Any, depth: int, required: Sequence[Any]
) -> Any:
  if keyword in _PLAIN_KEYWORDS:
    return _plain(value, depth)
  if keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
    return {
      _key(k): _applied(inner, depth + 1)
      for k, inner in value.items()
      if inner is not None or k in required
    }
  if keyword == "items":
    return _applied(value, depth)
  if isinstance(value, list | tuple):
    return [_schema(inner, depth + 1) for inner in value]
  return _schema(value, depth)


def _applied(given: Any, depth: int) -> Any:
  """Copies the schema of a part, which may be true or null: any value."""
  return {} if given is None or given is True else _schema(given, depth)


def _plain(value: Any, depth: int) -> Any:
  """Copies a JSON value. Raises ValueError for another one."""
  _require_shallow(depth)
  if isinstance(value, Mapping):
    return {_key(k): _plain(inner, depth + 1) for k, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(inner, depth + 1) for inner in value]
  is_infinite = isinstance(value, float) and not math.isfinite(value)
  if not isinstance(value, str | int | float | None) or is_infinite:
    raise ValueError(f"{reprlib.repr(value)} is no JSON")
  return value


def _require_shallow(depth: int) -> None:
  if depth > MAX_DEPTH:
    raise ValueError(
      f"it is nested deeper than {MAX_DEPTH} lists and objects: refer "
      "to '$defs'"
    )


def _key(name: Any) -> str:
  if not isinstance(name, str):
    raise ValueError(f"a key in JSON is a text, found {reprlib.repr(name)}")
  return name
