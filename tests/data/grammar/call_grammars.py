"""Random tools, random answers that a grammar allows, and a plain checker."""

import json

import numpy as np

from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import GeneratorFault

NAMES = ("query", "größe", "a.b-c", "</tool_call>", "it's", "x/y")
WORDS = ("red", 'q " and \\', "É\n", "<|im_end|>", "")
# What brings a value to its end; a random walk would else write on and on.
CLOSING = (*'"}],', "<|end|>")


def a_schema(rng, depth=2):
  """A random schema of what tools take."""
  kinds = ["string", "enum", "integer", "number", "boolean", "null"]
  kind = rng.choice([*kinds, "object", "array"] if depth else kinds)
  if kind == "object":
    return an_object(rng, depth - 1)
  if kind == "array":
    items = a_schema(rng, depth - 1)
    return {"type": "array", "items": items, "maxItems": 3}
  if kind == "enum":
    return {"enum": [*map(str, rng.choice(WORDS, 2, replace=False)), 3]}
  return {"type": str(kind), "description": "Says what it is."}


def an_object(rng, depth):
  names = list(map(str, rng.choice(NAMES, rng.integers(4), replace=False)))
  return {
    "type": "object",
    "properties": {name: a_schema(rng, depth) for name in names},
    "required": names[: rng.integers(len(names) + 1)],
  }


def some_tools(rng):
  """One to three tools of different names; one may take nothing."""
  names = map(str, rng.choice(NAMES, rng.integers(1, 4), replace=False))
  return [
    Tool(name, "Does it.", an_object(rng, 2) if rng.random() < 0.8 else {})
    for name in names
  ]


def a_value(rng, schema):
  """A random value that keeps to a schema of the above."""
  kind = schema.get("type", "enum")
  if kind == "object":
    wanted = schema.get("required", ())
    return {
      name: a_value(rng, inner)
      for name, inner in schema.get("properties", {}).items()
      if name in wanted or rng.random() < 0.5
    }
  if kind == "array":
    return [a_value(rng, schema["items"]) for _ in range(rng.integers(4))]
  if kind == "enum":
    return schema["enum"][rng.integers(len(schema["enum"]))]
  values = {
    "string": str(rng.choice(WORDS)),
    "integer": int(rng.integers(-(2**40), 2**40)),
    "number": float(rng.normal() * 10.0 ** rng.integers(-30, 30)),
    "boolean": bool(rng.random() < 0.5),
    "null": None,
  }
  return values[kind]


_TYPES = {
  "string": str,
  "integer": int,
  "number": (int, float),
  "boolean": bool,
  "null": type(None),
}


def keeps_to(value, schema):
  """Checks that a value is of a schema of the above, and no more."""
  kind = schema.get("type", "enum" if "enum" in schema else "object")
  if kind == "enum":
    return value in schema["enum"]
  if kind == "array":
    return (
      isinstance(value, list)
      and len(value) <= schema["maxItems"]
      and all(keeps_to(item, schema["items"]) for item in value)
    )
  if kind == "object":
    listed = schema.get("properties", {})
    return (
      isinstance(value, dict)
      and set(schema.get("required", ())) <= value.keys() <= listed.keys()
      and all(keeps_to(value[name], listed[name]) for name in value)
    )
  if isinstance(value, bool) and kind != "boolean":
    return False
  return isinstance(value, _TYPES[kind])


def bits_of(mask):
  """Membership of each token in a mask, bool [V] and some more."""
  return np.unpackbits(mask.view(np.uint8), bitorder="little", axis=-1) == 1


def allows(grammars: Grammars, grammar, ids) -> bool:
  """Checks an answer by the grammar, and by the masks of its tokens."""
  try:
    mask_AW = grammars.masks(grammar, ids)
  except GeneratorFault:
    return False
  return bool(bits_of(mask_AW)[np.arange(len(ids)), ids].all())


class Walker:
  """Answers by drawing tokens at random from those that a grammar allows."""

  def __init__(self, codec, grammars: Grammars):
    self._grammars, self._stops = grammars, set(codec.stop_tokens)
    texts = [codec.decode([id]) for id in range(codec.vocab_size)]
    self._closes = np.array([text.startswith(CLOSING) for text in texts])
    self._stop = np.isin(np.arange(codec.vocab_size), [*self._stops])

  def answer(self, rng, grammar, size=600):
    """The ids, the stop token last; None if it took more than `size`."""
    state, ids = self._grammars.begin(grammar), []
    while len(ids) < size:
      can = bits_of(state.allowed())[: len(self._closes)]
      ids.append(self._one(rng, can))
      state.take(ids[-1])
      if ids[-1] in self._stops:
        return ids
    return None

  def _one(self, rng, can):
    for likely, share in ((self._stop, 0.2), (self._closes, 0.4)):
      if (can & likely).any() and rng.random() < share:
        can = can & likely
    return int(rng.choice(np.flatnonzero(can)))


def call_text(rng, schema):
  """Arguments as programs write them: wide, tight or on several lines."""
  forms = ({}, {"separators": (",", ":")}, {"indent": 2})
  value = a_value(rng, schema if "properties" in schema else {"type": "object"})
  return json.dumps(value, ensure_ascii=False, **rng.choice(forms))
