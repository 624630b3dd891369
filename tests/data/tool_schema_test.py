"""Schemas as people write them are copied to what every reader can show."""

import json

from absl.testing import parameterized

from agentrl_jax.data.grammar.json_schema import MAX_DEPTH
from agentrl_jax.data.tool_schema import copied_parameters

NODE = {  # as pydantic writes a tree
  "type": "object",
  "properties": {
    "name": {"type": ["string", "null"], "enum": ["a", None, 1.5, {"b": None}]},
    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
  },
  "required": ["name"],
  "additionalProperties": True,
}


def nested(depth: int) -> dict:
  schema: dict = {}
  for _ in range(depth // 2):
    schema = {"properties": {"x": schema}}
  return schema


class CopiedParametersTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("empty", {}, {}),
    (
      "null",
      {"type": "object", "properties": None, "required": None, "title": None},
      {"type": "object"},
    ),
    (
      "null_below",
      {"properties": {"a": {"type": "string", "enum": None, "title": None}}},
      {"properties": {"a": {"type": "string"}}},
    ),
    (
      "true_and_null_for_a_part",
      {
        "properties": {"a": True, "b": None, "c": {"items": True}, "d": None},
        "required": ["b"],
        "$defs": {"e": None},
      },
      {
        "properties": {"a": {}, "b": {}, "c": {"items": {}}},
        "required": ["b"],
        "$defs": {},
      },
    ),
    (
      "null_that_the_type_has_no_place_for",
      {
        "properties": {"a": {"type": "integer", "default": None, "const": None}}
      },
      {"properties": {"a": {"type": "integer"}}},
    ),
    (
      "false_and_null_that_say_something",
      {"properties": {"a": False, "b": {"default": None, "const": None}}},
      {"properties": {"a": False, "b": {"default": None, "const": None}}},
    ),
    (
      "properties_that_are_called_like_keywords",
      {"properties": {"required": {"enum": [None]}, "description": {}}},
      {"properties": {"required": {"enum": [None]}, "description": {}}},
    ),
    ("tuples", {"required": ("a",)}, {"required": ["a"]}),
    ("references", NODE | {"$defs": {"Node": NODE}}, None),
    ("deep", nested(MAX_DEPTH), None),
  )
  def test_is_as_it_was_given_but_for_null_and_true(self, given, wanted):
    before = json.dumps(given)
    found = copied_parameters(given)
    self.assertEqual(found, given if wanted is None else wanted)
    self.assertEqual(json.dumps(given), before)

  @parameterized.parameters(
    ([1], "object, found"),
    ("{}", "object, found"),
    (None, "object, found"),
    ({"properties": ["a"]}, "'properties' is an object"),
    ({"required": "a"}, "'required' is a list"),
    ({"required": [1]}, "'required' is a list"),
    ({"properties": {"a": {"description": 5}}}, "'description' is a text"),
    ({"maximum": float("nan")}, "no JSON"),
    ({"enum": [{1, 2}]}, "no JSON"),
    (nested(MAX_DEPTH + 2), "nested deeper than"),
    (json.loads("[" * 400 + "]" * 400), "object, found"),
    ({"enum": json.loads("[" * 400 + "]" * 400)}, "nested deeper than"),
  )
  def test_what_cannot_be_shown_is_refused(self, given, reason):
    with self.assertRaisesRegex(ValueError, reason):
      copied_parameters(given)
