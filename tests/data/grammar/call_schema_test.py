"""What grammars of tools' schemas allow, and which schemas they refuse."""

import contextlib
import json
from typing import Literal

import pydantic
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.data.grammar.call_schema import MAX_SCHEMAS
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import ConfigError, SchemaFault
from tests.data.grammar.calling import Calling, codec, grammars, said

FAMILY = "compact"


class Card(pydantic.BaseModel):
  kind: Literal["card"] = "card"
  number: str = pydantic.Field(pattern="^[0-9]{4}$")


class Cash(pydantic.BaseModel):
  kind: Literal["cash"] = "cash"
  amount: float = pydantic.Field(gt=0, description="In euros.")


class Tree(pydantic.BaseModel):
  name: str
  inner: list["Tree"] = []


class Order(pydantic.BaseModel):
  count: int | None = None
  pay: Card | Cash = pydantic.Field(discriminator="kind")
  trees: list[Tree] = pydantic.Field(default=[], max_length=2)
  size: Literal["small", "large"] | None = None


BUY = Tool("buy", "Buys.", Order.model_json_schema())


class UnionsAndReferencesTest(Calling):
  def allowed(self, arguments, tool=BUY):
    """Checks a call with these arguments, given as JSON or as its text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return self.allows(FAMILY, said((tool.name, text)), [tool])

  def test_what_pydantic_reads_is_allowed(self):
    for arguments in (
      {"pay": {"kind": "cash", "amount": 0.5}},
      {"count": None, "pay": {"kind": "card", "number": "1234"}},
      {
        "count": 3,
        "pay": {"kind": "card", "number": "0000"},
        "trees": [{"name": "a", "inner": [{"name": "b", "inner": []}]}],
        "size": "large",
      },
    ):
      Order.model_validate(arguments)
      self.assertTrue(self.allowed(arguments), arguments)

  def test_what_it_does_not_read_is_not(self):
    pay = '"pay": {"kind": "cash", "amount": 1}'
    for text in (
      '{"count": "abc", PAY}',
      '{"pay": {"kind": "cash", "number": "1234"}}',
      '{"pay": {"kind": "gold", "amount": 1}}',
      '{"pay": {"kind": "cash", "amount": 0}}',
      '{"pay": {"kind": "cash", "amount": 1, "amount": 2}}',
      '{"pay": {"kind": "cash", "amount": 1, "more": 2}}',
      '{PAY, "trees": [{"name": "a", "name": "b"}]}',
      '{PAY, "trees": [{"name": "a", "inner": [{"name": "b", "x": 1}]}]}',
      "{PAY, PAY}",
    ):
      text = text.replace("PAY", pay)
      self.assertFalse(self.allowed(text), text)

  @parameterized.parameters(
    ({"$ref": "http://example.com"}, "Resource .http"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "keeps to allOf"),
    ({"anyOf": [{"minimum": 1}, {"minimum": 2}], "maximum": 3}, "to anyOf"),
    ({"type": "integer", "multipleOf": 720720}, "keeps to multipleOf"),
    ({"properties": {f"p{n}": {} for n in range(501)}}, "500 properties"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"anyOf": [{"type": "null"}] * MAX_SCHEMAS}, "more than 5,000 schemas"),
    ({"anyOf": 5}, "anyOf"),
    (5, "schema"),
  )
  def test_a_strict_schema_that_no_grammar_keeps_to_is_refused(
    self, rules, words
  ):
    tool = Tool("t", "", {"properties": {"a": rules}})
    with self.assertRaisesRegex(ConfigError, f"tool 't'.*{words}"):
      codec(FAMILY).call_grammar([tool], strict=("t",))
    self.assertTrue(self.allowed("{}", tool))

  def test_what_is_left_out_leaves_the_rest(self):
    schema = {
      "properties": {
        "a": {"type": "integer", "multipleOf": 720720},
        "b": {"type": "string", "maxLength": 2},
      },
      "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    tool = Tool("t", "", schema)
    for arguments, wanted in (
      ({"a": 1, "b": "xy"}, True),
      ({}, True),
      ({"a": "1"}, False),
      ({"b": "xyz"}, False),
    ):
      self.assertEqual(self.allowed(arguments, tool), wanted, arguments)


ZOD = {"type": "string", "pattern": r"^(?!\.)[a-z]+@[a-z]+$"}  # look-ahead


class InexactTest(Calling):
  @parameterized.parameters(
    (ZOD, ["a@b", "x"], [1, None]),
    ({"type": "string", "pattern": r"^(a)\1$"}, ["b"], [2]),
    ({"type": "string", "format": "no such"}, ["b"], [2]),
    ({"anyOf": [ZOD, {"type": "null"}]}, ["b", None], [2]),
    ({"type": "array", "items": [{"type": "number"}]}, [[1]], [["a"], 1]),
    ({"type": "array"}, [[], [1, {}]], [{}]),
    ({"type": "object", "additionalProperties": ZOD}, [{"k": "v"}], [[]]),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, [1, 2.5], ["a"]),
    ({"type": "string", "nullable": True}, ["a", None], [2]),
    ({"type": "any"}, [1, "a", None, {}], []),
    ({"$ref": "http://a.org/b"}, [1, "a"], []),
  )
  def test_any_json_of_the_type_stands_where_no_grammar_does(
    self, rules, right, wrong
  ):
    schema = {"properties": {"a": rules, "n": {"type": "integer"}}}
    tool = Tool("t", "", schema)
    for value in [*right, *wrong]:
      call = said(("t", json.dumps({"a": value, "n": 1})))
      self.assertEqual(self.allows(FAMILY, call, [tool]), value in right, value)
    call = said(("t", json.dumps({"a": right[0], "n": "one"})))
    self.assertFalse(self.allows(FAMILY, call, [tool]))

  @parameterized.parameters(
    {"type": "array"},
    {"patternProperties": {"x": {}}},
    {"anyOf": [{"required": ["a"]}, {"not": {}}]},
  )
  def test_arguments_are_an_object_at_least(self, **schema):
    tool = Tool("t", "", schema)
    self.assertTrue(self.allows(FAMILY, said(("t", '{"x": [1]}')), [tool]))
    self.assertFalse(self.allows(FAMILY, said(("t", "[1]")), [tool]))


KEYWORDS = (
  *("type", "enum", "const", "required", "properties", "items", "prefixItems"),
  *("anyOf", "oneOf", "allOf", "$ref", "minimum", "exclusiveMaximum"),
  *("pattern", "additionalProperties", "multipleOf", "a", "$defs"),
)
ANY_SCHEMA = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.just(10**400)
  | st.floats(allow_nan=False, allow_infinity=False)
  | st.sampled_from(("object", "string", "number", "a", "#", "#/properties/a")),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
  ),
)


class AnySchemaTest(absltest.TestCase):
  @settings(max_examples=200, deadline=None)
  @given(ANY_SCHEMA)
  def test_any_tool_has_a_grammar(self, rules):
    with contextlib.suppress(SchemaFault):
      tool = Tool("t", "", {"properties": {"a": rules}})
      grammar = codec(FAMILY).call_grammar([tool], choice="required")
      grammars(FAMILY).check(grammar)
