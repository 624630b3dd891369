"""Codecs of every family, tools to call, and checks of answers by grammars."""

import functools
import pathlib
import tempfile

from absl.testing import parameterized

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.records import Message, Tool, ToolCall
from tests.data.chat import families
from tests.data.chat.family_template_test import NAMES, codec_of
from tests.data.grammar.call_grammars import allows
from tests.settings import chat_config

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
# Forms in which arguments stand alone, without JSON.
XML = tuple(
  n
  for n in NAMES
  if "qwen3_5" in n
  or n in ("small_qwen_coder", "small_glm45")
  or n == "glm4moe"
)
# Gemma 4's calls have no grammar.
ALL = ("compact", *(n for n in NAMES if n not in XML and "gemma4" not in n))


@functools.cache
def codec(name) -> ChatCodec:
  if name != "compact":
    return codec_of(name)
  return ChatCodec(train_tokenizer(families.TEXTS, vocab_size=300))


@functools.cache
def grammars(name):
  return codec(name).grammars(codec(name).vocab_size + 40)


def codec_of_folder(family, source) -> ChatCodec:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    families.write_folder(path, family, source)
    return load_chat(path, chat_config())


def said(*calls, content=""):
  made = tuple(ToolCall(f, text, str(n)) for n, (f, text) in enumerate(calls))
  return Message("assistant", content, made)


class Calling(parameterized.TestCase):
  def allows(self, name, answer, tools=TOOLS, **options) -> bool:
    """Checks an answer, given as a message or as text, by the grammar."""
    is_text = isinstance(answer, str)
    ids = codec(name).encode(answer) if is_text else codec(name).write(answer)
    grammar = codec(name).call_grammar(tools, **options)
    return allows(grammars(name), grammar, ids)
