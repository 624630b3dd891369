"""Rewrites tool schemas so that a grammar enforces them exactly.

llguidance compiles a JSON schema to a grammar, which allows some invalid
values: keys that a schema does not list may come twice. The rewritten schema
allows a subset of the values of the given one, and llguidance enforces that
subset, but for exclusive bounds, which it takes for inclusive ones in some
places; whoever takes the call checks them:

- an object has the properties that its schema lists, and no others;
- unions and references are followed, wherever they are;
- `allOf`, and keywords beside a union or a reference, are merged into one
  schema, because llguidance joins objects by rules of its own;
- `oneOf` is accepted if its branches exclude each other, by type or a constant.

A schema that cannot be rewritten raises `ConfigError`, with argument and
keyword; where it need not be exact, any JSON of the types that it names may
stand in such a place.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_jax.data.grammar import json_schema, text_schema
from agentrl_jax.errors import ConfigError

MAX_SCHEMAS = 10_000  # visited to rewrite one schema, repeats counted
MAX_BRANCHES = 256  # of one union

_DEFINITIONS = frozenset({"$defs", "definitions"})
_UNIONS = ("anyOf", "oneOf")
_APPLICATORS = ("$ref", "allOf", *_UNIONS)
# Other keywords that a grammar enforces.
_ENFORCED = frozenset(
  {
    "type",
    "enum",
    "const",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
  }
)
# Keywords whose values are iterated here; llguidance checks the others.
_KINDS: Mapping[str, tuple[type, str]] = {
  "properties": (dict, "give an object"),
  "required": (list, "give a list"),
  "enum": (list, "give a list"),
  "prefixItems": (list, "give a list"),
}
_READ_ONLY = json_schema.ANNOTATIONS - {"format"}
# Types implied by keywords, for schemas without `type`.
_TYPE_OF = {
  **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
  **dict.fromkeys(("minProperties", "maxProperties"), "object"),
  **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
  **dict.fromkeys(("pattern", "minLength", "maxLength", "format"), "string"),
  **dict.fromkeys(("minimum", "maximum", "multipleOf"), "number"),
  **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "number"),
}
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# Combines the values of a keyword in two schemas that must both hold.
_STRICTER: Mapping[str, Callable[[Any, Any], Any]] = {
  **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength"), max),
  **dict.fromkeys(("minItems", "minProperties"), max),
  **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength"), min),
  **dict.fromkeys(("maxItems", "maxProperties"), min),
}


def rewritten(
  schema: Mapping[str, Any], *, exact: bool = True
) -> dict[str, Any]:
  """Rewrites a schema of JSON objects, as described above."""
  try:
    return _Rewriting(schema, exact).all()
  except RecursionError as error:
    raise ConfigError(
      "the schema is nested too deeply: describe less of it"
    ) from error


class _Rewriting:
  """The rewriting of one schema, whose references are to itself."""

  def __init__(self, root: Mapping[str, Any], exact: bool):
    self._root, self._exact = root, exact
    self._definitions: dict[str, Any] = {}
    self._names: dict[int, str] = {}  # of definitions, by the target's identity
    self._num_visited = 0

  def all(self) -> dict[str, Any]:
    """Rewrites the root with the definitions that it refers to."""
    json_schema.require_no_loop(self._root, "the schema")
    root = self.value(self._root, "")
    if root is False:
      raise _refused("", "no value keeps to the schema", "loosen it")
    if self._definitions:
      root = {**root, "$defs": self._definitions}
    return dict(root)

  def value(self, schema: Any, at: str) -> Any:
    """Rewrites the schema of one value, whose path is `at`."""
    try:
      return self._value(schema, at)
    except ConfigError:
      if self._exact:
        raise
      kinds = text_schema.types_in(schema, self._root)
      return {"type": sorted(kinds)} if kinds < text_schema.TYPES else {}

  def _value(self, schema: Any, at: str) -> Any:
    self._count(at)
    if schema is False:
      return False
    bare = self._bare(schema, at)
    applied = [key for key in _APPLICATORS if key in bare]
    if not applied:
      return self._plain(bare, at)
    if len(bare) == 1:
      (key,) = applied
      if key == "$ref":
        return {"$ref": f"#/$defs/{self._named(bare[key], at)}"}
      if key in _UNIONS:
        return self._union(key, self._list(bare, key, at), at)
    return self._merged(bare, at)

  def _count(self, at: str) -> None:
    self._num_visited += 1
    if self._num_visited > MAX_SCHEMAS:
      raise _refused(
        at, f"it takes more than {MAX_SCHEMAS:,} schemas", "describe less"
      )

  def _bare(self, schema: Any, at: str) -> dict[str, Any]:
    """Returns a schema without annotations; refuses unknown keywords."""
    if schema is True:
      schema = {}
    if not isinstance(schema, Mapping):
      raise _refused(at, f"{_shown(schema)} is no schema", "give an object")
    bare = {
      key: value
      for key, value in schema.items()
      if key not in _READ_ONLY | _DEFINITIONS and not key.startswith("x-")
    }
    if bare.get("uniqueItems") is False:
      del bare["uniqueItems"]
    unknown = sorted(bare.keys() - _ENFORCED - {*_APPLICATORS})
    if unknown:
      raise _refused(
        at,
        f"no grammar keeps to {', '.join(unknown)}",
        "say it in the description",
      )
    for key, (kind, instead) in _KINDS.items():
      if not isinstance(bare.get(key, kind()), kind):
        raise _refused(at, f"{key} is {_shown(bare[key])}", instead)
    if not all(isinstance(name, str) for name in bare.get("required", [])):
      raise _refused(at, "required is of other than names", "give names alone")
    return bare

  def _list(self, schema: Mapping[str, Any], key: str, at: str) -> list[Any]:
    branches = schema[key]
    if not isinstance(branches, list) or not branches:
      raise _refused(
        at, f"{key} is {_shown(branches)}", "give a list of one schema or more"
      )
    return branches

  def _target(self, reference: Any, at: str) -> Any:
    return json_schema.target_of(reference, self._root, _place(at))

  def _named(self, reference: Any, at: str) -> str:
    """Returns the name of a reference's target among the definitions."""
    target = self._target(reference, at)
    name = self._names.get(id(target))
    if name is None:
      name = self._names[id(target)] = f"d{len(self._names)}"
      self._definitions[name] = self.value(target, at)
    return name

  # Unions.

  def _union(self, key: str, branches: Sequence[Any], at: str) -> Any:
    if len(branches) > MAX_BRANCHES:
      raise _refused(
        at,
        f"{key} has {len(branches)} branches",
        f"give {MAX_BRANCHES} at most",
      )
    if key == "oneOf" and len(branches) > 1:
      branches = self._apart(branches, at)
    values = [self.value(branch, at) for branch in branches]
    allowed = [value for value in values if value is not False]
    if len(allowed) == 1:
      return allowed[0]
    return {"anyOf": allowed} if allowed else False

  def _apart(self, branches: Sequence[Any], at: str) -> Sequence[Any]:
    """Returns branches that exclude each other; raises if that is not certain.

    Objects differ by a property with other constants in each. That property is
    required in the result: without it, a value might fit two branches.
    """
    seen: set[str] = set()
    objects: list[dict[str, Any]] = []
    others: list[Any] = []
    for branch in branches:
      plain = self._inlined(branch, at)
      kinds = {*_TYPES}  # all, unless the schema names its types
      if plain is not None and ("type" in plain or _listed(plain) is not None):
        kinds = {*_types(plain, at)}
      kinds = {"number" if kind == "integer" else kind for kind in kinds}
      if plain is not None and kinds == {"object"}:
        objects.append(plain)
        continue
      if seen & kinds:
        raise _overlap(at)
      seen |= kinds
      others.append(branch)
    if objects and "object" in seen:
      raise _overlap(at)
    if len(objects) < 2:
      return branches
    return [*self._tagged(objects, at), *others]

  def _tagged(
    self, objects: Sequence[dict[str, Any]], at: str
  ) -> Sequence[dict[str, Any]]:
    for name in objects[0].get("properties", {}):
      tags = [self._constants(branch, name, at) for branch in objects]
      texts = [{*map(_canonical, tag)} for tag in tags]
      pairs = itertools.combinations(texts, 2)
      if all(texts) and not any(left & right for left, right in pairs):
        return [
          {**branch, "required": _union_of(branch.get("required", []), [name])}
          for branch in objects
        ]
    raise _overlap(at)

  def _constants(
    self, branch: Mapping[str, Any], name: str, at: str
  ) -> Sequence[Any]:
    """Returns the values that a property may have, if they are listed."""
    rules = branch.get("properties", {}).get(name)
    if rules is None:
      return ()
    plain = self._inlined(rules, at) if isinstance(rules, Mapping) else None
    return _listed(plain) or () if plain is not None else ()

  # Merged schemas.

  def _inlined(self, schema: Any, at: str) -> dict[str, Any] | None:
    """Merges references and `allOf` into one schema; None if it has a union."""
    members, unions = self._members(schema, at)
    return None if unions else self._joined(members, at)

  def _members(
    self, schema: Any, at: str
  ) -> tuple[list[dict[str, Any]], list[tuple[str, list[Any]]]]:
    """Returns the plain schemas and the unions that a schema combines."""
    self._count(at)
    bare = self._bare(schema, at)
    members: list[dict[str, Any]] = []
    unions: list[tuple[str, list[Any]]] = []
    inner: list[Any] = []
    if "$ref" in bare:
      inner.append(self._target(bare.pop("$ref"), at))
    if "allOf" in bare:
      inner += self._list(bare, "allOf", at)
      del bare["allOf"]
    for key in _UNIONS:
      if key in bare:
        unions.append((key, self._list(bare, key, at)))
        del bare[key]
    members += [bare] if bare else []
    for part in inner:
      more, further = self._members(part, at)
      members += more
      unions += further
    return members, unions

  def _merged(self, schema: Any, at: str) -> Any:
    """Returns one schema without references and `allOf` beside keywords."""
    members, unions = self._members(schema, at)
    if not unions:
      return self._plain(self._joined(members, at), at)
    (key, branches), *others = unions
    rest = [*members, *({key: branches} for key, branches in others)]
    if not rest:
      return self._union(key, branches, at)
    return self._union(
      key, [{"allOf": [*rest, branch]} for branch in branches], at
    )

  def _joined(
    self, members: Sequence[Mapping[str, Any]], at: str
  ) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for member in members:
      joined = _both(joined, dict(member), at) if joined else dict(member)
    return joined

  # Schemas of one value.

  def _plain(self, schema: Mapping[str, Any], at: str) -> Any:
    """Rewrites a schema without unions and references."""
    listed = _listed(schema)
    if listed is not None:
      return self._of_constants(schema, listed, at)
    kinds = _types(schema, at)
    if not kinds:
      return False
    result: dict[str, Any] = {
      key: value for key, value in schema.items() if _TYPE_OF.get(key) is None
    }
    result["type"] = kinds[0] if len(kinds) == 1 else kinds
    if "object" in kinds:
      result |= self._object(schema, at)
    if "array" in kinds:
      result |= self._array(schema, at)
    if "string" in kinds:
      result |= _of_type(schema, "string")
    if {"number", "integer"} & {*kinds}:
      result |= _of_type(schema, "number")
    return result

  def _of_constants(
    self, schema: Mapping[str, Any], listed: Sequence[Any], at: str
  ) -> Any:
    rules = {k: v for k, v in schema.items() if k not in ("enum", "const")}
    if rules:
      if any("$ref" in inner for _, inner in json_schema.subschemas(rules)):
        raise _refused(at, "a $ref stands beside enum", "leave one of them out")
      validator = json_schema.validator_of(rules, f"{_place(at)}, beside enum")
      listed = [value for value in listed if validator.is_valid(value)]
    return {"enum": [*listed]} if listed else False

  def _object(self, schema: Mapping[str, Any], at: str) -> dict[str, Any]:
    others = schema.get("additionalProperties", False)
    if others is not False:
      raise _refused(
        at,
        "keys that additionalProperties allows could be written twice",
        "list them in properties, or set additionalProperties to false",
      )
    if "properties" not in schema and "additionalProperties" not in schema:
      raise _refused(
        at,
        "an object that lists no properties could have a key twice",
        "list its properties, or set additionalProperties to false",
      )
    listed = schema.get("properties", {})
    for name in schema.get("required", []):
      if name not in listed:
        raise _refused(
          at,
          f"required names {_shown(name)}, which properties does not list",
          "list it there",
        )
    properties = {
      name: self.value(rules, f"{at}.{name}" if at else name)
      for name, rules in listed.items()
    }
    result = _of_type(schema, "object")
    result |= {"properties": properties, "additionalProperties": False}
    return result

  def _array(self, schema: Mapping[str, Any], at: str) -> dict[str, Any]:
    result = _of_type(schema, "array")
    first = schema.get("prefixItems", [])
    if "prefixItems" in result:
      result["prefixItems"] = [
        self.value(rules, f"{at}[{n}]") for n, rules in enumerate(first)
      ]
    if "items" in result:
      result["items"] = self.value(result["items"], f"{at}[]")
    elif schema.get("maxItems") != 0:
      if not first:
        raise _refused(at, "a list without items is of anything", "give items")
      result["items"] = False  # further items could be any value
    return result


def _both(
  left: dict[str, Any], right: dict[str, Any], at: str
) -> dict[str, Any]:
  """Returns one plain schema that combines two."""
  positions = ("prefixItems" in left, "prefixItems" in right)
  if any(positions) and ("items" in left or "items" in right or all(positions)):
    raise _refused(at, "prefixItems is merged with items", "give one of them")
  merged = {**left, **right}
  for key in left.keys() & right.keys():
    merged[key] = _of_both(key, left[key], right[key], at)
  names = {**left.get("properties", {}), **right.get("properties", {})}
  for schema in (left, right):
    if schema.get("additionalProperties") is False:
      listed = schema.get("properties", {})
      names = {n: r if n in listed else False for n, r in names.items()}
  if "properties" in merged:
    shared = merged["properties"]
    merged["properties"] = {
      name: shared[name] if rules is not False else False
      for name, rules in names.items()
    }
  return merged


def _of_both(key: str, left: Any, right: Any, at: str) -> Any:
  if key in _STRICTER and _are_numbers(left, right):
    return _STRICTER[key](left, right)
  if key == "type":
    return _common(_as_list(left), _as_list(right))
  if key == "properties":
    shared = {n: {"allOf": [left[n], right[n]]} for n in left if n in right}
    return {**left, **right, **shared}
  if key == "items":
    return {"allOf": [left, right]}
  if key in ("required", "enum") and _are_lists(left, right):
    return _of_lists(key, left, right)
  if _canonical(left) == _canonical(right):
    return left
  if key == "additionalProperties" and False in (left, right):
    return False
  raise _refused(
    at,
    f"two schemas that are merged have {key} {_shown(left)} and "
    f"{_shown(right)}",
    "give one",
  )


def _of_lists(key: str, left: list[Any], right: list[Any]) -> list[Any]:
  if key == "required":
    return _union_of(left, right)
  allowed = {*map(_canonical, right)}
  return [value for value in left if _canonical(value) in allowed]


def _common(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
  """Returns the types in both lists; an integer is a number, too."""
  kinds = [kind for kind in left if kind in right]
  if "integer" not in kinds:
    is_integer = ("integer" in left and "number" in right) or (
      "integer" in right and "number" in left
    )
    kinds += ["integer"] if is_integer else []
  return kinds


def _types(schema: Mapping[str, Any], at: str) -> list[Any]:
  """Returns the types that a plain schema allows."""
  listed = _listed(schema)
  if listed is not None:
    return [*dict.fromkeys(map(_type_of_value, listed))]
  if "type" in schema:
    kinds = _as_list(schema["type"])
    if unknown := [kind for kind in kinds if kind not in _TYPES]:
      raise _refused(
        at,
        f"Invalid type: {', '.join(map(str, unknown))}",
        f"give one of {', '.join(_TYPES)}",
      )
    return [k for k in kinds if k != "integer" or "number" not in kinds]
  implied = {_TYPE_OF[key] for key in schema if key in _TYPE_OF}
  if len(implied) != 1:
    raise _refused(
      at,
      "without a type it is of any, and an object could have a key twice",
      "give its type",
    )
  return [*implied]


def _type_of_value(value: Any) -> str:
  kinds: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
  }
  return kinds.get(type(value), "null")


def _listed(schema: Mapping[str, Any]) -> Sequence[Any] | None:
  """Returns the values of `enum`, `const` or both; None without either."""
  if "const" not in schema:
    values = schema.get("enum")
    return values if isinstance(values, list) else None
  value = schema["const"]
  if "enum" in schema:
    allowed = {*map(_canonical, schema["enum"])}
    return [value] if _canonical(value) in allowed else []
  return [value]


def _of_type(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
  return {k: v for k, v in schema.items() if _TYPE_OF.get(k) == kind}


def _are_numbers(*values: Any) -> bool:
  return all(
    isinstance(v, int | float) and not isinstance(v, bool) for v in values
  )


def _are_lists(*values: Any) -> bool:
  return all(isinstance(value, list) for value in values)


def _as_list(value: Any) -> Sequence[Any]:
  return value if isinstance(value, list) else [value]


def _union_of(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
  return [*left, *(name for name in right if name not in left)]


def _canonical(value: Any) -> str:
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  return json.dumps(value, sort_keys=True)


def _overlap(at: str) -> ConfigError:
  return _refused(
    at,
    "a value could fit two branches of oneOf",
    "give anyOf, or a property with another constant in each branch",
  )


def _shown(value: Any) -> str:
  return json_schema.shortened(json.dumps(value))


def _place(at: str) -> str:
  return f"argument `{json_schema.shortened(at)}`" if at else "the arguments"


def _refused(at: str, why: str, instead: str) -> ConfigError:
  return ConfigError(f"{_place(at)}: {why}: {instead}")
