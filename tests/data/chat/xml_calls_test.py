"""Calls without JSON: arguments are texts between tags, typed by schemas."""

import json

from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.data.chat.xml_calls import GLM_45, QWEN_CODER
from agentrl_jax.data.records import Tool, ToolCall
from agentrl_jax.errors import ConfigError, MessageFault
from tests.data.chat import families
from tests.data.grammar import call_grammars
from tests.data.grammar.calling import Calling, codec, grammars, said

SMALL = ("small_qwen_coder", "small_glm45")
ITEM = {"type": "object", "properties": {"c": {"type": "string"}}}
FIND = Tool(
  "find",
  "Finds.",
  {
    "type": "object",
    "properties": {
      "text": {"type": "string"},
      "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "color": {"enum": ["red", "dark blue"]},
      "code": {"$ref": "#/$defs/code"},
      "n": {"type": "integer"},
      "x": {"type": "number"},
      "deep": {"type": "boolean"},
      "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "required": ["text"],
    "$defs": {"code": {"type": "string", "maxLength": 3}, "item": ITEM},
  },
)
STOP = Tool("stop", "Stops.", {})
TOOLS = (FIND, STOP)
# What could end a value, a call or a thought, or be taken for another type.
TEXTS = st.lists(
  st.sampled_from(
    [
      "null",
      "None",
      "3",
      "true",
      '"',
      "[1]",
      "{}",
      "\n",
      " ",
      "é",
      "<",
      "</tool_call>",
      "<tool_call>",
      "</function>",
      "<think>",
      "</think>",
      "<parameter=n>",
      "<arg_key>",
      "<|im_end|>",
      "a b",
    ]
  ),
  max_size=4,
).map("".join)
NULL = ("null", "None")
ARGUMENTS = st.fixed_dictionaries(
  {"text": TEXTS},
  optional={
    "note": st.none() | TEXTS.filter(lambda t: t.strip() not in NULL),
    "color": st.sampled_from(["red", "dark blue"]),
    "code": st.sampled_from(["", "a\nb", "3", "é"]),
    "n": st.integers(-(2**40), 2**40),
    "x": st.sampled_from([0.5, -3, 1e22]),
    "deep": st.booleans(),
    "items": st.lists(st.just({}) | st.builds(dict, c=TEXTS), max_size=2),
  },
)


def in_order(arguments):
  """The arguments in the order in which the schema lists them."""
  return {
    k: arguments[k] for k in FIND.parameters["properties"] if k in arguments
  }


class XmlCallsTest(Calling):
  @settings(max_examples=60, deadline=None, derandomize=True)
  @given(ARGUMENTS, st.sampled_from(SMALL), st.sampled_from(["", "so", "a\nb"]))
  def test_what_is_written_is_read_and_allowed(self, arguments, name, content):
    arguments = json.dumps(in_order(arguments), ensure_ascii=False)
    answer = said(("find", arguments), ("stop", "{}"), content=content)
    ids = codec(name).write(answer)
    find, stop = codec(name).read(ids, TOOLS).tool_calls
    self.assertEqual((find.name, stop), ("find", ToolCall("stop", "{}", "1")))
    self.assertEqual(json.loads(find.arguments), json.loads(arguments))
    for choice, wanted in (("auto", True), ("required", not content)):
      grammar = codec(name).call_grammar(TOOLS, choice=choice)
      found = call_grammars.allows(grammars(name), grammar, ids)
      self.assertEqual(found, wanted, answer)

  @settings(max_examples=120, deadline=None, derandomize=True)
  @given(
    st.lists(
      st.sampled_from(
        [
          "<tool_call>",
          "</tool_call>",
          "\n",
          "\n<function=stop>\n",
          "</function>\n",
          "\n<function=find>\n",
          "stop\n",
          "find\n",
          "<parameter=text>\n",
          "\n</parameter>\n",
          "<parameter=n>\n",
          "3",
          "<arg_key>text</arg_key>\n<arg_value>",
          "</arg_value>\n",
          "a",
          "\n<tool_call>\n<function=stop>\n</function>\n</tool_call>",
          "<tool_call>stop\n</tool_call>",
          "<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>",
          "<tool_call>\n<function=find>\n<parameter=text>\n",
        ]
      ),
      max_size=7,
    ).map("".join),
    st.sampled_from(SMALL),
  )
  def test_calls_that_are_read_are_calls_that_are_allowed(self, text, name):
    end = "<|im_end|>"
    calls_at = text.find("<tool_call>")
    if name == "small_glm45":
      end = "<|user|>" if calls_at < 0 else "<|observation|>"
    ids = codec(name).encode(text + end)
    read = codec(name).read(ids, TOOLS)
    tags = families.SMALL[name.removeprefix("small_")].tags
    before = text[:calls_at] if calls_at >= 0 else text
    canonical = not any(tag in before for tag in tags)
    if read.tool_calls and canonical:
      canonical = all(self.fits(call) for call in read.tool_calls)
    if read.tool_calls and canonical:
      made = [(call.name, call.arguments) for call in read.tool_calls]
      again = list(codec(name).write(said(*made)))
      call = int(codec(name).encode("<tool_call>")[0])
      canonical = (
        list(ids)[list(ids).index(call) :] == again[again.index(call) :]
      )
    self.assertEqual(self.allows(name, text + end, TOOLS), canonical, text)

  @parameterized.parameters(
    ("text", "a", True),
    ("text", "a</parameter", True),
    ("text", "a</parameter>", False),
    ("text", "a\n</parameter>\n<parameter=text>\nb", False),
    ("text", "a\n</parameter>\n</function>\n</tool_call>\n", False),
    ("note", "null", True),
    ("note", "None", True),
    ("note", "nil", True),
    ("note", " null", False),  # which is read as null
    ("note", "None\n", False),
    ("color", "dark blue", True),
    ("color", "dark", False),
    ("code", "abc", True),
    ("code", "abcd", False),
    ("n", "3", True),
    ("n", '"3"', False),
    ("deep", "True", True),
    ("deep", "true", True),
    ("deep", "yes", False),
  )
  def test_values_that_are_allowed(self, key, value, allowed):
    text = "<parameter=text>\na\n</parameter>\n" if key != "text" else ""
    answer = (
      f"<tool_call>\n<function=find>\n{text}<parameter={key}>\n{value}\n"
      "</parameter>\n</function>\n</tool_call><|im_end|>"
    )
    found = self.allows("small_qwen_coder", answer, TOOLS)
    self.assertEqual(found, allowed)

  def fits(self, call: ToolCall) -> bool:
    arguments = json.loads(call.arguments) if call.name else None
    if call.name == "stop":
      return arguments == {}
    return (
      call.name == "find"
      and isinstance(arguments.get("text"), str)
      and arguments.keys() <= {"text", "n"}
      and isinstance(arguments.get("n", 0), int)
    )

  @parameterized.parameters(
    ({"type": "integer"}, "3", "3"),
    ({"type": "integer"}, " 3\n", "3"),
    ({"type": "integer"}, "three", '"three"'),
    ({"type": "number"}, "1.10", "1.10"),
    ({"type": "string"}, "3", '"3"'),
    ({"type": "string"}, " a\n", '" a\\n"'),
    ({"type": "string"}, "null", '"null"'),
    ({"type": ["string", "null"]}, "null", "null"),
    ({"type": ["string", "null"]}, "None", "null"),
    ({"type": "boolean"}, "True", "true"),
    ({"type": "boolean"}, "false", "false"),
    ({"type": "string"}, "True", '"True"'),
    ({"enum": ["3", "4"]}, "3", '"3"'),
    ({"type": ["string", "integer"]}, "3", "3"),
    (
      {"type": "array"},
      '["</parameter></arg_value>", 1.0]',
      '["</parameter></arg_value>", 1.0]',
    ),
    ({"type": "integer"}, "[3]", '"[3]"'),
    ({"type": "array"}, "3", '"3"'),
    ({"type": "object"}, '{"a": NaN}', '"{\\"a\\": NaN}"'),
    ({"$ref": "#/properties/v"}, "3", "3"),
    ({}, "3", "3"),
    ({}, "a", '"a"'),
  )
  def test_schemas_decide_what_values_are(self, schema, text, value):
    tool = Tool("f", "", {"properties": {"v": schema}})
    for form, written in (
      (
        QWEN_CODER,
        f"<tool_call><function=f><parameter=v>\n{text}\n</parameter></function></tool_call>",
      ),
      (
        GLM_45,
        f"<tool_call>f<arg_key>v</arg_key><arg_value>{text}</arg_value></tool_call>",
      ),
    ):
      read = form.read(f"so{written}", None, [tool])
      self.assertEqual(read, said(("f", f'{{"v": {value}}}'), content="so"))

  @parameterized.parameters(
    "<function=f><parameter=v>1</parameter><parameter=v>2</parameter></function>",
    "<function=f><parameter=v>1</function>",
    "<function=f>1</function>",
    "<function=>\n</function>",
    '{"name": "f", "arguments": {}}',
    "f",
    "",
  )
  def test_malformed_calls(self, call):
    tool = Tool("f", "", {"properties": {"v": {"type": "integer"}}})
    read = QWEN_CODER.read(f"<tool_call>{call}</tool_call>", None, [tool])
    self.assertEqual(read, said(("", call)))
    glm = call.replace("<function=f>", "f").replace("</function>", "")
    for xml, tags in (
      ("parameter=v>", "arg_key>v</arg_key><arg_value>"),
      ("/parameter", "/arg_value"),
    ):
      glm = glm.replace(xml, tags)
    if "<function" not in call or call.count("<") > 2:
      read = GLM_45.read(f"<tool_call>{glm or ' '}</tool_call>", None, [tool])
      self.assertEqual(
        [c.name for c in read.tool_calls], [""] if glm != "f" else ["f"]
      )

  def test_what_the_form_cannot_write_costs_a_message(self):
    ends = json.dumps({"text": "</parameter></arg_value>"})
    of_words = ("small_gptoss", "small_deepseek3", "small_deepseek31")
    for names, call in (
      (SMALL, ("find", '{"a<": 1}')),
      (SMALL, ("find", "[]")),
      (SMALL, ("find", "{")),
      ((*SMALL, *of_words), ("find it", "{}")),
      (["small_qwen_coder"], ("find", ends)),
    ):
      for name in names:
        with self.assertRaisesRegex(MessageFault, "cannot be written"):
          codec(name).write(said(call))
    ids = codec("small_glm45").write(
      said(("find", ends))
    )  # whose end is a token
    (call,) = codec("small_glm45").read(ids, TOOLS).tool_calls
    self.assertEqual(call.arguments, ends)

  @parameterized.parameters(
    ({"type": ["string", "integer"]}, "text or .*integer.*one type"),
    ({"type": "string", "pattern": "a"}, "keeps to pattern"),
    ({"type": "string", "format": "date"}, "keeps to format"),
    ({"type": "integer", "multipleOf": "a"}, "argument|multipleOf"),
  )
  def test_schemas_that_no_grammar_keeps_to(self, schema, why):
    for name in SMALL:
      with self.assertRaisesRegex(ConfigError, f"tool 'f'.*({why})"):
        tool = Tool("f", "", {"properties": {"v": schema}})
        codec(name).call_grammar([tool], strict=("f",))

  def test_schemas_that_need_not_be_exact(self):
    for name in SMALL:
      for schema, arguments in (
        ({"properties": {"v": {"type": ["string", "integer"]}}}, {"v": "a"}),
        ({"properties": {"v": {"pattern": "(?=a)"}, "<": {}}}, {"v": "a"}),
        ({"properties": {"v": {"type": "string", "format": "date"}}}, {}),
        ({"additionalProperties": {"type": "string"}}, {"a": "1", "b": "2"}),
      ):
        call = said(("f", json.dumps(arguments)))
        for tool, ok in ((Tool("f", "", schema), True), (Tool("g", "", {}), 0)):
          self.assertEqual(self.allows(name, call, [tool]), ok, (name, schema))

  def test_names_that_the_form_cannot_write(self):
    for name in SMALL:
      for tool in (
        Tool("a b", "", {}),
        Tool("f", "", {"properties": {"<": {"type": "null"}}}),
      ):
        with self.assertRaisesRegex(ConfigError, "rename"):
          codec(name).call_grammar([tool], strict=("f",))
