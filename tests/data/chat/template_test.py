"""Pieces of a conversation join to the rendering of the Jinja source."""

import json
import pathlib
import random

import jinja2
from absl.testing import parameterized

from agentrl_jax.data.chat import codec
from agentrl_jax.data.records import (
  Message,
  Tool,
  ToolCall,
  message_to_json,
  tool_to_json,
)
from tests.data.chat.family_template_test import conversation

TOOLS = (
  Tool(
    "execute_sql",
    "Runs it.",
    {
      "type": "object",
      "properties": {"query": {"type": "string", "description": "The SQL."}},
      "required": ["query"],
    },
  ),
  Tool(
    "answer",
    "Says it.",
    {
      "type": "object",
      "properties": {
        "answers": {"type": "array", "items": {"type": "string"}},
        "unit": {"type": "string", "enum": ["m", "km"]},
        "depth": {"type": "integer", "description": "How deep."},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
      },
      "required": ["answers"],
    },
  ),
  Tool("stop", "Stops.", {"type": "object", "properties": {}}),
)

TEMPLATE = codec.CompactTemplate()
SOURCE = pathlib.Path(codec.__file__).parent / "templates/compact.jinja"


def _by_jinja(messages, tools, *, prompt):
  environment = jinja2.Environment()
  environment.filters["tojson"] = json.dumps
  return environment.from_string(SOURCE.read_text()).render(
    messages=[message_to_json(m) for m in messages],
    tools=[tool_to_json(t) for t in tools],
    add_generation_prompt=prompt,
  )


class RenderingTest(parameterized.TestCase):
  @parameterized.parameters(*range(40))
  def test_pieces_equal_the_whole(self, seed):
    opening, turns = conversation(random.Random(seed), calls=2, thinks=False)
    text = TEMPLATE.start(opening, TOOLS)
    said = list(opening)
    self.assertEqual(text, _by_jinja(said, TOOLS, prompt=True))
    for answer, replies in turns:
      text += TEMPLATE.write(answer) + TEMPLATE.extend(
        replies, ended_by=codec.END
      )
      said += [answer, *replies]
      self.assertEqual(text, _by_jinja(said, TOOLS, prompt=True))

  @parameterized.named_parameters(
    ("none", None, "f(): D"),
    ("empty", {}, "f(): D"),
    ("null", {"properties": None, "required": None}, "f(): D"),
    ("true", {"properties": {"a": True}}, "f(a?: any): D"),
    ("false", {"properties": {"a": False}}, "f(a?: false): D"),
    ("no_type", {"properties": {"a": {}}, "required": ["a"]}, "f(a: any): D"),
    (
      "items",
      {"properties": {"a": {"type": "array", "items": True}}},
      "f(a?: array): D",
    ),
    (
      "items_of_items",
      {
        "properties": {
          "a": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer"}},
          }
        }
      },
      "f(a?: integer[][]): D",
    ),
    (
      "types",
      {"properties": {"a": {"type": ["string", "null"]}}},
      'f(a?: {"type": ["string", "null"]}): D',
    ),
    (
      "choices",
      {"properties": {"a": {"enum": ["x", None, 1.5, True, {"b": []}]}}},
      'f(a?: {"enum": ["x", null, 1.5, true, {"b": []}]}): D',
    ),
    (
      "described",
      {"properties": {"a": {"type": "string", "description": None}}},
      "f(a?: string): D",
    ),
    (
      "references",
      {
        "$defs": {"N": {"items": {"$ref": "#/$defs/N"}}},
        "properties": {"a": {"$ref": "#/$defs/N"}},
      },
      'f(a?: {"$ref": "#/$defs/N"}): D\n'
      '- $defs: {"N": {"items": {"$ref": "#/$defs/N"}}}',
    ),
    (
      "others",
      {"type": "object", "additionalProperties": True, "title": "F"},
      "f(): D\n- additionalProperties: true",
    ),
    ("no_others", {"additionalProperties": False}, "f(): D"),
    (
      "others_of_any_kind",
      {"additionalProperties": {}},
      "f(): D\n- additionalProperties: {}",
    ),
    (
      "union",
      {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
      'f(): D\n- anyOf: [{"required": ["a"]}, {"required": ["b"]}]',
    ),
  )
  def test_schemas_as_people_have_them(self, parameters, wanted):
    asked, tools = [Message("user", "hi")], [Tool("f", "D", parameters)]
    text = TEMPLATE.start(asked, tools)
    self.assertEqual(text, f"<|user|>hi\n{wanted}<|end|><|assistant|>")
    self.assertEqual(text, _by_jinja(asked, tools, prompt=True))

  def test_an_answer_cut_short_is_ended(self):
    replies = [Message("user", "go on")]
    self.assertEqual(
      TEMPLATE.extend(replies, ended_by=None),
      codec.END + TEMPLATE.extend(replies, ended_by=codec.END),
    )

  def test_tools_are_complete(self):
    text = TEMPLATE.start([Message("system", "S")], TOOLS)
    for tool in TOOLS:
      self.assertIn(tool.description, text)
      for name, schema in tool.parameters["properties"].items():
        self.assertIn(name, text)
        self.assertIn(schema.get("description", ""), text)
    self.assertIn("answers: string[]", text)
    self.assertIn('"enum": ["m", "km"]', text)
    self.assertIn("depth?: integer", text)

  def test_nothing_to_start_with(self):
    with self.assertRaisesRegex(ValueError, "at least one message"):
      TEMPLATE.start([], TOOLS)


class ParsingTest(parameterized.TestCase):
  def test_reads_what_it_writes(self):
    calls = (
      ToolCall("execute_sql", '{"query": "SELECT 1"}', "0"),
      ToolCall("stop", "{}", "1"),
    )
    for message in (
      Message("assistant", "thinking", calls),
      Message("assistant", "only text"),
      Message("assistant", "", calls[:1]),
    ):
      self.assertEqual(
        TEMPLATE.read(TEMPLATE.write(message), codec.END), message
      )

  def test_arguments_may_be_text(self):
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    (call,) = TEMPLATE.read(text, None).tool_calls
    self.assertEqual(json.loads(call.arguments), {"a": 1})

  @parameterized.named_parameters(
    ("not_json", "<tool_call>{oops</tool_call>", "{oops"),
    ("no_name", '<tool_call>{"x": 1}</tool_call>', '{"x": 1}'),
    ("name_is_no_text", '<tool_call>{"name": 3}</tool_call>', '{"name": 3}'),
    ("a_list", "<tool_call>[1]</tool_call>", "[1]"),
    ("empty", "<tool_call></tool_call>", ""),
    ("deep", "<tool_call>" + "[" * 10**5 + "</tool_call>", "[" * 10**5),
  )
  def test_malformed_call_is_kept_as_it_is(self, text, raw):
    (call,) = TEMPLATE.read(text, None).tool_calls
    self.assertEqual((call.name, call.arguments), ("", raw))

  def test_call_without_an_end(self):
    message = TEMPLATE.read('hm <tool_call>{"name": "stop"}', None)
    self.assertEqual(message.content, "hm ")
    self.assertEqual(message.tool_calls[0].name, "stop")
