"""Harmony beside `openai-harmony`, which renders and parses it for OpenAI.

Its vocabulary, o200k_base.tiktoken, is read from the folder that
TIKTOKEN_ENCODINGS_BASE names; without one it would be fetched.
"""

import functools
import json
import os
import random

import pytest
from absl.testing import parameterized

from agentrl_jax.data.records import Message, Tool, ToolCall
from tests.data.chat import families
from tests.data.chat.family_template_test import DATE, codec_of

VOCABULARY = "TIKTOKEN_ENCODINGS_BASE"
harmony = pytest.importorskip("openai_harmony")
ASSISTANT = harmony.Role.ASSISTANT
TOOLS = (
  Tool(
    "add",
    "Adds two.",
    {
      "type": "object",
      "properties": {
        "a": {"type": "number", "description": "first"},
        "of": {"type": "array", "items": {"type": "string"}},
        "how": {"type": "string", "enum": ["x", "y"]},
      },
      "required": ["a"],
    },
  ),
)
TEXTS = ("plain", "two\nlines", 'q " \\', "ünï", "a  b ")
NEXT = "<|start|>assistant"
ANSWERS = (
  "<|channel|>final<|message|>hi",
  f"<|channel|>analysis<|message|>hm<|end|>{NEXT}<|channel|>final<|message|>x",
  *(
    f'{head}functions.add{tail}<|message|>{{"a": 1}}'
    for head, tail in (
      ("<|channel|>commentary to=", " <|constrain|>json"),
      ("<|channel|>commentary to=", "<|constrain|>json"),
      ("<|channel|>commentary to=", ""),
      (" to=", "<|channel|>commentary json"),
      (" to=", "<|channel|>commentary <|constrain|>json"),
      ("<|channel|>analysis to=", " code"),
    )
  ),
  "<|channel|>commentary to= <|constrain|>json<|message|>{}",
  f"<|channel|>commentary to=a<|message|>1<|end|>{NEXT}"
  f"<|channel|>commentary to=functions.b<|message|>2",
)


@functools.cache
def encoding():
  return harmony.load_harmony_encoding("HarmonyGptOss")


class HarmonyTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    if VOCABULARY not in os.environ:
      self.skipTest(f"{VOCABULARY} names no folder with o200k_base.tiktoken")
    if "gptoss" not in families.templates():
      self.skipTest("gpt-oss's chat template is in trl, which is not installed")

  @parameterized.parameters(*range(12))
  def test_prompts_are_those_of_the_reference(self, seed):
    said = conversation(random.Random(seed))
    codec = codec_of("gptoss")
    ours = codec.decode(codec.start(said, TOOLS))
    rendered = encoding().render_conversation_for_completion(
      as_reference(said), ASSISTANT
    )
    theirs = encoding().decode(rendered)
    # The published template leaves out the marker before the type of calls.
    self.assertEqual(ours, theirs.replace("<|constrain|>", ""))

  @parameterized.parameters(*ANSWERS)
  def test_answers_are_read_as_by_the_reference(self, text):
    codec = codec_of("gptoss")
    ours = codec.read(codec.encode(text))
    ids = encoding().encode(text + "<|call|>", allowed_special="all")
    theirs = encoding().parse_messages_from_completion_tokens(ids, ASSISTANT)
    calls = [
      ((m.recipient or "").removeprefix("functions."), m.content[0].text)
      for m in theirs
      if m.recipient is not None
    ]
    self.assertEqual([(c.name, c.arguments) for c in ours.tool_calls], calls)
    said = "".join(
      f"<think>{m.content[0].text}</think>"
      if m.channel == "analysis"
      else m.content[0].text
      for m in theirs
      if m.recipient is None
    )
    self.assertEqual(ours.content, said)


def conversation(rng: random.Random) -> list[Message]:
  said = [Message("system", rng.choice(TEXTS)), Message("user", "hi")]
  for _ in range(rng.randint(0, 4)):
    thought = rng.choice(("", "<think>hm</think>"))
    if rng.randint(0, 1):
      call = ToolCall("add", '{"a": 1, "how": "y"}', "0")
      said += [
        Message("assistant", thought, (call,)),
        Message("tool", rng.choice(TEXTS), tool_call_id="0"),
      ]
    else:
      said += [
        Message("assistant", thought + rng.choice(TEXTS)),
        Message("user", rng.choice(TEXTS)),
      ]
  return said


def as_reference(said: list[Message]):
  system = harmony.SystemContent.new().with_conversation_start_date(
    DATE.isoformat()
  )
  developer = (
    harmony.DeveloperContent.new()
    .with_instructions(said[0].content)
    .with_function_tools(
      [
        harmony.ToolDescription.new(t.name, t.description, dict(t.parameters))
        for t in TOOLS
      ]
    )
  )

  def make(role: str, content):
    role = harmony.Role(role)
    return harmony.Message.from_role_and_content(role, content)

  turns = [make("system", system), make("developer", developer)]
  finals = [n for n, m in enumerate(said) if m.role == "assistant"]
  finals = [n for n in finals if not said[n].tool_calls]
  for n, message in enumerate(said[1:], 1):
    thought, _, text = message.content.rpartition("</think>")
    # The template has thoughts after the last text alone, the reference more.
    if thought and n > max(finals, default=0):
      thought = thought.removeprefix("<think>")
      turns.append(make("assistant", thought).with_channel("analysis"))
    for call in message.tool_calls:
      turns.append(
        make("assistant", call.arguments)
        .with_channel("commentary")
        .with_recipient(f"functions.{call.name}")
        .with_content_type("<|constrain|>json")
      )
    if message.role == "tool":
      author = harmony.Author.new(harmony.Role.TOOL, "functions.add")
      reply = json.dumps(text, ensure_ascii=False)
      turns.append(
        harmony.Message.from_author_and_content(author, reply)
        .with_channel("commentary")
        .with_recipient("assistant")
      )
    elif message.role == "user":
      turns.append(make("user", text))
    elif not message.tool_calls:
      turns.append(make("assistant", text).with_channel("final"))
  return harmony.Conversation.from_messages(turns)
