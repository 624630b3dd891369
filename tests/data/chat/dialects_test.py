"""Answers of policies, valid or not, are parsed as calls or as text."""

from absl.testing import absltest, parameterized

from agentrl_jax.data.chat import dialects
from agentrl_jax.data.records import Message, ToolCall
from tests.data.chat import families

LOOK = '{"name": "look", "parameters": {"at": "é"}}'
# A number with more digits than Python reads.
LONG = f'{{"name": "f", "parameters": {{"a": {"1" * 5000}}}}}'
NEXT, JSON = "<|start|>assistant", "<|constrain|>json<|message|>"
THOUGHT = f"<|channel|>analysis<|message|>hm<|end|>{NEXT}"
HM = "<think>hm</think>"
FINAL = "<|channel|>final<|message|>"
COMMENTARY = "<|channel|>commentary"
CALL, NAMED = f"{COMMENTARY} to=functions.", f"{COMMENTARY} json<|message|>"
NESTED = "f {<|channel|>1}"
DEEP = "[" * 100_000
GLM = dialects.Glm4._OBSERVATION


def said(content: str, *calls: tuple[str, str]) -> Message:
  made = tuple(ToolCall(*call, str(n)) for n, call in enumerate(calls))
  return Message("assistant", content, made)


CALLED_TWICE = said("", ("", 'f {"a":1,"a":2}'))


class ReadingTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("text", "hello", said("hello")),
    ("json_that_is_no_call", '{"a": 1}', said('{"a": 1}')),
    ("one", LOOK, said("", ("look", '{"at": "é"}'))),
    ("tagged", f"<|python_tag|>{LOOK}", said("", ("look", '{"at": "é"}'))),
    ("spaced", f"\n {LOOK}\n", said("", ("look", '{"at": "é"}'))),
    (
      "two",
      f"{LOOK}; {LOOK}",
      said("", ("look", '{"at": "é"}'), ("look", '{"at": "é"}')),
    ),
    (
      "arguments_by_their_other_name",
      '{"name": "f", "arguments": {}}',
      said("", ("f", "{}")),
    ),
    ("no_arguments", '{"name": "f"}', said("", ("f", "{}"))),
    (
      "cut_short",
      '{"name": "look", "para',
      said("", ("", '{"name": "look", "para')),
    ),
    (
      "one_and_a_half",
      f"{LOOK} oh",
      said("", ("look", '{"at": "é"}'), ("", "oh")),
    ),
    ("name_is_no_text", '{"name": 3}', said("", ("", '{"name": 3}'))),
    ("python", "<|python_tag|>look(1)", said("", ("", "look(1)"))),
    ("empty_tag", "<|python_tag|>", said("", ("", ""))),
    ("endless_number", LONG, said("", ("", LONG))),
  )
  def test_llama(self, text, message):
    self.assertEqual(dialects.Llama().read(text, "<|eot_id|>"), message)

  @parameterized.named_parameters(
    ("text", "hello\nyou", None, said("hello\nyou")),
    ("one", 'look\n{"at": "é"}', GLM, said("", ("look", '{"at": "é"}'))),
    ("blank", 'look \n{"a": 1}\n', GLM, said("", ("look", '{"a": 1}'))),
    (
      "text_and_two",
      "so<|assistant|>f\n{}<|assistant|>g\n{}",
      GLM,
      said("so", ("f", "{}"), ("g", "{}")),
    ),
    ("two_texts", "so<|assistant|>\nwhat", None, said("sowhat")),
    ("no_json", "look\n{at", GLM, said("", ("", "look\n{at"))),
    (
      "wants_a_reply_to_nothing",
      "look it up",
      GLM,
      said("", ("", "look it up")),
    ),
    ("endless_number", f"f\n{LONG}", GLM, said("", ("", f"f\n{LONG}"))),
    ("nan", 'f\n{"a": NaN}', GLM, said("", ("", 'f\n{"a": NaN}'))),
    (
      "twice",
      'f\n{"a": 1, "a": 2}',
      GLM,
      said("", ("", 'f\n{"a": 1, "a": 2}')),
    ),
    ("json_in_text", 'see:\nthis {"a": 1}', None, said('see:\nthis {"a": 1}')),
  )
  def test_glm(self, text, ended_by, message):
    self.assertEqual(dialects.Glm4().read(text, ended_by), message)

  @parameterized.named_parameters(
    ("text", f"{FINAL}hi\n", said("hi\n")),
    ("thought", f"{THOUGHT}{FINAL}hi", said("<think>hm</think>hi")),
    ("call", f" to=functions.f{NAMED}{{}}", said("", ("f", "{}"))),
    ("called_late", f"{CALL}f {JSON}{{}}", said("", ("f", "{}"))),
    ("no_space", f"{CALL}f{JSON}{{}}", said("", ("f", "{}"))),
    ("in_a_thought", f"{THOUGHT}{CALL}f {JSON}{{}}", said(HM, ("f", "{}"))),
    (
      "preamble",
      f"{COMMENTARY}<|message|>so<|end|>{NEXT}{CALL}f {JSON}{{}}",
      said("so", ("f", "{}")),
    ),
    (
      "two",
      f"{CALL}f {JSON}{{}}<|end|>{NEXT}{CALL}g {JSON}{{}}",
      said("", ("f", "{}"), ("g", "{}")),
    ),
    ("builtin", f"{CALL}python code<|message|>1", said("", ("python", "1"))),
    ("nameless", f"{CALL} {JSON}{{}}", said("", ("", "{}"))),
    ("nobody", f"{COMMENTARY} to= {JSON}{{}}", said("", ("", "{}"))),
    ("no_json", f"{CALL}f {JSON}{{", said("", ("", "f {"))),
    ("twice", f'{CALL}f {JSON}{{"a":1,"a":2}}', CALLED_TWICE),
    ("nested", f"{CALL}f {JSON}{{<|channel|>1}}", said("", ("", NESTED))),
    ("cut_in_head", "<|channel|>comm", said("<|channel|>comm")),
    ("cut_in_call", f"{CALL}f <|constrain|>js", said("", ("", "f"))),
    ("cut_in_text", "so to=me", said("so to=me")),
    ("cut_before_next", f"{THOUGHT[:-18]}<|end|>", said(HM)),
    (
      "channel",
      "<|channel|>foo<|message|>x",
      said("<|channel|>foo<|message|>x"),
    ),
    ("no_channel", "<|message|>x", said("<|message|>x")),
    ("plain", "hello", said("hello")),
    ("nothing", "", said("")),
    (
      "speaks_as_a_tool",
      f"{FINAL}a<|end|><|start|>functions.f to=assistant<|message|>1",
      said("a\n<|start|>functions.f to=assistant<|message|>1"),
    ),
    (
      "after_a_call",
      f"{CALL}f {JSON}{{}}<|call|>more",
      said("more", ("f", "{}")),
    ),
    (
      "ends_its_thought_itself",
      f"<|channel|>analysis<|message|>a</think>b<|end|>{NEXT}{FINAL}c",
      said("<think>ab</think>c"),
    ),
    ("endless", f"{CALL}f {JSON}{DEEP}", said("", ("", f"f {DEEP}"))),
    ("calls_nothing", f"{THOUGHT}{FINAL}so", said(HM, ("", "so")), "<|call|>"),
  )
  def test_harmony(self, text, message, ended_by=None):
    self.assertEqual(dialects.Harmony().read(text, ended_by), message)

  @parameterized.named_parameters(
    ("text", "hello\n", said("hello\n")),
    ("one", "so⟦⟨f¦{}⟩⟧", said("so", ("f", "{}"))),
    ("two", "⟦⟨f¦{}⟩\n⟨g¦[1.0]⟩⟧", said("", ("f", "{}"), ("g", "[1.0]"))),
    ("spaced", "⟦\n⟨\nf¦{} ⟩\n⟧", said("", ("f", "{} "))),
    ("sections", "⟦⟨f¦{}⟩⟧so⟦⟨g¦1⟩⟧", said("so", ("f", "{}"), ("g", "1"))),
    ("text_after", "a⟦⟨f¦{}⟩b⟨f¦1⟩c⟧d", said("abcd", ("f", "{}"), ("f", "1"))),
    ("cut_after", "⟦⟨f¦{}", said("", ("f", "{}"))),
    ("cut_in_call", '⟦⟨f¦{}⟩⟨g¦{"a', said("", ("f", "{}"), ("", 'g¦{"a'))),
    ("cut_in_name", "⟦⟨f", said("", ("", "f"))),
    ("cut_before_call", "⟦", said("", ("", ""))),
    ("no_call", "⟦f⟧", said("", ("", "f"))),
    ("call_before", "⟦f⟨g¦{}⟩⟧", said("", ("", "f"), ("g", "{}"))),
    ("outside", "⟨f¦{}⟩", said("⟨f¦{}⟩")),
    ("nameless", "⟦⟨¦{}⟩⟧", said("", ("", "¦{}"))),
    ("two_words", "⟦⟨f g¦{}⟩⟧", said("", ("", "f g¦{}"))),
    ("no_json", "⟦⟨f¦{oops⟩⟧", said("", ("", "f¦{oops"))),
    ("twice", '⟦⟨f¦{"a":1,"a":2}⟩⟧', said("", ("", 'f¦{"a":1,"a":2}'))),
    ("endless", f"⟦⟨f¦{DEEP}⟩⟧", said("", ("", f"f¦{DEEP}"))),
    ("of_v3", "⟦⟨function¦f\n```json\n{}\n```⟩⟧", said("", ("f", "{}")), 2),
    (
      "fence_in_arguments_of_v3",
      'so⟦⟨function¦f\n```json\n["\\n```"]\n```⟩\n⟨¦g\n```json\n1\n```⟩⟧',
      said("so", ("f", '["\\n```"]'), ("g", "1")),
      2,
    ),
    ("no_fence", "⟦⟨function¦f\n{}⟩⟧", said("", ("", "function¦f\n{}")), 2),
    ("v31_as_v3", "⟦⟨f¦{}⟩⟧", said("", ("", "f¦{}")), 2),
    (
      "v3_as_v31",
      "⟦⟨function¦f\n```json\n{}\n```⟩⟧",
      said("", ("", "function¦f\n```json\n{}\n```")),
    ),
  )
  def test_deepseek(self, text, message, dialect=0):
    text = text.translate(families.DEEPSEEK_MARKS)
    found = dialects.DEEPSEEK[dialect].read(text, None)
    wanted = str(message).translate(families.DEEPSEEK_MARKS)
    self.assertEqual(str(found), wanted)

  @parameterized.named_parameters(
    ("text", "hello\n", said("hello\n")),
    (
      "text_and_call",
      'so\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
      said("so", ("f", "{}")),
    ),
    ("cut_short", '<tool_call>\n{"name"', said("", ("", '{"name"'))),
    ("endless_number", f"<tool_call>{LONG}", said("", ("", LONG))),
  )
  def test_hermes(self, text, message):
    self.assertEqual(dialects.Hermes().read(text, "<|im_end|>"), message)

  @parameterized.named_parameters(
    ("number", '{"a": 1.10, "b":  [1E2,-0.0]}'),
    ("order_and_space", '{ "b" : 1,\t"a" : 2\n}'),
    ("escapes", r'{"a": "\u00e9 \/ \ud83d"}'),
    ("end_of_a_call", '{"a": "</tool_call> <tool_call> <think> </think>"}'),
    ("key_of_its_own_name", '{"arguments": {"arguments": 1}, "name": "g"}'),
    ("list", "[1.0]"),
    ("null", "null"),
    ("empty", "{}"),
    ("large", '{"a": 1e999, "b": 12345678901234567890123}'),
  )
  def test_arguments_are_the_letters_that_were_written(self, text):
    wanted = said("", ("f", text))
    for key in ("arguments", "parameters"):
      for call in (
        f'{{"name": "f", "{key}": {text}}}',
        f'{{"{key}":{text} , "name": "f", "id": "x{{"}}',
      ):
        tagged = f"<tool_call>\n{call}\n</tool_call>"
        self.assertEqual(dialects.Hermes().read(tagged, None), wanted)
        self.assertEqual(dialects.Llama().read(call, None), wanted)
    if text.startswith("{"):
      self.assertEqual(dialects.Glm4().read(f"f\n{text}", GLM), wanted)

  @parameterized.named_parameters(
    ("key_twice", '{"name": "f", "arguments": {"a": 1, "a": 2}}'),
    (
      "key_twice_below",
      '{"name": "f", "arguments": {"a": [{"b": 1, "b": 1}]}}',
    ),
    ("name_twice", '{"name": "f", "name": "g", "arguments": {}}'),
    ("nan", '{"name": "f", "arguments": {"a": NaN}}'),
    ("infinity", '{"name": "f", "arguments": {"a": -Infinity}}'),
    ("both_keys", '{"name": "f", "arguments": {}, "parameters": {"a": 1}}'),
    ("another_key", '{"name": "f", "args": {"a": 1}}'),
    ("arguments_beside_the_name", '{"name": "f", "a": 1}'),
    ("function", '{"function": {"name": "f", "arguments": {}}}'),
    ("two", '{"name": "f", "arguments": {}} {"name": "f", "arguments": {}'),
  )
  def test_calls_that_programs_read_differently_are_malformed(self, call):
    text = f"<tool_call>\n{call}\n</tool_call>"
    wanted = said("", ("", call))
    self.assertEqual(dialects.Hermes().read(text, None), wanted)
    found = dialects.Llama().read(call, None).tool_calls[-1]
    self.assertEqual(found.name, "")

  @parameterized.parameters(
    '{"name": "f"}', '{"type": "function", "name": "f"}'
  )
  def test_a_name_alone_is_a_call_without_arguments(self, call):
    text = f"<tool_call>{call}</tool_call>"
    self.assertEqual(dialects.Hermes().read(text, None), said("", ("f", "{}")))
    self.assertEqual(dialects.Llama().read(call, None), said("", ("f", "{}")))

  def test_a_call_in_a_thought_is_none(self):
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    thought = "<think>\nf\n{}\n</think>"
    hermes, glm = dialects.Hermes(), dialects.Glm4()
    for dialect, text, wanted in (
      (
        hermes,
        f"so <think>{call}</think> on",
        said(f"so <think>{call}</think> on"),
      ),
      (hermes, f"<think>{call}", said(f"<think>{call}")),
      (
        hermes,
        f"<think>a</think>{call}<think>{call}</think>{call}",
        said(
          f"<think>a</think><think>{call}</think>", ("f", "{}"), ("f", "{}")
        ),
      ),
      (glm, f"{thought}{thought}so", said(f"{thought}{thought}so")),
      (
        glm,
        f"so<|assistant|>{thought}g\n{{}}",
        said(f"so{thought}", ("g", "{}")),
      ),
      (
        glm,
        "so<|assistant|><think>\n<|assistant|>f\n{}</think>",
        said("so<think>\n<|assistant|>f\n{}</think>"),
      ),
    ):
      with self.subTest(text):
        self.assertEqual(dialect.read(text, None), wanted)


class PreparingTest(absltest.TestCase):
  def test_arguments_that_are_no_json_stay(self):
    message = said("", ("f", "{oops"))
    (body,) = dialects.Hermes().prepare(message)
    self.assertEqual(body["tool_calls"][0]["function"]["arguments"], "{oops")
