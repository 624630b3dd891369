"""Answers that the grammars of tool calls allow, and those they do not."""

import dataclasses

import numpy as np
from absl.testing import parameterized

from agentrl_jax.data.chat.call_grammar import CallGrammar
from agentrl_jax.data.chat.dialects import Glm4
from agentrl_jax.data.records import Tool
from agentrl_jax.env.tools import read_arguments
from agentrl_jax.errors import ConfigError
from tests.data.chat import families
from tests.data.grammar import call_grammars
from tests.data.grammar.calling import (
  ALL,
  STOP,
  TOOLS,
  XML,
  Calling,
  codec,
  codec_of_folder,
  grammars,
  said,
)


def calls_per_answer(name) -> int:
  return 1 if "llama" in name or "gptoss" in name else 2


SET = Tool(
  "set",
  "Sets it.",
  {
    "type": "object",
    "properties": {
      "code": {"type": "string", "maxLength": 4},
      "größe": {"type": "integer"},
      "color": {"enum": ["red", "3", "</tool_call>"]},
      "deep": {"type": "boolean"},
      "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
      "inner": {
        "type": "object",
        "properties": {"it's": {"type": "number"}, 'q"': {"type": "string"}},
        "required": ["it's"],
        "additionalProperties": False,
      },
    },
    "required": ["deep"],
    "additionalProperties": False,
  },
)


class CallGrammarTest(Calling):
  @parameterized.parameters(*ALL)
  def test_what_the_template_writes(self, name):
    one, stop = ("add", '{"a": 1, "b": [{"c": "é"}, {}]}'), ("stop", "{}")
    text = said(content="Well, {that} is\n3.")
    for answer in (said(one), said(stop), said(("add", '{\n "a":-5}'))):
      self.assertTrue(self.allows(name, answer))
      self.assertTrue(self.allows(name, answer, choice="required"))
      self.assertTrue(self.allows(name, answer, parallel=False))
    self.assertTrue(self.allows(name, text))
    self.assertFalse(self.allows(name, text, choice="required"))
    if calls_per_answer(name) > 1:
      two = said(one, stop)
      self.assertTrue(self.allows(name, two, choice="required"))
      self.assertFalse(self.allows(name, two, parallel=False))
      self.assertTrue(self.allows(name, said(one, stop, content="So")))
      self.assertFalse(
        self.allows(name, said(one, content="So"), choice="required")
      )

  @parameterized.product(
    name=ALL,
    call=(
      ("sub", '{"a": 1}'),
      ("add", '{"a": "1"}'),
      ("add", "{}"),
      ("add", '{"a": 1, "c": 2}'),
      ("add", '{"a": 1, "b": [{"d": 1}]}'),
      ("stop", '{"a": 1}'),
    ),
  )
  def test_what_no_tool_takes(self, name, call):
    for choice in ("auto", "required"):
      self.assertFalse(self.allows(name, said(call), choice=choice))

  @parameterized.parameters(*ALL, *XML)
  def test_random_answers_are_calls_of_the_tools(self, name):
    rng = np.random.default_rng(0)
    walker = call_grammars.Walker(codec(name), grammars(name))
    tools, calls = (SET, STOP), []
    grammar = codec(name).call_grammar(tools, choice="required")
    for _ in range(12):
      ids = walker.answer(rng, grammar)
      calls += codec(name).read(ids, tools).tool_calls if ids else ()
    self.assertGreater(len(calls), 4)
    for call in calls:
      self.assertIsInstance(read_arguments(call, tools), dict, call)

  @parameterized.parameters(*ALL)
  def test_a_random_text_is_read_as_text(self, name):
    rng = np.random.default_rng(2)
    walker = call_grammars.Walker(codec(name), grammars(name))
    for _ in range(20):
      ids = walker.answer(rng, codec(name).call_grammar([]))
      self.assertEmpty(codec(name).read(ids).tool_calls)


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"type": "string"}, "the type is 'string'"),
    ({"properties": {"a": {"type": "any"}}}, "Invalid type: any"),
    ({"not": {"type": "object"}}, 'Unimplemented keys: ."not"'),
  )
  def test_schema_that_no_grammar_is_made_of(self, schema, why):
    with self.assertRaisesRegex(ConfigError, f"tool 'look'.*{why}"):
      codec("compact").call_grammar(
        [STOP, Tool("look", "", schema)], strict=("look",)
      )

  def test_name_that_a_family_cannot_write(self):
    with self.assertRaisesRegex(ConfigError, "'look up'.*rename"):
      codec("small_glm4").call_grammar([Tool("look up", "", {})])
    codec("compact").call_grammar([Tool("look up", "", {})])
    for name in ("", 'look"', "look\n"):
      with self.assertRaisesRegex(ConfigError, "rename"):
        codec("compact").call_grammar([Tool(name, "", {})])

  def test_model_that_does_not_stop_where_calls_end(self):
    family, source = families.templates()["small_glm4"]
    stops = ("<|endoftext|>", "<|user|>")
    codec = codec_of_folder(dataclasses.replace(family, stops=stops), source)
    with self.assertRaisesRegex(ConfigError, r"observation.*eos_token_id"):
      codec.call_grammar([STOP])

  def test_glm_without_a_token_that_begins_a_turn(self):
    family, source = families.templates()["small_qwen25"]
    codec = codec_of_folder(family, source)
    form = dataclasses.replace(Glm4.form, stop="")
    grammar = CallGrammar(form, codec._tokenizer, ("<|im_end|>",))
    with self.assertRaisesRegex(ConfigError, r"no tokens for.*<\|assistant"):
      grammar.of_calls([STOP], choice="auto", parallel=True)

  def test_another_form_over_a_template_that_begins_thoughts(self):
    family, own = families.templates()["small_glm45"]
    for name in ("hermes", "llama"):
      codec = codec_of_folder(family, families.named(name, family, own))
      ids = codec.write(said(("add", '{"a": 1}'), ("stop", "{}")))
      self.assertLen(codec.read(ids).tool_calls, 2)
      self.assertStartsWith(codec.decode(ids), "\n<think></think>\n")
      grammar = codec.call_grammar(TOOLS, choice="required")
      read = codec.grammars(codec.vocab_size)
      self.assertTrue(call_grammars.allows(read, grammar, ids))

  @parameterized.parameters("small_qwen25", "named_llama")
  def test_compact_calls_are_what_the_template_writes(self, name):
    chat = codec(name)
    form = dataclasses.replace(chat._template.form, compact=True)
    writer = CallGrammar(form, chat._tokenizer, chat._template.stops)
    grammar = writer.of_calls(TOOLS, choice="required", parallel=False)
    call = chat.write(said(("add", '{"a": 1, "b": [{"c": "é, ü:"}, {}]}')))
    text = chat.decode(call)
    self.assertTrue(call_grammars.allows(grammars(name), grammar, call))
    for old, new in ((": 1", ":1"), ("1, ", "1,"), ("{}]", "{} ]")):
      ids = chat.encode(text.replace(old, new))
      self.assertFalse(call_grammars.allows(grammars(name), grammar, ids), new)

  def test_template_that_shows_no_tools(self):
    family, _ = families.templates()["named_hermes"]
    codec = codec_of_folder(family, families.named("plain"))
    codec.call_grammar([])
    with self.assertRaisesRegex(ConfigError, "set chat.template=hermes"):
      codec.call_grammar([STOP])

  def test_form_that_no_grammar_holds(self):
    codec("small_gemma4").call_grammar([])
    with self.assertRaisesRegex(ConfigError, "sampling.calls=free"):
      codec("small_gemma4").call_grammar([STOP])


class JsonGrammarTest(Calling):
  SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
  }

  @parameterized.parameters(*ALL)
  def test_the_answer_is_json(self, name):
    grammar = codec(name).json_grammar(self.SCHEMA)
    head = codec(name)._template.form.text_head
    ends = codec(name).write(said(content="x"))[-1:]
    for text, allowed in (
      ('{"n": 3}', True),
      ('\n{\n  "n": 3, "more": []\n}', True),
      ('{"n": 3} so', False),
      ("3", False),
    ):
      before = codec(name)._before_answer
      answer = codec(name).encode(head + text, after=before)
      ids = np.concatenate([answer, ends])
      found = call_grammars.allows(grammars(name), grammar, ids)
      self.assertEqual(found, allowed, text)

  def test_schema_that_no_grammar_is_made_of(self):
    with self.assertRaisesRegex(ConfigError, "look-around"):
      codec("compact").json_grammar({"type": "string", "pattern": "(?=a)"})
