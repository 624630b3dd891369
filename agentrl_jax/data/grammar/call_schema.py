"""Copies JSON schemas without what llguidance takes long to compile.

llguidance bounds the work of most keywords, but not of all: it makes every
combination of `allOf`, of unions and of what stands beside a `$ref`, and a
large `multipleOf` or an object of thousands of properties takes minutes. An
`exact` copy refuses these with `ConfigError`. Any other leaves them out:
whoever takes the value checks it by the whole schema.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from agentrl_jax.data.grammar import json_schema, text_schema
from agentrl_jax.errors import ConfigError

MAX_SCHEMAS = 5_000  # within one grammar
MAX_PROPERTIES = 500  # of one object
MAX_MULTIPLE = 1_000  # steps of `multipleOf`, in units of its last digit

_JOINING = ("$ref", "allOf", "anyOf", "oneOf")
_ALONE = frozenset({"type", "$defs", "definitions"})  # beside a joining keyword
_READ_ONLY = json_schema.ANNOTATIONS - {"format"}


def compilable(
  schema: Mapping[str, Any],
  *,
  exact: bool,
  closed: bool,
  max_schemas: int = MAX_SCHEMAS,
) -> dict[str, Any]:
  """Copies a schema, as described above.

  In a `closed` copy an object has the properties that its schema lists, and no
  others, unless the schema allows them. Raises `ConfigError` for more than
  `max_schemas` schemas within this one.
  """
  copying = _Copying(schema, exact, closed, max_schemas)
  return dict(copying.value({**schema}))


class _Copying:
  def __init__(
    self, root: Mapping[str, Any], exact: bool, closed: bool, max_schemas: int
  ):
    self._root, self._exact, self._closed = root, exact, closed
    self._num_left = self._max_schemas = max_schemas

  def value(self, schema: Any) -> Any:
    """Copies the schema of one value."""
    if not isinstance(schema, Mapping):
      return schema  # true, false, or what llguidance refuses
    self._num_left -= 1
    if self._num_left < 0:
      raise ConfigError(
        f"the schema has more than {self._max_schemas:,} schemas within it, "
        "which take too long to compile: describe less"
      )
    known = {
      key: value
      for key, value in schema.items()
      if key not in _READ_ONLY and not key.startswith("x-")
    }
    if known.pop("nullable", False) is True:
      return self.value({"anyOf": [known, {"type": "null"}]})
    match known:
      case {"allOf": [only]} if len(known) == 1:
        return self.value(only)
    if costly := _costly(known):
      known = self._without(costly, known)
    copied: dict[str, Any] = {}
    for key, value in known.items():
      copied |= self._keyword(key, value, known)
    if self._closed and "properties" in known and not costly:
      copied.setdefault("additionalProperties", False)
    return copied

  def _without(
    self, costly: Mapping[str, str], known: dict[str, Any]
  ) -> dict[str, Any]:
    if self._exact:
      (keyword, why), *_ = costly.items()
      shown = json_schema.shortened(str(known))
      raise ConfigError(f"no grammar keeps to {keyword} of {shown}: {why}")
    types = {"type": sorted(text_schema.types_in(known, self._root))}
    return {k: v for k, v in (types | known).items() if k not in costly}

  def _keyword(
    self, key: str, value: Any, beside: Mapping[str, Any]
  ) -> dict[str, Any]:
    if key in ("anyOf", "oneOf") and isinstance(value, list):
      return {"anyOf": [self.value(_typed(each, beside)) for each in value]}
    if key == "type" and beside.keys() & {*_JOINING}:
      return {}  # of the branches, or of the reference's target
    if key == "const" and "enum" not in beside:
      return {"enum": [value]}
    if key in json_schema.ONE:
      return {key: self.value(value)}
    if key in json_schema.SEVERAL and isinstance(value, list):
      return {key: [self.value(inner) for inner in value]}
    if key in json_schema.NAMED and isinstance(value, Mapping):
      return {key: {name: self.value(inner) for name, inner in value.items()}}
    return {key: value}


def _typed(branch: Any, beside: Mapping[str, Any]) -> Any:
  """Returns a union's branch with the type that stands beside the union."""
  if not isinstance(branch, Mapping) or "$ref" in branch:
    return branch
  return {key: beside[key] for key in ("type",) if key in beside} | {**branch}


def _costly(schema: Mapping[str, Any]) -> dict[str, str]:
  """Returns the keywords that take long to compile, each with the reason."""
  costly: dict[str, str] = {}
  joining = [key for key in _JOINING if key in schema]
  if "allOf" in joining or joining and len(schema.keys() - _ALONE) > 1:
    why = "it is combined with other schemas; write the result out"
    costly |= dict.fromkeys(joining, why)
  properties = schema.get("properties")
  if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
    why = f"more than {MAX_PROPERTIES} properties take too long to compile"
    costly |= dict.fromkeys(("properties", "required"), why)
  if not _is_small(schema.get("multipleOf", 1)):
    costly["multipleOf"] = (
      f"a step has at most two decimals, and {MAX_MULTIPLE} units of the last; "
      "say it in the description"
    )
  return costly


def _is_small(step: Any) -> bool:
  if isinstance(step, bool) or not isinstance(step, int | float):
    return True  # llguidance refuses it
  if not abs(step) <= MAX_MULTIPLE:
    return False
  number = Fraction(str(step))
  units = number if number.denominator == 1 else 100 * number
  return units.denominator == 1 and units <= MAX_MULTIPLE
