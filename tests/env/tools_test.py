"""Tests of reading tool calls: good arguments, and messages for bad ones."""

import contextlib
import json
import unittest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.data.records import Tool, ToolCall
from agentrl_jax.data.tool_calls import Flaw
from agentrl_jax.env.tools import (
  ToolMistake,
  parse_any,
  read_arguments,
  require_names_apart,
)
from agentrl_jax.errors import ConfigError, SchemaFault


def an_object(properties, **rules):
  return {"type": "object", "properties": properties, **rules}


SQL = Tool(
  "execute_sql",
  "Runs SQL.",
  an_object(
    {"query": {"type": "string", "description": "What to run."}},
    required=["query"],
    additionalProperties=False,
  ),
)
COMMIT = Tool(
  "commit",
  "Ends.",
  an_object(
    {
      "answers": {"type": "array", "items": {"type": "string"}, "minItems": 1},
      "count": {"type": "integer", "minimum": 0, "maximum": 9},
      "how": {"enum": ["fast", "slow"]},
      "where": an_object({"x": {"type": ["number", "null"]}}),
    },
    required=["answers"],
  ),
)
TOOLS = (SQL, COMMIT)
BROKEN, WRONG = Flaw.MALFORMED_JSON, Flaw.WRONG_ARGUMENTS
TYPE = "must be of type"


def read(name, arguments):
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments)
  return read_arguments(ToolCall(name, arguments), (*TOOLS, PYDANTIC))


def read_one(tool, arguments):
  return read_arguments(ToolCall(tool.name, json.dumps(arguments)), (tool,))


class ReadArgumentsTest(unittest.TestCase):
  def test_good_calls_are_read(self):
    for name, arguments in (
      ("execute_sql", {"query": "SELECT 1"}),
      ("execute_sql", {"query": "\x00 € \U0001f600"}),
      ("commit", {"answers": ["a"], "count": 9, "how": "fast"}),
      ("commit", {"answers": ["a"], "where": {"x": None}, "more": 1}),
      ("commit", {"answers": ["a"], "where": {"x": 2.5}, "count": 3.0}),
      ("commit", {"answers": ["a"], "where": {"x": -(2**63)}}),
      ("order", {"count": None, "size": "large"}),
      ("order", {"count": 3, "pay": {"kind": "cash", "amount": 0.5}}),
      ("order", {"pay": {"kind": "card", "number": "1234"}, "either": -1}),
      ("order", {"tree": {"name": "a", "inner": [{"name": "b", "inner": []}]}}),
      ("order", {"price": 0.3, "tags": [1, True, "1"], "when": "some day"}),
    ):
      with self.subTest(arguments=arguments):
        self.assertEqual(read(name, arguments), arguments)

  def test_mistakes_name_the_found_and_the_allowed(self):
    usage = "Usage: execute_sql(query: string)."
    a = {"answers": ["a"]}
    cases = [
      (Flaw.UNKNOWN_TOOL, "drop", "{}", "The tools are: execute_sql, commit"),
      (BROKEN, SQL.name, "", usage),
      (BROKEN, SQL.name, '{"query": NaN}', "NaN"),
      (BROKEN, SQL.name, '{"query": "", "query": 1}', '"query" stands twice'),
      (BROKEN, "", '{"name": "f", "args": 1}', '"args'),
      (BROKEN, "", "{oops", "cannot be read. A call is JSON"),
      (BROKEN, SQL.name, "[" * 100_000, usage),
      (BROKEN, SQL.name, '{"query": "\\ud800"}', usage),
      (BROKEN, "commit", '{"count": 1e999}', "64 bits"),
      (BROKEN, "commit", f'{{"count": {"9" * 5000}}}', "64 bits"),
      (WRONG, SQL.name, "[]", "object, not array"),
      (WRONG, SQL.name, "{}", "`query` is missing"),
      (WRONG, SQL.name, {"query": 1}, f"`query` {TYPE} string, not integer"),
      (WRONG, SQL.name, {"query": "", "limit": 1}, 'is no argument "limit"'),
    ]
    for arguments, words in (
      ({"answers": []}, "1 items or more"),
      ({"answers": ["a", True]}, f"`answers[1]` {TYPE} string, not boolean"),
      (a | {"count": True}, f"`count` {TYPE} integer, not boolean"),
      (a | {"count": -1}, "at least 0"),
      (a | {"count": 10}, "at most 9"),
      (a | {"how": "so"}, '`how` must be one of "fast", "slow", not "so"'),
      (
        a | {"where": {"x": "here"}},
        f"`where.x` {TYPE} number or null, not string",
      ),
    ):
      cases.append((WRONG, "commit", arguments, words))
    for flaw, name, arguments, words in cases:
      with self.subTest(name=name, arguments=str(arguments)[:60]):
        mistake = read(name, arguments)
        self.assertIsInstance(mistake, ToolMistake)
        self.assertIs(mistake.flaw, flaw)
        self.assertIn(words, mistake.message)

  def test_message_does_not_echo_a_huge_answer(self):
    for call in (
      ToolCall("x" * 100_000, "{}"),
      ToolCall("commit", json.dumps({"answers": ["a"], "how": "x" * 100_000})),
      ToolCall("execute_sql", json.dumps({"query": "", "x" * 100_000: 1})),
    ):
      self.assertLess(len(read_arguments(call, TOOLS).message), 400)

  @given(st.text())
  def test_any_text_is_read_or_answered(self, text):
    self.assertIsInstance(read("execute_sql", text), ToolMistake | dict)

  @given(st.dictionaries(st.text(), st.text()), st.text())
  def test_only_the_right_keys_pass(self, others, query):
    arguments = {**others, "query": query}
    arguments_read = read("execute_sql", arguments)
    if set(arguments) == {"query"}:
      self.assertEqual(arguments_read, arguments)
    else:
      self.assertIs(arguments_read.flaw, Flaw.WRONG_ARGUMENTS)


class ParseAnyTest(unittest.TestCase):
  def test_calls_that_were_read(self):
    call = ToolCall("f", '{"a": [1.10, null]}')
    self.assertEqual(parse_any(call), {"a": [1.1, None]})

  def test_others(self):
    for call in (
      ToolCall("", '{"name": "f", "args": {"a": 1}}'),
      ToolCall("f", "{"),
      ToolCall("f", "[" * 10_000),
      ToolCall("f", '{"a": "\\ud83d"}'),
      ToolCall("f", '{"a": 1, "a": 2}'),
      ToolCall("f", '{"a": NaN}'),
    ):
      with self.subTest(call=call), self.assertRaises(ValueError):
        parse_any(call)


PYDANTIC = Tool(  # as pydantic 2 writes it
  "order",
  "Orders.",
  {
    "$defs": {
      "Card": an_object(
        {
          "kind": {"const": "card", "type": "string"},
          "number": {"type": "string", "pattern": "^[0-9]{4}$"},
        },
        required=["kind", "number"],
      ),
      "Cash": an_object(
        {
          "kind": {"const": "cash", "type": "string"},
          "amount": {"type": "number", "exclusiveMinimum": 0},
        },
        required=["kind", "amount"],
      ),
      "Size": {"enum": ["small", "large"], "type": "string"},
      "Tree": an_object(
        {
          "name": {"type": "string"},
          "inner": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        },
        required=["name"],
        additionalProperties=False,
      ),
    },
    **an_object(
      {
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "size": {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]},
        "pay": {
          "discriminator": {
            "mapping": {"card": "#/$defs/Card", "cash": "#/$defs/Cash"},
            "propertyName": "kind",
          },
          "oneOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Cash"}],
        },
        "tree": {"$ref": "#/$defs/Tree"},
        "either": {"oneOf": [{"minimum": 0}, {"maximum": 9}]},
        "price": {"type": "number", "multipleOf": 0.1},
        "tags": {"type": "array", "uniqueItems": True, "maxItems": 3},
        "when": {"type": "string", "format": "date"},
      }
    ),
  },
)


class UnionsAndReferencesTest(unittest.TestCase):
  def test_mistakes_name_the_found_and_the_allowed(self):
    for arguments, words in (
      ({"count": "abc"}, f"`count` {TYPE} integer or null, not string"),
      ({"count": 1.5}, f"`count` {TYPE} integer or null, not number"),
      ({"size": "big"}, '`size` must be one of "small", "large", not "big"'),
      ({"size": 1}, f"`size` {TYPE} string or null, not integer"),
      ({"pay": {"kind": "cash", "amount": 0}}, "`pay.amount` must be above 0"),
      ({"pay": {"kind": "cash"}}, "`pay.amount` is missing"),
      (
        {"pay": {"kind": "card", "number": "123"}},
        "`pay.number` must be text that matches the pattern ^[0-9]{4}$",
      ),
      (
        {"pay": {"kind": "gold", "amount": 1}},
        '`pay.kind` must be one of "card", "cash", not "gold"',
      ),
      ({"pay": 3}, f"`pay` {TYPE} object, not integer"),
      (
        {"tree": {"name": "a", "inner": [{"name": "b"}, {"nam": "c"}]}},
        "`tree.inner[1].name` is missing",
      ),
      (
        {"tree": {"name": "a", "inner": [{"name": "b", "x": 1}]}},
        'there is no argument "tree.inner[0].x"',
      ),
      ({"either": 5}, "`either` fits several of the forms"),
      ({"price": 0.35}, "`price` must be a multiple of 0.1"),
      ({"tags": [1, 1.0]}, "`tags` must be a list in which no item is repeat"),
    ):
      with self.subTest(arguments=arguments):
        mistake = read_one(PYDANTIC, arguments)
        self.assertIsInstance(mistake, ToolMistake)
        self.assertIs(mistake.flaw, Flaw.WRONG_ARGUMENTS)
        self.assertIn(words, mistake.message)
        self.assertIn(
          "Usage: order(count?: integer or null, size?: string or null, pay?: "
          "object, tree?: object, either?: any, price?: number, tags?: array",
          mistake.message,
        )

  def test_mistakes_under_other_keywords(self):
    for rules, value, words in (
      ({"const": 3}, 4, "`a` must be 3, not 4"),
      ({"const": 1}, True, "`a` must be 1, not true"),
      ({"exclusiveMaximum": 2}, 2, "`a` must be below 2"),
      ({"not": {"type": "null"}}, None, '`a` must keep to not: {"type"'),
      ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 4, "must be at most 3"),
      ({"prefixItems": [{"type": "null"}]}, [1], "`a[0]` must be of type null"),
      ({"items": False}, [1], "`a` must be a list of 0 items or fewer"),
      ({"contains": {"const": 1}}, [2], "`a` must keep to contains"),
      ({"minProperties": 1}, {}, "`a` must be an object of 1 properties or"),
      ({"propertyNames": {"maxLength": 2}}, {"abc": 1}, "`a` must be 2 char"),
      (
        {"dependentRequired": {"b": ["c"]}},
        {"b": 1},
        "`a.c` is missing, which",
      ),
      (
        {"patternProperties": {"^x": {"type": "null"}}},
        {"xy": 1},
        "`a.xy` must",
      ),
      (
        {"if": {"minimum": 5}, "then": {"multipleOf": 5}},
        7,
        "`a` must be a multiple of 5",
      ),
    ):
      with self.subTest(rules=rules):
        mistake = read_one(Tool("t", "", an_object({"a": rules})), {"a": value})
        self.assertIn(words, mistake.message)

  def test_numbers_and_booleans_differ(self):
    tool = Tool("t", "", an_object({"a": {"enum": [0, "x", [1]]}}))
    for value in (False, [True]):
      self.assertIsInstance(read_one(tool, {"a": value}), ToolMistake)
    self.assertEqual(read_one(tool, {"a": 0.0}), {"a": 0.0})

  def test_items_that_are_repeated(self):
    tool = Tool("t", "", an_object({"a": {"uniqueItems": True}}))
    for pair, is_repeated in (
      ([1, 1.0], True),
      ([[1, {"a": 0}], [1.0, {"a": 0.0}]], True),
      ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], True),
      ([1, True], False),
      ([[0], [False]], False),
      ([{"a": 1}, {"a": 2}, ["a", 1], [["a", 1]]], False),
      ([[], {}, None, "", 0, False], False),
      ({"a": 1}, False),
    ):
      with self.subTest(pair=pair):
        read = read_one(tool, {"a": pair})
        self.assertEqual(isinstance(read, ToolMistake), is_repeated)


LOOKS = {"type": "string", "pattern": r"^(?!\.)[a-z]+@[a-z]+$"}  # ahead
NUMBERS = {"type": "number"}
TREE = {
  "properties": {
    "name": {"type": "string"},
    "kids": {"items": {"$ref": "#/$defs/Tree"}},
  }
}
# Rules of an argument, and values that are right and wrong by what is checked.
SCHEMAS_OF_OTHERS = (
  (LOOKS, ["a@b", "x"], [1, None]),
  ({"pattern": r"(a)\1", "type": "string"}, ["b"], [1]),
  ({"pattern": "a" * 2000, "maxLength": 1}, ["b"], ["bb"]),
  ({"pattern": "(", "type": "string"}, ["b"], [1]),
  ({"pattern": 5, "type": "string"}, ["b"], [1]),
  ({"pattern": r"^[\p{L}]+$"}, ["é"], ["1"]),
  # What is not known whole excludes nothing.
  ({"not": LOOKS, "type": "string"}, ["a@b", "x"], [1]),
  ({"oneOf": [LOOKS, {"type": "string", "minLength": 2}]}, ["a@b"], [1]),
  ({"if": LOOKS, "then": False, "type": "string"}, ["a@b", "x"], [1]),
  ({"contains": LOOKS, "maxContains": 1}, [["a", "b"]], []),
  (
    {"patternProperties": {"(?=a)": NUMBERS}, "additionalProperties": False},
    [{"a": 1}, {"b": ""}],
    [],
  ),
  ({"properties": [], "additionalProperties": False}, [{"a": 1}], []),
  ({"unevaluatedProperties": False, "required": ["a"]}, [{"a": 1}], [{}]),
  # Other drafts.
  ({"items": [NUMBERS], "additionalItems": False}, [[1], []], [["a"], [1, 2]]),
  ({"items": [NUMBERS, {}]}, [[1, "a", {}]], [["a"]]),
  ({"items": NUMBERS, "additionalItems": False}, [[1, 2]], [["a"]]),
  ({"minimum": 0, "exclusiveMinimum": True}, [0, 5], [-1]),
  ({"type": "string", "required": True}, ["a"], [1]),
  ({"dependencies": {"a": ["b"]}, "type": "object"}, [{"a": 1}], [1]),
  ({"$dynamicRef": "#a", "$recursiveRef": "#"}, [1], []),
  # OpenAPI's.
  ({"type": "string", "nullable": True}, ["a", None], [1]),
  ({"enum": ["a"], "nullable": True, "example": "b"}, ["a", None], ["b"]),
  ({"allOf": [{"$ref": "#/$defs/S"}], "nullable": True}, ["a", None], [1]),
  ({"$ref": "#/components/schemas/A"}, [1, "a"], []),
  ({"type": "file"}, [1, "a"], []),
  ({"type": ["string", "any"]}, [1, "a"], []),
  ({"type": "string", "minlength": 3, "x-order": 1}, ["a"], [1]),
  # References that lead nowhere, or to what is no schema.
  *(
    ({"$ref": reference, "default": {}, "maximum": 3}, [3, "a"], [4])
    for reference in (
      "https://example.com/a.json",
      "file:///etc/passwd",
      "b.json#/a",
      "#anchor",
      "#/$defs/missing",
      "#/properties/a/default",
      5,
    )
  ),
  ({"$ref": "#"}, [{}, {"a": {}}], [1, {"a": 1}]),
  ({"$ref": "#/$defs/Tree"}, [{"kids": [{}]}], [{"kids": [{"name": 1}]}]),
  # No schemas.
  ({"anyOf": []}, [1], []),
  ({"anyOf": [{"type": "string"}, 5]}, [1, "a"], []),
  ({"items": 5, "enum": "abc", "minLength": -1, "multipleOf": 0}, [1, [1]], []),
  (True, [1, None], []),
  (False, [], [1, None]),
)


class SchemasOfOthersTest(unittest.TestCase):
  def test_what_is_not_known_makes_no_call_wrong(self):
    defs = {"S": {"type": "string"}, "Tree": TREE}
    for rules, right, wrong in SCHEMAS_OF_OTHERS:
      tool = Tool("t", "", an_object({"a": rules}, **{"$defs": defs}))
      for value in [*right, *wrong]:
        with self.subTest(rules=rules, value=value):
          read = read_one(tool, {"a": value})
          self.assertEqual(read == {"a": value}, value in right, read)

  def test_arguments_are_an_object_whatever_the_schema_says(self):
    for schema in (
      None,
      {"type": "array"},
      {"type": ["object", "null"], "nullable": True},
      {"$ref": "#/$defs/A", "$defs": {"A": {"required": ["a"]}}},
    ):
      tool = Tool("t", "", schema)
      self.assertEqual(read_one(tool, {"a": 1}), {"a": 1})
      for value in (None, [1]):
        self.assertIn("type object", read_one(tool, value).message)


class HostileTest(unittest.TestCase):
  def test_a_pattern_takes_linear_time(self):
    for pattern in ("^(a+)+$", "^(a|aa)+$", "(.*)*b$", r"^(\\w|a)*\u0041$"):
      tool = Tool("t", "", an_object({"a": {"pattern": pattern}}))
      text = {"a": "a" * 20_000 + "!"}
      self.assertIn("must be text", read_one(tool, text).message)

  def test_a_schema_that_grows_without_end_is_given_up(self):
    doubling = {
      f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)
    }
    lists = {
      "d0": {"type": "array", "anyOf": [{"items": {"$ref": "#/$defs/d0"}}] * 2}
    }
    deep: object = 1
    for _ in range(50):
      deep = [deep]
    for defs, last in ((doubling, {}), (lists, {})):
      schema = an_object(
        {"a": {"$ref": "#/$defs/d0"}}, **{"$defs": {**defs, "d30": last}}
      )
      mistake = read_one(Tool("t", "", schema), {"a": [deep, deep]})
      self.assertIn("more than 10,000 steps", mistake.message)

  def test_schemas_that_are_too_deep_or_no_json_are_refused(self):
    deep: dict = {}
    for _ in range(500):
      deep = {"items": deep}
    for rules in (deep, {"maximum": float("nan")}):
      with self.assertRaisesRegex(SchemaFault, "tool 't'"):
        Tool("t", "", an_object({"a": rules}))

  def test_values_are_bounded(self):
    tree = {"name": "a"}
    for _ in range(40):
      tree = {"name": "a", "inner": [tree]}
    mistake = read_one(PYDANTIC, {"tree": tree})
    self.assertIn("nested deeper than 64", mistake.message)
    for text in ("[" * 65 + "1" + "]" * 65, '{"a":' * 65 + "1" + "}" * 65):
      mistake = read_arguments(ToolCall("order", text), (PYDANTIC,))
      self.assertIs(mistake.flaw, Flaw.MALFORMED_JSON)
    many = {"tags": [{"a": n} for n in range(3_000)]}
    self.assertIn("3 items or fewer", read_one(PYDANTIC, many).message)

  @pytest.mark.slow
  @given(
    st.recursive(
      st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
      lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
  )
  def test_any_schema_reads_a_call_or_is_refused(self, rules):
    with contextlib.suppress(SchemaFault):
      read_one(Tool("t", "", an_object({"a": rules})), {"a": 1})


class NamesTest(unittest.TestCase):
  def test_two_tools_of_one_name_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "one name"):
      require_names_apart((SQL, SQL))
