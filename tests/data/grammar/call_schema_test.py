"""Answers that grammars of random schemas allow are valid by the schemas."""

import collections
import contextlib
import json
from typing import Literal

import jsonschema
import numpy as np
import pydantic
import pytest
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.data.grammar import json_schema
from agentrl_jax.data.grammar.call_schema import rewritten
from agentrl_jax.data.records import Tool
from agentrl_jax.errors import ConfigError
from tests.data.grammar import call_grammars
from tests.data.grammar.calling import Calling, codec, grammars, said
from tests.data.grammar.random_schemas import Schemas

ANSWERS = 3  # drawn of each tool set
FAMILY = "compact"


def without_repeats(pairs):
  """An object of JSON in which each key stands once."""
  found = dict(pairs)
  if len(found) < len(pairs):
    raise ValueError(f"a key stands twice in {pairs}")
  return found


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


KEYWORDS = (
  "type",
  "enum",
  "const",
  "required",
  "properties",
  "items",
  "prefixItems",
  "anyOf",
  "oneOf",
  "allOf",
  "$ref",
  "minimum",
  "exclusiveMaximum",
  "pattern",
  "additionalProperties",
  "multipleOf",
  "a",
  "$defs",
  "uniqueItems",
)
ANY_SCHEMA = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.just(10**400)
  | st.floats(allow_nan=False)
  | st.sampled_from(("object", "string", "number", "a", "#", "#/properties/a")),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
  ),
)
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
      # {"amount": 1} alone fits one branch, but {} would fit two.
      '{"pay": {"amount": 1}}',
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

  def test_what_stands_beside_a_union_holds_too(self):
    person = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    schema = {
      "$defs": {"Person": person},
      "allOf": [
        {"$ref": "#/$defs/Person"},
        {"properties": {"age": {"type": "number", "minimum": 3}}},
        {"properties": {"age": {"type": "integer", "maximum": 5}}},
      ],
      "anyOf": [
        {"required": ["age"]},
        {"properties": {"x": {"type": "null"}}, "required": ["x"]},
      ],
    }
    tool = Tool("t", "", schema)
    for arguments, wanted in (
      ({"name": "a", "age": 4}, True),
      ({"name": "a", "x": None}, True),
      ({"name": "a", "age": 3, "x": None}, True),
      ({"name": "a"}, False),
      ({"age": 4}, False),
      ({"name": "a", "age": 2}, False),
      ({"name": "a", "age": 4.5}, False),
      ({"name": "a", "x": 1}, False),
    ):
      self.assertEqual(self.allowed(arguments, tool), wanted, arguments)

  @settings(max_examples=200, deadline=None)
  @given(ANY_SCHEMA)
  def test_any_json_is_rewritten_or_refused(self, rules):
    for parameters in (rules, {"properties": {"a": rules}}):
      if isinstance(parameters, dict):
        with contextlib.suppress(ConfigError):
          rewritten({"type": "object", **parameters})

  def test_what_no_grammar_keeps_to_is_refused_by_name(self):
    for rules, words in (
      ({"additionalProperties": {"type": "null"}}, "additionalProperties"),
      ({"type": "object"}, "lists no properties"),
      ({}, "without a type"),
      ({"type": "array"}, "list without items"),
      ({"patternProperties": {"x": {}}}, "patternProperties"),
      ({"type": "array", "uniqueItems": True}, "uniqueItems"),
      ({"$ref": "http://example.com"}, "nothing is retrieved"),
      ({"$ref": "#/properties/a"}, "comes back to where it stands"),
      ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "of oneOf"),
      ({"oneOf": [{"minimum": 2}, {"type": "string"}]}, "of oneOf"),
      ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "merged have pattern"),
      ({"anyOf": []}, "anyOf is"),
      ({"anyOf": 5}, "anyOf is"),
      ({"properties": 5}, "properties is"),
      ({"type": "object", "properties": {}, "required": [[]]}, "required is"),
      (5, "is no schema"),
      ({"allOf": [{"type": "string"}] * 20_000}, "more than 10,000 schemas"),
    ):
      tool = Tool("t", "", {"properties": {"a": rules}})
      with self.assertRaisesRegex(ConfigError, f"tool 't'.*{words}"):
        codec(FAMILY).call_grammar([tool], strict=("t",))


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
    ({"$ref": "#/properties/a"}, [1, "a"], []),
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
    with self.assertRaisesRegex(ConfigError, "'t'"):
      codec(FAMILY).call_grammar([tool], strict=("t",))

  @parameterized.parameters(
    {"type": "array"},
    {"patternProperties": {"x": {}}},
    {"anyOf": [{"required": ["a"]}, {"not": {}}]},
    {"$ref": "#"},
  )
  def test_arguments_are_an_object_at_least(self, **schema):
    tool = Tool("t", "", schema)
    self.assertTrue(self.allows(FAMILY, said(("t", '{"x": [1]}')), [tool]))
    self.assertFalse(self.allows(FAMILY, said(("t", "[1]")), [tool]))


class RandomSchemasTest(absltest.TestCase):
  def check(self, seeds):
    """Draws from the tool sets; the counts of sets, answers and refusals."""
    self.counts = collections.Counter()
    self.reasons = collections.Counter()
    walker = call_grammars.Walker(codec(FAMILY), grammars(FAMILY))
    for seed in seeds:
      rng = np.random.default_rng(seed)
      tools = Schemas(rng).tools()
      self.counts["sets"] += 1
      try:
        names = tuple(tool.name for tool in tools)
        grammar = codec(FAMILY).call_grammar(
          tools, choice="required", strict=names
        )
        grammars(FAMILY).check(grammar)
      except ConfigError as error:
        self.assertRegex(str(error), "parameters of tool ")
        self.reasons[str(error)] += 1
        continue
      self.counts["allowed"] += 1
      for _ in range(ANSWERS):
        ids = walker.answer(rng, grammar, size=400)
        if ids is not None:
          self.counts["answers"] += 1
          self.check_answer(seed, ids, tools)

  def check_answer(self, seed, ids, tools):
    for call in codec(FAMILY).read(ids).tool_calls:
      (tool,) = (tool for tool in tools if tool.name == call.name)
      schema = {"type": "object", **tool.parameters}
      value = json.loads(call.arguments, object_pairs_hook=without_repeats)
      shown = f"seed {seed}: {call.arguments}\n{json.dumps(schema)}"
      errors = [
        *json_schema.validator_of(schema, "t").iter_errors(value),
        *self.originally_wrong(schema, value),
      ]
      self.assertEmpty(errors, shown)
      self.counts["calls"] += 1

  def originally_wrong(self, schema, value):
    """By the package's own validator, which divides by 0.1 in binary."""
    if '"multipleOf": 0.1' in json.dumps(schema):
      return []
    return [*jsonschema.Draft202012Validator(schema).iter_errors(value)]

  def test_a_sample(self):
    self.check(range(25))
    self.assertGreater(self.counts["allowed"], 8)
    self.assertGreater(self.counts["answers"], 16)

  @pytest.mark.full
  @pytest.mark.timeout(1200)  # a minute of one core that is free
  def test_three_hundred_tool_sets(self):
    self.check(range(1000, 1300))
    self.assertEqual(self.counts["sets"], 300)
    self.assertGreater(self.counts["allowed"], 100)
    self.assertGreater(self.counts["calls"], 300)
    for words in ("written twice", "two branches of oneOf", "without a type"):
      self.assertTrue(any(words in reason for reason in self.reasons), words)
