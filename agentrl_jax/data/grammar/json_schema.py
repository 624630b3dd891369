"""Checks values by JSON schemas of draft 2020-12, within bounds of cost.

A schema is not trusted: an environment's author may have it from another
server. So nothing is retrieved: a `$ref` stays within its schema. Patterns run
on RE2, in time linear in the text. The cost of a value is bounded by the number
of references that are followed to check it. `format` is an annotation, as in
the draft, and is not checked.
"""

import contextvars
import functools
import json
import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Set
from fractions import Fraction
from typing import Any

import jsonschema
import jsonschema_specifications
import re2
import referencing
from jsonschema.exceptions import ValidationError, best_match

from agentrl_jax.errors import ConfigError

MAX_NODES = 20_000  # values in a schema, of all kinds
MAX_DEPTH = 64  # of nested lists and objects, in schemas and in values
MAX_PATTERN = 1_000  # characters
MAX_REFERENCES = 10_000  # followed to check one value
_PATTERN_BYTES = 1 << 20  # of memory that a compiled pattern may take

# Keywords whose value is a schema, a list of schemas, and schemas by name.
ONE = frozenset(
  {
    *("additionalProperties", "items", "contains", "propertyNames"),
    *("not", "if", "then", "else"),
  }
)
SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset(
  {
    *("properties", "patternProperties", "dependentSchemas"),
    *("$defs", "definitions"),
  }
)
# Keywords whose schemas apply to the value itself, not to a part of it.
IN_PLACE = frozenset(
  {
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("dependentSchemas",),
  }
)
_PLAIN = frozenset(
  {
    *("type", "enum", "const", "$ref", "required", "dependentRequired"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
    *("minProperties", "maxProperties"),
  }
)
# Keywords that constrain no value. `discriminator` is OpenAPI's, and pydantic
# writes it.
ANNOTATIONS = frozenset(
  {
    *("title", "description", "default", "examples", "deprecated", "format"),
    *("readOnly", "writeOnly", "$schema", "$comment", "discriminator"),
    *("contentEncoding", "contentMediaType"),
  }
)
CHECKED = ONE | SEVERAL | NAMED | _PLAIN


class TooManyReferences(Exception):
  """Checking a value followed more than `MAX_REFERENCES` references."""


def validator_of(
  schema: Mapping[str, Any], where: str
) -> jsonschema.protocols.Validator:
  """Compiles a schema. Raises `ConfigError` with a message from `where` on."""
  require_checkable(schema, where)
  compiled: jsonschema.protocols.Validator = _Validator(
    schema, registry=referencing.Registry()
  )
  return compiled


def errors_of(
  validator: jsonschema.protocols.Validator, value: Any
) -> Iterator[ValidationError]:
  """Yields the errors of a value.

  Raises `TooManyReferences`; a value nested deeper than `MAX_DEPTH` may raise
  `RecursionError`.
  """
  token = _followed.set([0])
  try:
    yield from validator.iter_errors(value)
  finally:
    _followed.reset(token)


def require_checkable(schema: Mapping[str, Any], where: str) -> None:
  """Raises `ConfigError` for a schema that is invalid or out of bounds."""
  _require_small(schema, where)
  error = best_match(_META.iter_errors(schema))
  if error is not None:
    at = "/".join(["#", *map(str, error.absolute_path)])
    raise ConfigError(
      f"{where} is no JSON schema of draft 2020-12: at {at}, "
      f"{shortened(error.message, 200)}"
    )
  schemas = [*subschemas(schema)]
  ids = {id(inner) for _, inner in schemas}
  for path, inner in schemas:
    _require_known(inner, f"{where}, at {path}")
    _require_local(inner, schema, ids, f"{where}, at {path}")
  require_no_loop(schema, where)


def subschemas(
  schema: Any, path: str = "#"
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields all object schemas within a schema, itself first, with their paths.

  Keywords with values of a wrong type are skipped.
  """
  if not isinstance(schema, Mapping):
    return
  yield path, schema
  for keyword, name, inner in children(schema):
    at = f"{path}/{keyword}" if name is None else f"{path}/{keyword}/{name}"
    yield from subschemas(inner, at)


def children(
  schema: Mapping[str, Any],
) -> Iterator[tuple[str, str | int | None, Any]]:
  """Yields the direct subschemas: keyword, name or number, schema."""
  for keyword, value in schema.items():
    if keyword in ONE:
      yield keyword, None, value
    elif keyword in SEVERAL and isinstance(value, list | tuple):
      for number, inner in enumerate(value):
        yield keyword, number, inner
    elif keyword in NAMED and isinstance(value, Mapping):
      for name, inner in value.items():
        yield keyword, name, inner


def target_of(reference: Any, root: Mapping[str, Any], where: str) -> Any:
  """Returns a `$ref`'s target. Raises `ConfigError` if it is not within."""
  if not isinstance(reference, str) or not re.fullmatch("#(/.*)?", reference):
    raise ConfigError(
      f"{where}: $ref {shortened(json.dumps(reference))} is not within this "
      "schema, and nothing is retrieved: copy what it names to '$defs', and "
      "refer to it as '#/$defs/NAME'"
    )
  target: Any = root
  for part in urllib.parse.unquote(reference).split("/")[1:]:
    name = part.replace("~1", "/").replace("~0", "~")
    is_number = name.isascii() and name.isdigit() and len(name) < 9
    try:
      target = target[
        int(name) if isinstance(target, list) and is_number else name
      ]
    except (LookupError, TypeError) as error:
      raise ConfigError(
        f"{where}: $ref {shortened(json.dumps(reference))} names nothing in "
        "this schema: add it to '$defs', or correct the name"
      ) from error
  return target


def require_no_loop(root: Mapping[str, Any], where: str) -> None:
  """Refuses reference loops that never descend into a part of the value."""
  done: set[int] = set()
  for _, inner in subschemas(root):
    _follow(inner, root, where, done, [])


def _follow(
  schema: Any,
  root: Mapping[str, Any],
  where: str,
  done: set[int],
  above: list[int],
) -> None:
  if not isinstance(schema, Mapping) or id(schema) in done:
    return
  if id(schema) in above or len(above) > MAX_DEPTH:
    raise ConfigError(
      f"{where}: a $ref comes back to where it stands, or goes on through more "
      f"than {MAX_DEPTH} others, before a part of the value is looked at: let "
      "'properties' or 'items' stand between"
    )
  above.append(id(schema))
  if "$ref" in schema:
    _follow(target_of(schema["$ref"], root, where), root, where, done, above)
  for keyword, _, inner in children(schema):
    if keyword in IN_PLACE:
      _follow(inner, root, where, done, above)
  above.pop()
  done.add(id(schema))


def depth_of(value: Any) -> int:
  """Returns the depth of nested lists and objects; 0 for a plain value."""
  depth, level = 0, [value]
  while level := [
    inner
    for outer in level
    if isinstance(outer, Mapping | list)
    for inner in (outer.values() if isinstance(outer, Mapping) else outer)
  ]:
    depth += 1
    if depth > MAX_DEPTH:
      break
  return depth


def shortened(text: str, limit: int = 80) -> str:
  """Returns the text, cut to `limit` characters and three dots."""
  return text if len(text) <= limit else text[:limit] + "..."


@functools.lru_cache(1024)
def compiled_pattern(pattern: str) -> Any:
  """Compiles a pattern with RE2. Raises `ConfigError` if RE2 cannot run it."""
  if len(pattern) > MAX_PATTERN:
    raise ConfigError(
      f"the pattern {shortened(json.dumps(pattern))} has {len(pattern)} "
      f"characters, and {MAX_PATTERN} are allowed: make it shorter"
    )
  options = re2.Options()
  options.max_mem, options.log_errors = _PATTERN_BYTES, False
  # Code points in the syntax of ECMA-262, converted to that of RE2.
  numbered = re.sub(
    r"(\\\\)|\\u([0-9A-Fa-f]{4})",
    lambda match: match[1] or rf"\x{{{match[2]}}}",
    pattern,
  )
  try:
    return re2.compile(numbered, options)
  except re2.error as error:
    reason = error.args[0] if error.args else error
    reason = reason.decode() if isinstance(reason, bytes) else str(reason)
    raise ConfigError(
      f"the pattern {shortened(json.dumps(pattern))} cannot be checked: "
      f"{shortened(reason)}. Patterns run on RE2, in linear time: no "
      "look-around, no back-references, and counts of moderate size"
    ) from error


def _require_small(schema: Any, where: str) -> None:
  num_nodes, depth, level = 0, 0, [schema]
  while level:
    num_nodes += len(level)
    if num_nodes > MAX_NODES or depth > MAX_DEPTH:
      raise ConfigError(
        f"{where} has more than {MAX_NODES:,} values, or they are nested "
        f"deeper than {MAX_DEPTH}: describe less, or refer to '$defs'"
      )
    below: list[Any] = []
    for node in level:
      _require_finite(node, where)
      if isinstance(node, Mapping):
        below.extend(node.values())
      elif isinstance(node, list | tuple):
        below.extend(node)
    level, depth = below, depth + 1


def _require_finite(node: Any, where: str) -> None:
  largest = sys.float_info.max
  if isinstance(node, int | float) and not -largest <= node <= largest:
    raise ConfigError(
      f"{where} has a number that no 64 bits hold: give a smaller one, or "
      "leave the bound out"
    )


def _require_known(schema: Mapping[str, Any], where: str) -> None:
  unknown = sorted(
    name
    for name in schema.keys() - CHECKED - ANNOTATIONS
    if not str(name).startswith("x-")
  )
  if unknown:
    raise ConfigError(
      f"{where}: schema keywords {', '.join(map(str, unknown))} are not "
      f"checked; known are {', '.join(sorted(CHECKED))}"
    )
  patterns = [schema["pattern"]] if "pattern" in schema else []
  for pattern in [*patterns, *schema.get("patternProperties", ())]:
    try:
      compiled_pattern(pattern)
    except ConfigError as error:
      raise ConfigError(f"{where}: {error}") from error


def _require_local(
  schema: Mapping[str, Any],
  root: Mapping[str, Any],
  ids: Set[int],
  where: str,
) -> None:
  if "$ref" not in schema:
    return
  target = target_of(schema["$ref"], root, where)
  # Only values in the place of a schema have been checked.
  if not isinstance(target, bool) and id(target) not in ids:
    raise ConfigError(
      f"{where}: $ref {shortened(json.dumps(schema['$ref']))} names what is no "
      "schema: put the schema into '$defs'"
    )


_followed: contextvars.ContextVar[list[int]] = contextvars.ContextVar(
  "references followed"
)


def _ref(
  validator: Any, reference: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  count = _followed.get(None)
  if count is not None:
    count[0] += 1
    if count[0] > MAX_REFERENCES:
      raise TooManyReferences
  yield from _PARENT["$ref"](validator, reference, instance, schema)


def _pattern(
  validator: Any, pattern: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  if isinstance(instance, str) and not _found(pattern, instance):
    yield ValidationError(f"it does not match {pattern}")


def _pattern_properties(
  validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
  if not isinstance(instance, dict):
    return
  for pattern, inner in patterns.items():
    for name, value in instance.items():
      if _found(pattern, name):
        yield from validator.descend(
          value, inner, path=name, schema_path=pattern
        )


def _additional_properties(
  validator: Any, rules: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
  """Yields one error for each name, with the name as its message."""
  if not isinstance(instance, dict):
    return
  listed = schema.get("properties", {})
  patterns = schema.get("patternProperties", ())
  for name, value in instance.items():
    if name in listed or any(_found(p, name) for p in patterns):
      continue
    if rules is False:
      yield ValidationError(name)
    else:
      yield from validator.descend(value, rules, path=name)


def _unique_items(
  validator: Any, wanted: bool, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  """Compares items as canonical texts, in time linear in the list."""
  if wanted and isinstance(instance, list):
    texts = {json.dumps(_plain(item), sort_keys=True) for item in instance}
    if len(texts) < len(instance):
      yield ValidationError("an item stands in it twice")


def _multiple_of(
  validator: Any, step: float, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  """Compares numbers as they are written: 0.3 is three times 0.1."""
  if validator.is_type(instance, "number"):
    quotient = Fraction(str(instance)) / Fraction(str(step))
    if quotient.denominator != 1:
      yield ValidationError(f"it is no multiple of {step}")


def _plain(value: Any) -> Any:
  """Returns the value with integral floats as integers: 1.0 is 1."""
  if isinstance(value, dict):
    return {name: _plain(inner) for name, inner in value.items()}
  if isinstance(value, list):
    return [_plain(inner) for inner in value]
  if isinstance(value, float) and value.is_integer():
    return int(value)
  return value


def _found(pattern: str, text: str) -> bool:
  return compiled_pattern(pattern).search(text) is not None


def _is_integer(checker: Any, value: Any) -> bool:
  """Accepts a float without a fraction, as JSON Schema does."""
  if isinstance(value, float):
    return value.is_integer() and abs(value) < 2**63
  return isinstance(value, int) and not isinstance(value, bool)


_PARENT = jsonschema.Draft202012Validator.VALIDATORS
_Validator = jsonschema.validators.extend(
  jsonschema.Draft202012Validator,
  {
    "$ref": _ref,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
  },
  type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", _is_integer
  ),
)
_META = _Validator(
  jsonschema.Draft202012Validator.META_SCHEMA,
  registry=jsonschema_specifications.REGISTRY,
)
