"""Random tool sets, in the forms that authors and libraries write."""

import numpy as np

from agentrl_jax.data.records import Tool

NAMES = ("query", "größe", "a.b-c", "it's", "kind", "x", "</tool_call>")
TEXTS = ("red", 'q " and \\', "É\n", "<|im_end|>", "")
PATTERNS = ("^[a-c]{1,3}$", "^x", "[0-9]{2}", "^(ab|cd)*$", r"^\d+\.\d{2}$")
BOUNDS = (-100, -10.5, -10.0, -1, -0.5, 0, 0.05, 0.5, 1, 2.5, 10.0, 10.5, 99)


class Schemas:
  """One tool set: its definitions are shared by what refers to them."""

  def __init__(self, rng: np.random.Generator):
    self._rng = rng

  def tools(self) -> list[Tool]:
    """One to three tools of different names."""
    names = self._rng.permutation(NAMES)[: self._rng.integers(1, 4)]
    return [Tool(str(name), "Does it.", self._parameters()) for name in names]

  def _parameters(self):
    self._definitions: dict = {}
    if self._flip(0.05):
      return {}
    schema = self._object(3)
    if self._definitions:
      schema["$defs"] = self._definitions
    return schema

  def _flip(self, share) -> bool:
    return bool(self._rng.random() < share)

  def _one(self, choices):
    return choices[self._rng.integers(len(choices))]

  def _any(self, depth):
    plain = (self._text, self._number, self._constant, self._flag)
    nested = (self._object, self._list, self._union, self._reference)
    nested += (self._all, self._nullable, self._tagged)
    kinds = (*plain, *nested, *nested[:4]) if depth else plain
    make = self._odd if self._flip(0.03) else self._one(kinds)
    schema = make(max(depth - 1, 0))
    if self._flip(0.2) and isinstance(schema, dict):
      schema = {"title": "T", **schema, "description": "Says.", "default": None}
    return schema

  def _text(self, depth):
    schema = {"type": "string"}
    if self._flip(0.3):
      schema["pattern"] = self._one(PATTERNS)
    elif self._flip(0.3):
      low = int(self._rng.integers(3))
      schema |= {
        "minLength": low,
        "maxLength": low + int(self._rng.integers(4)),
      }
    elif self._flip(0.2):
      formats = ("date", "date-time", "uuid", "ipv4", "time", "binary")
      schema["format"] = self._one(formats)
    return schema

  def _number(self, depth):
    schema = {"type": self._one(("number", "integer", "number"))}
    low, high = sorted(map(float, self._rng.choice(BOUNDS, 2, replace=False)))
    if self._flip(0.6):
      schema["minimum"] = self._written(low)
    if self._flip(0.6):
      schema["maximum"] = self._written(high)
    if self._flip(0.1):
      schema["multipleOf"] = self._one((1, 2, 5, 0.5, 0.1))
    return schema

  def _written(self, bound):
    return int(bound) if bound.is_integer() and self._flip(0.5) else bound

  def _constant(self, depth):
    values = (*TEXTS, 3, -1.5, True, None, 1.0, ["a", {"b": 1}], {"c": []})
    if self._flip(0.3):
      return {"const": self._one(values)}
    schema = {"enum": [self._one(values) for _ in range(3)]}
    if self._flip(0.3):
      schema["type"] = self._one(("string", "number", ["string", "null"]))
    return schema

  def _flag(self, depth):
    return {"type": self._one(("boolean", "null"))}

  def _object(self, depth):
    names = [*map(str, self._rng.permutation(NAMES)[: self._rng.integers(4)])]
    schema = {
      "type": "object",
      "properties": {name: self._any(depth) for name in names},
    }
    if self._flip(0.7):
      schema["required"] = names[: self._rng.integers(len(names) + 1)]
    if self._flip(0.3):
      schema["additionalProperties"] = False
    elif self._flip(0.05):
      schema["additionalProperties"] = self._one((True, {"type": "string"}))
    if self._flip(0.05):
      schema["minProperties"] = 1
    return schema

  def _list(self, depth):
    schema = {"type": "array", "items": self._any(depth)}
    low = int(self._rng.integers(3))
    if self._flip(0.5):
      schema |= {"minItems": low, "maxItems": low + int(self._rng.integers(3))}
    if self._flip(0.15):
      schema["prefixItems"] = [self._any(depth) for _ in range(2)]
    if self._flip(0.3) and "prefixItems" in schema:
      del schema["items"]
    return schema

  def _union(self, depth):
    branches = [self._any(depth) for _ in range(self._rng.integers(1, 4))]
    return {self._one(("anyOf", "anyOf", "oneOf")): branches}

  def _nullable(self, depth):
    return {"anyOf": [self._any(depth), {"type": "null"}]}

  def _reference(self, depth):
    names = [*self._definitions]
    if not names or self._flip(0.6):
      name = f"D/{len(names)}"
      self._definitions[name] = {"type": "null"}  # until it is made
      # One that refers to itself comes to its end by being optional.
      again = {"$ref": f"#/$defs/D~1{len(names)}"}
      made = self._object(depth)
      if self._flip(0.3):
        made["properties"]["again"] = {"anyOf": [again, {"type": "null"}]}
      self._definitions[name] = made
    else:
      name = self._one(names)
    schema = {"$ref": "#/$defs/" + name.replace("/", "~1")}
    if self._flip(0.1):
      schema |= {"properties": {"beside": self._any(0)}}
    return schema

  def _all(self, depth):
    if self._flip(0.5):
      return {"allOf": [self._number(0), self._number(0)]}
    members = [self._object(depth), self._object(depth)]
    if self._flip(0.3):
      members.append(self._reference(depth))
    schema = {"allOf": members[int(self._flip(0.4)) :]}
    if self._flip(0.2):
      schema["anyOf"] = [{"required": ["x"]}, self._object(depth)]
    return schema

  def _tagged(self, depth):
    """As pydantic writes a union that a constant tells apart."""
    branches = []
    for tag in ("cat", "dog", "owl")[: self._rng.integers(2, 4)]:
      branch = self._object(depth)
      branch["properties"] = {
        "kind": {"const": tag, "type": "string"},
        **{n: x for n, x in branch["properties"].items() if n != "kind"},
      }
      branches.append(branch)
    return {"oneOf": branches, "discriminator": {"propertyName": "kind"}}

  def _odd(self, depth):
    """Rules that no grammar may express, or that no value keeps to."""
    return self._one(
      (
        {},
        True,
        {"type": "object"},
        {"type": "array"},
        {"not": {"type": "null"}},
        {"type": "array", "items": self._any(0), "uniqueItems": True},
        {"type": "array", "items": self._any(0), "uniqueItems": False},
        {"type": ["integer", "string", "null"], "minimum": 3, "maxLength": 2},
        {"properties": {"x": self._any(0)}},
        {"type": "number", "minimum": 3, "maximum": 2},
        {"type": "object", "patternProperties": {"^x": self._any(0)}},
        {"if": {"type": "null"}, "then": {"type": "string"}},
        {"type": "object", "properties": {}, "required": ["missing"]},
        {"type": "string", "pattern": "(?=a)b"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "object", "properties": {}, "maxProperties": 1},
        {"minimum": 2},
        {"type": "array", "items": {"type": "null"}, "contains": {}},
      )
    )
