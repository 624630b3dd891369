"""Conversations are cached as tokens, up to a limit."""

import unittest

import numpy as np

from agentrl_jax.data.records import Message, Tool, ToolCall
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.openai.choices import Choice
from agentrl_jax.rollout.openai.conversation_cache import (
  ConversationCache,
  conversation_keys,
)
from agentrl_jax.rollout.openai.detokenizer import Detokenizer
from agentrl_jax.rollout.openai.schema import ServingLimits
from tests.rollout import talking

ASKED = Message("user", "What is 1 + 2?")
SAID = Message("assistant", "3")


def drawn(prompt, ids):
  draw = Choice(0, prompt, SamplingParams(), Detokenizer(lambda ids: ""))
  zeros = np.zeros(len(ids), np.float32)
  version = np.zeros(len(ids), np.int32)
  draw._chunks.append(
    Completion(np.asarray(ids, np.int32), zeros, zeros, version, policy_slot=0)
  )
  return draw


class MemoryTest(unittest.TestCase):
  def setUp(self):
    self.codec = talking.codec()
    self.limits = ServingLimits(context=talking.CONTEXT)

  def heard(self, memory, messages, ids=(9, 9, 9), tools=()):
    prompt = memory.prompt(messages, tools, self.codec)
    memory.record(drawn(prompt, ids), [*messages, SAID], tools)
    return [*prompt.tolist(), *ids]

  def test_goes_on_from_the_longest_that_it_knows(self):
    memory = ConversationCache(self.limits)
    first = self.heard(memory, [ASKED])
    second = self.heard(memory, [ASKED, SAID, ASKED], ids=(8, 8))
    self.assertEqual(second[: len(first)], first)
    again = memory.prompt([ASKED, SAID, ASKED, SAID, ASKED], (), self.codec)
    self.assertEqual(again[: len(second)].tolist(), second)
    other = Message("assistant", "4")
    branch = memory.prompt([ASKED, SAID, ASKED, other, ASKED], (), self.codec)
    self.assertEqual(branch[: len(first)].tolist(), first)
    self.assertNotEqual(branch[: len(second)].tolist(), second)

  def test_other_tools_are_another_conversation(self):
    memory = ConversationCache(self.limits)
    tool = Tool("add", "Adds.", {"type": "object", "properties": {}})
    self.heard(memory, [ASKED], tools=(tool,))
    rendered = self.codec.start([ASKED, SAID, ASKED], ())
    actual = memory.prompt([ASKED, SAID, ASKED], (), self.codec)
    np.testing.assert_array_equal(actual, rendered)

  def test_the_least_recently_used_conversation_is_evicted(self):
    one, two = Message("user", "one"), Message("user", "two")
    memory = ConversationCache(self.limits, max_tokens=30)
    kept = self.heard(memory, [one])
    self.heard(memory, [two])
    memory.prompt([one, SAID, two], (), self.codec)  # asked for
    for number in range(3):
      self.heard(memory, [Message("user", str(number))])
      memory.prompt([one, SAID, two], (), self.codec)
    actual = memory.prompt([one, SAID, two], (), self.codec)
    self.assertEqual(actual[: len(kept)].tolist(), kept)
    actual = memory.prompt([two, SAID, one], (), self.codec)
    np.testing.assert_array_equal(
      actual, self.codec.start([two, SAID, one], ())
    )

  def test_a_conversation_as_long_as_the_cache_is_kept(self):
    one = Message("user", "one")
    size = len(self.heard(ConversationCache(self.limits), [one]))
    for room, is_kept in ((size, True), (size - 1, False)):
      memory = ConversationCache(self.limits, max_tokens=room)
      kept = self.heard(memory, [one])
      actual = memory.prompt([one, SAID, one], (), self.codec)
      self.assertEqual(actual[: len(kept)].tolist() == kept, is_kept)

  def test_keys_differ_where_the_policy_would_read_otherwise(self):
    call = ToolCall("add", '{"a": 1}', "x1")
    conversations = [
      [ASKED],
      [Message("user", "What is 1 + 2? ")],
      [Message("system", ASKED.content)],
      [ASKED, SAID],
      [Message("user", ASKED.content + "3")],
      [ASKED, Message("assistant", "3", (call,))],
      [ASKED, Message("assistant", "3", (ToolCall("sub", '{"a": 1}', "x1"),))],
      [ASKED, Message("assistant", "3", (ToolCall("add", '{"a": 2}', "x1"),))],
      [ASKED, Message("assistant", "3", (ToolCall("add", '{"a": 1', "x1"),))],
    ]
    keys = [conversation_keys(messages, ())[-1] for messages in conversations]
    self.assertEqual(len(set(keys)), len(conversations))
    same = Message("assistant", " 3\n", (ToolCall("add", '{"a":1}', "x1"),))
    self.assertEqual(conversation_keys([ASKED, same], ())[-1], keys[5])
