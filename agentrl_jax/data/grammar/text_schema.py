"""Texts without quotes by a JSON schema, as in calls that have no JSON.

`types_of` says of which types a value may be, which decides how its letters are
read. `text_rule` writes the rule of a value's letters in llguidance's language;
both agree on what is a text and what is null.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_jax.data.grammar.json_schema import shortened, target_of
from agentrl_jax.errors import ConfigError

TYPES = frozenset(
  ("object", "array", "string", "number", "integer", "boolean", "null")
)
ANY_TEXT = r"/(.|\n)*/"
# How programs write null; with white space around it is null as well.
NULLS = ("null", "None")
_NULL_TEXT = rf"/[ \t\n\r]*({'|'.join(NULLS)})[ \t\n\r]*/"
_UNIONS = ("anyOf", "oneOf")


def types_of(schema: Mapping[str, Any], key: str) -> frozenset[str]:
  """Returns the types that the property `key` of objects may have.

  All of them, where the schema does not say. Who may have a number may have an
  integer.
  """
  properties = schema.get("properties")
  inner = properties.get(key) if isinstance(properties, Mapping) else None
  return types_in(inner, schema)


def types_in(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
  """Returns the types that a schema within `root` allows, as `types_of`."""
  return _types(schema, root, {})


def _types(
  schema: Any, root: Mapping[str, Any], known: dict[int, frozenset[str]]
) -> frozenset[str]:
  """`known` has the schemas that were visited, for loops of references."""
  if not isinstance(schema, Mapping):
    return TYPES
  if id(schema) in known:
    return known[id(schema)]
  known[id(schema)] = TYPES
  types = TYPES
  for keyword, value in schema.items():
    types &= _by_keyword(keyword, value, root, known)
  types |= {"null"} if schema.get("nullable") is True else set()
  known[id(schema)] = types
  return types


def _by_keyword(
  keyword: str,
  value: Any,
  root: Mapping[str, Any],
  known: dict[int, frozenset[str]],
) -> frozenset[str]:
  if keyword == "type":
    return _named(value)
  if keyword == "const":
    return _type_of(value)
  if keyword == "$ref":
    with contextlib.suppress(LookupError, TypeError):  # so it says nothing
      return _types(target_of(value, root), root, known)
  if not isinstance(value, list):
    return TYPES
  if keyword == "enum":
    return _joined(map(_type_of, value))
  if keyword in _UNIONS:
    return _joined(_types(each, root, known) for each in value)
  if keyword == "allOf":
    each = [_types(schema, root, known) for schema in value]
    return TYPES.intersection(*each)
  return TYPES


def _joined(sets: Iterator[frozenset[str]]) -> frozenset[str]:
  return frozenset().union(*sets)


def _named(types: Any) -> frozenset[str]:
  named = {
    str(kind) for kind in (types if isinstance(types, list) else [types])
  }
  more = {"integer"} if "number" in named else set()
  return frozenset(named | more) if named <= TYPES else TYPES


def _type_of(value: Any) -> frozenset[str]:
  names = {str: "string", bool: "boolean", int: "integer", float: "number"}
  others = {list: "array", dict: "object", type(None): "null"}
  return frozenset({(names | others)[type(value)]})


def text_rule(
  schema: Mapping[str, Any], root: Mapping[str, Any], *, without: str
) -> str:
  """Returns the terminal of texts by a schema that `call_schema` has rewritten.

  `root` has its definitions; the text `without` is in none of them. Raises
  `ConfigError` for what no terminal says.
  """
  leaves = [*_leaves(schema, root)]
  texts = [_text(leaf) for leaf in leaves if leaf != {"type": "null"}]
  rule = f"({' | '.join(texts)})"
  if without:
    rule += f" & ~/(.|\\n)*{_escaped(without)}(.|\\n)*/"
  if {"type": "null"} in leaves:
    names = " | ".join(map(json.dumps, NULLS))
    rule = f"(({rule} & ~{_NULL_TEXT}) | {names})"
  return rule


def _escaped(text: str) -> str:
  return re.escape(text).replace("/", r"\/")


def _leaves(
  schema: Mapping[str, Any], root: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
  """Yields schemas of one type each, that a value keeps to one of."""
  if "$ref" in schema:
    yield from _leaves(target_of(schema["$ref"], root), root)
  elif "anyOf" in schema:
    for branch in schema["anyOf"]:
      yield from _leaves(branch, root)
  elif "enum" in schema:
    texts = [value for value in schema["enum"] if value is not None]
    yield from [{"enum": texts}] if texts else []
    yield from [{"type": "null"}] if None in schema["enum"] else []
  elif schema.get("type") == ["string", "null"] or schema.get("type") == [
    "null",
    "string",
  ]:
    yield {**schema, "type": "string"}
    yield {"type": "null"}
  else:
    yield schema


def _text(leaf: Mapping[str, Any]) -> str:
  if "enum" in leaf:
    return f"({' | '.join(json.dumps(text) for text in leaf['enum'])})"
  bounds = ("minLength", "maxLength")
  if further := leaf.keys() - {"type", *bounds}:
    raise ConfigError(
      f"no grammar keeps to {', '.join(sorted(further))} of a text without "
      f"quotes, {shortened(json.dumps(leaf))}: say it in the description"
    )
  if not leaf.keys() & set(bounds):
    return ANY_TEXT
  least, most = (leaf.get(bound, "") for bound in bounds)
  return rf"/(.|\n){{{least or 0},{most}}}/"
