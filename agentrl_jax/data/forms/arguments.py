"""Arguments of calls, as they were before a table of rows had them.

Arrow gives every struct of a column the fields of all rows, null where a row
has none, and pandas makes floats of whole numbers there. A tool's own schema
tells most of these from what a row was written with.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_jax.data.grammar.json_schema import target_of
from agentrl_jax.data.grammar.text_schema import types_in
from agentrl_jax.errors import ConfigError


def own_arguments(
  given: Any, schema: Any, root: Any, *, is_padded: bool
) -> Any:
  """Returns arguments without nulls that the tool's schema has no place for.

  Args:
    given: the arguments, or a value in them.
    schema: its schema; {} of a tool that is not listed.
    root: the schema of all arguments, for references.
    is_padded: whether they may have nulls that were not written.

  Raises ValueError for a null that may have been written or not.
  """
  applied = [*_applied(schema, root, set())]
  if isinstance(given, list):
    items = {"anyOf": [each["items"] for each in applied if "items" in each]}
    return [own_arguments(x, items, root, is_padded=is_padded) for x in given]
  if isinstance(given, float) and given.is_integer():
    types = types_in(schema, root)
    return int(given) if {"integer", "number"} & types == {"integer"} else given
  if not isinstance(given, Mapping):
    return given
  kept = {}
  for name, value in given.items():
    own = {"anyOf": [*_named(name, applied)]}
    if value is not None and value == value:  # NaN is pandas' null
      kept[name] = own_arguments(value, own, root, is_padded=is_padded)
      continue
    is_said = own["anyOf"] or any("properties" in each for each in applied)
    if is_said and "null" not in types_in(own, root):
      continue
    if is_padded and not any(name in s.get("required", ()) for s in applied):
      raise ValueError(
        f"the argument {name!r:.80} is null, by the writer's will or since "
        "another row has it: write arguments as JSON text"
      )
    kept[name] = None
  return kept


def _named(name: str, applied: list[Mapping[str, Any]]) -> Iterator[Any]:
  """Yields the schemas of an object's property."""
  for schema in applied:
    if name in schema.get("properties", ()):
      yield schema["properties"][name]
    elif isinstance(schema.get("additionalProperties"), Mapping):
      yield schema["additionalProperties"]


def _applied(
  schema: Any, root: Any, seen: set[int]
) -> Iterator[Mapping[str, Any]]:
  """Yields a schema, and those that it has for the same value."""
  if not isinstance(schema, Mapping) or id(schema) in seen:
    return
  seen.add(id(schema))
  yield schema
  for keyword in ("anyOf", "oneOf", "allOf"):
    for each in schema.get(keyword, ()):
      yield from _applied(each, root, seen)
  with contextlib.suppress(ConfigError):  # names nothing, so says nothing
    if "$ref" in schema:
      yield from _applied(target_of(schema["$ref"], root, ""), root, seen)
