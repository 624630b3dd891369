"""Answers of policies, valid or not, are parsed as calls or as text."""

from absl.testing import absltest, parameterized

from agentrl_jax.data.chat import dialects
from agentrl_jax.data.records import Message, ToolCall

LOOK = '{"name": "look", "parameters": {"at": "é"}}'
# A number with more digits than Python reads.
LONG = f'{{"name": "f", "parameters": {{"a": {"1" * 5000}}}}}'
GLM = dialects.Glm4._OBSERVATION


def said(content: str, *calls: tuple[str, str]) -> Message:
  made = tuple(ToolCall(*call, str(n)) for n, call in enumerate(calls))
  return Message("assistant", content, made)


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
    ("json_in_text", 'see:\nthis {"a": 1}', None, said('see:\nthis {"a": 1}')),
  )
  def test_glm(self, text, ended_by, message):
    self.assertEqual(dialects.Glm4().read(text, ended_by), message)

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


class PreparingTest(absltest.TestCase):
  def test_arguments_that_are_no_json_stay(self):
    message = said("", ("f", "{oops"))
    (body,) = dialects.Hermes().prepare(message)
    self.assertEqual(body["tool_calls"][0]["function"]["arguments"], "{oops")
