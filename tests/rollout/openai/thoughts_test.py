"""Thoughts as a field of their own; conversations whose clients drop them."""

import itertools
import unittest

from agentrl_jax.data.records import Message
from agentrl_jax.rollout.openai import thoughts
from tests.rollout import talking
from tests.rollout.openai.agents_playing import ASKED, Playing
from tests.rollout.openai.chatting import ADD

FIRST = "<think>One\nand two.</think>\n\nThree.<|end|>"
SAYS = [FIRST, "<think>Again.</think>Yes, three.<|end|>", "Bye.<|end|>"]


class SplitterTest(unittest.TestCase):
  def test_text_in_any_parts_is_split_alike(self):
    for text, thought, rest in (
      ("<think>a</think>b", "a", "b"),
      ("\n<think>a</think>\n\nb</think>", "a", "\n\nb</think>"),
      ("<think>a<think></think> <think>b</think>c", "a<think>b", "c"),
      ("<think>a</thin", "a</thin", ""),
      ("<thin", "", "<thin"),
      ("  b <think>c</think>", "", "  b <think>c</think>"),
      ("", "", ""),
    ):
      self.assertEqual(thoughts.split(text), (thought, rest), text)
      for size in (1, 2, 3, 7):
        splitter, parts = thoughts.ThoughtSplitter(), []
        cuts = [text[at : at + size] for at in range(0, len(text), size)]
        for part in cuts:
          parts += splitter.add(part, is_last=False)
        parts += splitter.add("", is_last=True)
        actual = [
          "".join(part for is_thought, part in parts if is_thought is kind)
          for kind in (True, False)
        ]
        self.assertEqual(actual, [thought, rest], (text, size))
    opened = [
      *thoughts.ThoughtSplitter(is_open=True).add("a</think>b", is_last=True)
    ]
    self.assertEqual(opened, [(True, "a"), (False, "b")])

  def test_a_thought_may_be_dropped_and_not_changed(self):
    keys = thoughts.thought_keys(
      [Message("user", "<think>u</think>"), Message("assistant", FIRST)]
    )
    self.assertEqual(keys[0], b"")
    changed = thoughts.thought_keys([Message("assistant", "<think>x</think>")])
    self.assertTrue(thoughts.agree([b"", b""], keys))
    self.assertTrue(thoughts.agree(keys, keys))
    self.assertFalse(thoughts.agree([b"", *changed], keys))
    self.assertFalse(thoughts.agree(keys, [b"", b""]))


class ThoughtsTest(Playing):
  async def asyncSetUp(self):
    self.policy = talking.Scripted()
    await self.serve(
      generator=self.policy,
      limits=dict(context=2048),
      rules=dict(max_tokens=2048, max_answer_tokens=400, max_lines=2),
    )

  async def answer(self, client, messages, *, stream, **fields):
    if not stream:
      return (await self.say(client, messages, **fields)).choices[0].message
    content = thought = ""
    async for chunk in await self.say(client, messages, stream=True, **fields):
      delta = chunk.choices[0].delta
      content += delta.content or ""
      thought += getattr(delta, "reasoning_content", None) or ""
    message = {"role": "assistant", "content": content}
    return message | {"reasoning_content": thought}

  async def test_the_line_goes_on_by_its_tokens(self):
    ways = itertools.product(("sent", "dropped", "inline"), repeat=2)
    for number, kept in enumerate(ways):
      stream, tools = bool(number % 2), {"tools": [ADD]} if number % 3 else {}
      self.policy.says, self.policy.prompts = [*SAYS], []
      playing, id, client = await self.begin()
      messages = [ASKED]
      for way in (*kept, "sent"):
        said = await self.answer(client, messages, stream=stream, **tools)
        if not isinstance(said, dict):
          said = said.model_dump(exclude_none=True)
        thought = said.pop("reasoning_content", "")
        if way == "sent":
          said["reasoning_content"] = thought
        if way == "inline":
          said["content"] = f"<think>{thought}</think>{said['content']}"
        messages += [said, {"role": "user", "content": "Again."}]
      self.assertEqual(messages[5]["content"], "Bye.")
      played = await self.end(playing, id)
      self.assertEqual(len(played.lines), 1, kept)
      sampled = [turn.sampled.tolist() for turn in played.turns]
      codec = talking.codec()
      self.assertEqual(sampled, [codec.encode(s).tolist() for s in SAYS])
      self.assertEqual(
        played.transcript[1]["content"], FIRST.removesuffix("<|end|>")
      )

  async def test_a_changed_thought_starts_a_line(self):
    self.policy.says = [*SAYS]
    playing, id, client = await self.begin()
    said = await self.say(client, [ASKED])
    changed = {
      "role": "assistant",
      "content": said.choices[0].message.content,
      "reasoning_content": "Four.",
    }
    await self.say(client, [ASKED, changed, ASKED])
    played = await self.end(playing, id)
    self.assertEqual(len(played.lines), 2)
    self.assertIn("Four.", talking.codec().decode(self.policy.prompts[-1]))

  async def test_conversations_without_an_episode_go_on_too(self):
    client = self.served.openai
    for kept, expected in ((None, True), ("One\nand two.", True), ("x", False)):
      self.policy.says, self.policy.prompts = [*SAYS], []
      said = (await self.say(client, [ASKED])).choices[0].message
      self.assertEqual(said.reasoning_content, "One\nand two.")
      self.assertEqual(said.content, "\n\nThree.")
      answer = {"role": "assistant", "content": said.content}
      if kept:
        answer["reasoning_content"] = kept
      await self.say(client, [ASKED, answer, ASKED])
      first, second = self.policy.prompts
      stream = first + talking.codec().encode(FIRST).tolist()
      self.assertEqual(second[: len(stream)] == stream, expected, kept)
