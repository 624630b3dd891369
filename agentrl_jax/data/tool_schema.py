"""Copies the JSON schema of a tool's arguments, so that all can show it.

Schemas come from environments, workers, MCP servers, clients and tables, which
write null for what they leave out, and true for a part that may be anything.
Those who render a tool or check a call by its schema (templates, grammars,
messages to the policy) get one without either. `json_schema` says what can be
checked.
"""

import json
import reprlib
from collections.abc import Mapping
from typing import Any

from agentrl_jax.data.grammar.json_schema import MAX_DEPTH, NAMED, depth_of

# Keywords of JSON schemas whose values are plain JSON, perhaps null.
_VALUES = frozenset({"const", "default", "example"})
# Keywords whose values are plain JSON, and schemas by name.
_PLAIN_KEYWORDS = _VALUES | {"enum", "examples"}


def copied_parameters(given: Any) -> dict[str, Any]:
  """Returns a copy of the schema of a tool's arguments, as readers need it.

  Keywords that are null are left out, and so are properties, unless they are
  required; the schema true of a part becomes {}. Raises ValueError for what is
  no schema, or no JSON.
  """
  if not isinstance(given, Mapping):
    raise ValueError(f"a JSON schema is an object, found {reprlib.repr(given)}")
  try:
    plain = json.loads(json.dumps(given, allow_nan=False))
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(f"it is no JSON: {error}") from error
  if depth_of(plain) > MAX_DEPTH:
    raise ValueError(
      f"it is nested deeper than {MAX_DEPTH} lists and objects: refer "
      "to '$defs'"
    )
  schema: dict[str, Any] = _schema(plain)
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


def _schema(given: Any) -> Any:
  """Copies a schema, without keywords that are null."""
  if isinstance(given, list):
    return [_schema(inner) for inner in given]
  if not isinstance(given, dict):
    return given
  takes_null = "null" in str(given.get("type") or "null")
  schema = {
    keyword: _keyword(keyword, value, given.get("required") or ())
    for keyword, value in given.items()
    if value is not None or keyword in _VALUES and takes_null
  }
  if not isinstance(schema.get("description", ""), str):
    raise ValueError(
      f"'description' is a text, found {reprlib.repr(schema['description'])}"
    )
  return schema


def _keyword(keyword: str, value: Any, required: Any) -> Any:
  if keyword in _PLAIN_KEYWORDS:
    return value
  if keyword in NAMED and isinstance(value, dict):
    return {
      name: _applied(inner)
      for name, inner in value.items()
      if inner is not None or name in required
    }
  return _applied(value) if keyword == "items" else _schema(value)


def _applied(given: Any) -> Any:
  """Copies the schema of a part, which may be true or null: any value."""
  return {} if given is None or given is True else _schema(given)
