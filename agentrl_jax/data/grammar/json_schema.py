"""Checks values by JSON schemas of draft 2020-12, within bounds of cost.

A schema is not trusted: an environment's author may have it from another
server. So nothing is retrieved: a `$ref` stays within its schema. Patterns run
on RE2, in time linear in the text. The cost of a value is bounded by the number
of references that are followed to check it. What else a schema says, `format`
included, is shown to the policy and not checked: a right call is never wrong
for a keyword that is not known here.
"""

import contextvars
import functools
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Set
from fractions import Fraction
from typing import Any

import jsonschema
import jsonschema_specifications
import re2
import referencing
from jsonschema.exceptions import ValidationError

MAX_DEPTH = 64  # of nested lists and objects, in schemas and in values
MAX_PATTERN = 1_000  # characters
MAX_REFERENCES = 10_000  # followed to check one value
_PATTERN_BYTES = 1 << 20  # of memory that a compiled pattern may take

# Keywords whose value is a schema, a list of schemas, and schemas by name.
ONE = frozenset(
  {
    "additionalProperties",
    "items",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
  }
)
SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset(
  {
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
  }
)
_PLAIN = frozenset(
  {
    "type",
    "enum",
    "const",
    "$ref",
    "required",
    "dependentRequired",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
  }
)
# Keywords that constrain no value, some of OpenAPI and of editors.
ANNOTATIONS = frozenset(
  {
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "format",
    "readOnly",
    "writeOnly",
    "$schema",
    "$comment",
    "discriminator",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "$id",
    "id",
    "$anchor",
    "example",
    "xml",
    "externalDocs",
    "enumNames",
    "markdownDescription",
    "errorMessage",
    "propertyOrdering",
  }
)
_NOT_READ = ANNOTATIONS | {"nullable", "additionalItems"}
# Keywords that mean more where another one is not known.
_BESIDE = {
  **dict.fromkeys(("properties", "patternProperties"), "additionalProperties"),
  "prefixItems": "items",
}


class TooManyReferences(Exception):
  """Checking a value followed more than `MAX_REFERENCES` references."""


def validator_of(schema: Mapping[str, Any]) -> jsonschema.protocols.Validator:
  """Compiles what of a schema can be checked, see `checkable`."""
  known, is_all = checkable(schema)
  compiled: jsonschema.protocols.Validator = (
    _Validator if is_all else _LenientValidator
  )(known, registry=referencing.Registry())
  return compiled


def errors_of(
  validator: jsonschema.protocols.Validator, value: Any
) -> Iterator[ValidationError]:
  """Yields the errors of a value.

  Raises `TooManyReferences`; a value nested deeper than `MAX_DEPTH` may raise
  `RecursionError`.
  """
  token = _left.set(iter(range(MAX_REFERENCES)))
  try:
    yield from validator.iter_errors(value)
  finally:
    _left.reset(token)


def checkable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
  """Returns what of a schema is checked here, and whether that is all of it.

  Servers write schemas of other drafts, with keywords of OpenAPI, and patterns
  that take more than linear time. What is not known here constrains nothing:
  whoever takes the value checks it.
  """
  reading = _Reading()
  known = reading.schema(schema)
  schemas = [*subschemas(known)]
  ids = {*map(id, schemas)}
  referring = [inner for inner in schemas if "$ref" in inner]
  lost = [i for i in referring if not _is_schema(i["$ref"], known, ids)]
  for inner in lost:
    del inner["$ref"]
  return known, reading.is_all and not lost


def _is_schema(reference: Any, root: Mapping[str, Any], ids: Set[int]) -> bool:
  try:
    target = target_of(reference, root)
  except (LookupError, TypeError):
    return False
  return isinstance(target, bool) or id(target) in ids


_LOST = object()  # in place of a value that is not checked


class _Reading:
  """Copies the parts of a schema that can be checked."""

  is_all = True

  def schema(self, given: Any) -> Any:
    """Returns a copy in draft 2020-12; `{}` in place of what is no schema."""
    if isinstance(given, bool):
      return given
    if not isinstance(given, Mapping):
      self.is_all = False
      return {}
    if isinstance(given.get("items"), list):  # in drafts before 2020-12
      rest = {"items": given.get("additionalItems", True)}
      given = {**given, "prefixItems": given["items"], **rest}
    read = {
      key: self._value(key, value)
      for key, value in given.items()
      if key not in _NOT_READ and not key.startswith("x-")
    }
    lost = {key for key, value in read.items() if value is _LOST}
    self.is_all &= not lost
    for key, beside in _BESIDE.items():
      lost |= {beside} if key in lost else set()
    known = {key: value for key, value in read.items() if key not in lost}
    if given.get("nullable") is not True:
      return known
    return {"anyOf": [known, {"type": "null"}]}

  def _value(self, keyword: str, value: Any) -> Any:
    if keyword in ONE:
      return self.schema(value)
    if keyword in SEVERAL and isinstance(value, list) and value:
      return [self.schema(inner) for inner in value]
    if keyword in NAMED and isinstance(value, Mapping):
      if keyword == "patternProperties" and not all(map(_runs, value)):
        return _LOST
      return {name: self.schema(inner) for name, inner in value.items()}
    if keyword not in _PLAIN or not _KEYWORDS.is_valid({keyword: value}):
      return _LOST
    return _LOST if keyword == "pattern" and not _runs(value) else value


def _runs(pattern: str) -> bool:
  return compiled_pattern(pattern) is not None


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
  """Yields all object schemas within a schema, itself first.

  Keywords with values of a wrong type are skipped.
  """
  if not isinstance(schema, dict):
    return
  yield schema
  for keyword, value in schema.items():
    inner: Iterable[Any] = ()
    if keyword in ONE:
      inner = [value]
    elif keyword in SEVERAL and isinstance(value, list):
      inner = value
    elif keyword in NAMED and isinstance(value, dict):
      inner = value.values()
    for each in inner:
      yield from subschemas(each)


def target_of(reference: Any, root: Mapping[str, Any]) -> Any:
  """Returns a `$ref`'s target; nothing is retrieved.

  Raises LookupError or TypeError if it is not within the root.
  """
  if not isinstance(reference, str) or not re.fullmatch("#(/.*)?", reference):
    raise LookupError(reference)
  target: Any = root
  for part in urllib.parse.unquote(reference).split("/")[1:]:
    name = part.replace("~1", "/").replace("~0", "~")
    is_number = name.isascii() and name.isdigit() and len(name) < 9
    target = target[
      int(name) if isinstance(target, list) and is_number else name
    ]
  return target


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
  """Compiles a pattern with RE2; None if RE2 cannot run it, or not at once."""
  if len(pattern) > MAX_PATTERN:
    return None
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
  except re2.error:
    return None


_left: contextvars.ContextVar[Iterator[int]] = contextvars.ContextVar(
  "references that may still be followed"
)


def _ref(
  validator: Any, reference: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  left = _left.get(None)
  if left is not None and next(left, None) is None:
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


def _multiple_of(
  validator: Any, step: float, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  """Compares numbers as they are written: 0.3 is three times 0.1."""
  if validator.is_type(instance, "number"):
    quotient = Fraction(str(instance)) / Fraction(str(step))
    if quotient.denominator != 1:
      yield ValidationError(f"it is no multiple of {step}")


def _unique_items(
  validator: Any, is_wanted: bool, instance: Any, schema: Any
) -> Iterator[ValidationError]:
  """Compares by hash, as a policy's list may have thousands of items."""
  if (
    is_wanted
    and isinstance(instance, list)
    and len({*map(_hashable, instance)}) < len(instance)
  ):
    yield ValidationError("an item is repeated")


def _hashable(value: Any) -> Any:
  """Returns a value that equals those of equal JSON; true is not 1."""
  if isinstance(value, list):
    return tuple(map(_hashable, value))
  if isinstance(value, dict):
    return frozenset((k, _hashable(inner)) for k, inner in value.items())
  return (bool, value) if isinstance(value, bool) else value


def _found(pattern: str, text: str) -> bool:
  return compiled_pattern(pattern).search(text) is not None


def _is_integer(checker: Any, value: Any) -> bool:
  """Accepts a float without a fraction, as JSON Schema does, in 64 bits."""
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
    "multipleOf": _multiple_of,
    "uniqueItems": _unique_items,
  },
  type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", _is_integer
  ),
)
# Of a schema that is not known whole. Its branches may take more than they
# should, so that a value that fits several of them, or one that is excluded,
# need not be wrong.
_LenientValidator = jsonschema.validators.extend(
  _Validator,
  {
    "oneOf": _PARENT["anyOf"],
    **dict.fromkeys(("not", "if", "contains"), lambda *_: ()),
  },
)
_KEYWORDS = _Validator(
  jsonschema_specifications.REGISTRY.contents(
    "https://json-schema.org/draft/2020-12/meta/validation"
  ),
  registry=jsonschema_specifications.REGISTRY,
)
