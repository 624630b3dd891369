"""Answers that the grammars of tool calls allow, and those they do not."""

import dataclasses
import functools
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.data.chat import ChatCodec
from agentrl_jax.data.messages import Message, Tool, ToolCall
from agentrl_jax.data.pretrained_chat import ChatConfig, load_chat
from agentrl_jax.data.tokenizer import train_tokenizer
from agentrl_jax.errors import ConfigError
from tests.data import call_grammars, families
from tests.data.family_template_test import NAMES, codec_of

ADD = Tool(
  "add",
  "Adds.",
  {
    "type": "object",
    "properties": {
      "a": {"type": "integer", "description": "The first."},
      "b": {
        "type": "array",
        "items": {"type": "object", "properties": {"c": {"type": "string"}}},
      },
    },
    "required": ["a"],
  },
)
STOP = Tool("stop", "Stops.", {})
TOOLS = (ADD, STOP)
ALL = ("compact", *NAMES)


@functools.cache
def codec(name) -> ChatCodec:
  if name != "compact":
    return codec_of(name)
  return ChatCodec(train_tokenizer(families.TEXTS, vocab_size=300))


@functools.cache
def grammars(name):
  return codec(name).grammars(codec(name).vocab_size + 40)


def codec_whose_cue_thinks(has_tags) -> ChatCodec:
  """Qwen3's with the thought begun, perhaps in a tokenizer without its tags."""
  family, source = families.templates()["small_qwen3"]
  if not has_tags:
    family = dataclasses.replace(family, tags=family.tags[:2])
  cue = "'<|im_start|>assistant\\n' }}\n    {%- if enable_thinking"
  thinking = cue.replace("\\n' }}", "\\n<think>\\n' }}")
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    families.write_folder(path, family, source.replace(cue, thinking))
    return load_chat(path, ChatConfig())


def calls_per_answer(name) -> int:
  return 1 if "llama" in name else 2


def said(*calls, content=""):
  made = tuple(ToolCall(f, text, str(n)) for n, (f, text) in enumerate(calls))
  return Message("assistant", content, made)


class Grammar(parameterized.TestCase):
  def allows(self, name, answer, tools=TOOLS, **options) -> bool:
    """Whether the grammar has the answer, given as a message or as text."""
    is_text = isinstance(answer, str)
    ids = codec(name).encode(answer) if is_text else codec(name).write(answer)
    grammar = codec(name).call_grammar(tools, **options)
    return call_grammars.allows(grammars(name), grammar, ids)


class CallGrammarTest(Grammar):
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

  @parameterized.parameters(*ALL)
  def test_random_answers_are_calls_of_the_tools(self, name):
    rng = np.random.default_rng(0)
    walker = call_grammars.Walker(codec(name), grammars(name))
    num_ended = num_calls = 0
    for n in range(16):
      tools = call_grammars.some_tools(rng)
      choice = "required" if n % 4 else "auto"
      grammar = codec(name).call_grammar(tools, choice=choice)
      ids = walker.answer(rng, grammar)
      if ids is None:
        continue
      num_ended += 1
      calls = codec(name).read(ids).tool_calls
      num_calls += len(calls)
      self.assertTrue(calls or choice == "auto")
      schemas = {tool.name: tool.parameters for tool in tools}
      for call in calls:
        self.assertIn(call.name, schemas)
        value = json.loads(call.arguments)
        self.assertTrue(
          call_grammars.keeps_to(value, schemas[call.name]),
          (call, schemas[call.name]),
        )
    self.assertGreater(num_ended, 8)
    self.assertGreater(num_calls, 8)

  @parameterized.parameters(*ALL)
  def test_random_calls_are_answers(self, name):
    rng = np.random.default_rng(1)
    for _ in range(16):
      tools = call_grammars.some_tools(rng)
      made = rng.choice(len(tools), rng.integers(1, calls_per_answer(name) + 1))
      calls = [
        (tools[n].name, call_grammars.call_text(rng, tools[n].parameters))
        for n in made
      ]
      answer = said(*calls)
      self.assertTrue(
        self.allows(name, answer, tools, choice="required"), answer
      )

  @parameterized.parameters(*ALL)
  def test_a_random_text_is_read_as_text(self, name):
    rng = np.random.default_rng(2)
    walker = call_grammars.Walker(codec(name), grammars(name))
    for _ in range(20):
      ids = walker.answer(rng, codec(name).call_grammar([]))
      self.assertEmpty(codec(name).read(ids).tool_calls)


class FamiliesTest(Grammar):
  """What looks like a call, and where each family ends an answer."""

  @parameterized.parameters(
    ("hello<|user|>", True),
    ("hello<|endoftext|>", True),
    ("hello<|observation|>", False),
    ("\nadd\nis what I do<|user|>", True),
    ("so<|assistant|>stop\n{}<|observation|>", True),
    ("stop\n{}<|user|>", False),
    ("sub\n{<|user|>", False),
    ("sub \t\n \x1c{<|user|>", False),
    ("<think>\n</think>sub\n{<|user|>", False),
    ("so<|assistant|>sub\n{}<|observation|>", False),
    ("so<|assistant|>what<|user|>", False),
  )
  def test_glm(self, answer, allowed):
    self.assertEqual(self.allows("small_glm4", answer), allowed)

  @parameterized.parameters(
    (" hello {<|eot_id|>", True),
    ('{"name": "stop", "parameters": {}}<|eot_id|>', True),
    ('<|python_tag|>{"name": "stop", "parameters": {}}<|eom_id|>', True),
    ('{"name": "stop", "parameters": {}}; ' * 2 + "<|eot_id|>", False),
    (
      "; ".join(['{"name": "stop", "parameters": {}}'] * 2) + "<|eot_id|>",
      True,
    ),
    ('{"name": 3}<|eot_id|>', False),
    ('\x1c\u2003{"name": 3}<|eot_id|>', False),
    ('<think></think>{"name": 3}<|eot_id|>', False),
    ("<|python_tag|>print(1)<|eot_id|>", False),
    ('so {"name": "stop", "parameters": {}}<|eot_id|>', True),
  )
  def test_llama(self, answer, allowed):
    self.assertEqual(self.allows("small_llama31", answer), allowed)

  @parameterized.parameters(
    ("<think>\nhm\n</think>\n\nYes.<|im_end|>", "auto", True),
    ("<think>\nhm<|im_end|>", "auto", False),
    ("<think><tool_call></think>Yes.<|im_end|>", "auto", False),
    ("Yes. <think>hm</think><|im_end|>", "auto", False),
    ("<think>\nhm\n</think>\n\n@<|im_end|>", "required", True),
    ("<think>\nhm\n</think>@<|im_end|>", "required", True),
    ("@<|im_end|>", "required", True),
    ("@\n@<|im_end|>", "required", True),
    ("@@<|im_end|>", "required", False),
    ("Yes.@<|im_end|>", "auto", True),
    ("@Yes.<|im_end|>", "auto", False),
    ("<tool_call>\n{<|im_end|>", "auto", False),
  )
  def test_qwen3(self, answer, choice, allowed):
    call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    found = self.allows("small_qwen3", answer.replace("@", call), choice=choice)
    self.assertEqual(found, allowed)

  @parameterized.parameters("tags", "no_tags")
  def test_thought_that_the_cue_begins(self, tags):
    codec = codec_whose_cue_thinks(tags == "tags")
    grammar = codec.call_grammar(TOOLS)
    call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    for answer, allowed in (
      (f"hm\n</think>\n\nYes.\n{call}", True),
      (f"hm</think>{call}", True),
      ("hm\n</think>", True),
      ("hm", False),
      (call, False),
    ):
      ids = codec.encode(f"{answer}<|im_end|>")
      read = codec.grammars(codec.vocab_size)
      found = call_grammars.allows(read, grammar, ids)
      self.assertEqual(found, allowed, answer)
      called = len(codec.read(ids).tool_calls)
      self.assertEqual(called, int(allowed and call in answer))


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(
    ({"type": "string"}, "the type is 'string'"),
    ({"properties": {"a": {"type": "any"}}}, "Invalid type: any"),
    ({"not": {"type": "object"}}, 'Unimplemented keys: \\["not"\\]'),
  )
  def test_schema_that_no_grammar_is_made_of(self, schema, why):
    with self.assertRaisesRegex(ConfigError, f"tool 'look'.*{why}"):
      codec("compact").call_grammar([STOP, Tool("look", "", schema)])

  def test_name_that_a_family_cannot_write(self):
    with self.assertRaisesRegex(ConfigError, "'look up'.*rename"):
      codec("small_glm4").call_grammar([Tool("look up", "", {})])
    codec("compact").call_grammar([Tool("look up", "", {})])

  def test_choice(self):
    for tools, choice in ((TOOLS, "none"), ((), "required")):
      with self.assertRaisesRegex(ConfigError, f"choice='{choice}'"):
        codec("compact").call_grammar(tools, choice=choice)


class JsonGrammarTest(Grammar):
  SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
  }

  @parameterized.parameters(*ALL)
  def test_the_answer_is_json(self, name):
    grammar = codec(name).json_grammar(self.SCHEMA)
    ends = codec(name).write(said(content="x"))[-1:]
    for text, allowed in (
      ('{"n": 3}', True),
      ('\n{\n  "n": 3, "more": []\n}', True),
      ('{"n": 3} so', False),
      ("3", False),
    ):
      ids = np.concatenate([codec(name).encode(text), ends])
      found = call_grammars.allows(grammars(name), grammar, ids)
      self.assertEqual(found, allowed, text)

  def test_schema_that_no_grammar_is_made_of(self):
    with self.assertRaisesRegex(ConfigError, "look-around"):
      codec("compact").json_grammar({"type": "string", "pattern": "(?=a)"})


if __name__ == "__main__":
  absltest.main()
