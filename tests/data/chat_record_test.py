"""Tests of `data.recorder.ChatRecord`."""

import threading
import unittest
from unittest import mock

import numpy as np

from agentrl_jax.data.recorder import ChatRecord
from agentrl_jax.data.records import Message, Status, Tool, ToolCall
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import PromptTooLong
from tests.controller.stage import an_episode, answer_of, codec
from tests.data.chat import families


class ChatRecordTest(unittest.TestCase):
  def test_reward_of_a_turn_is_the_change_of_the_verdict(self):
    record = ChatRecord(an_episode(), codec())
    line = record.start_line(())
    record.add_step(line, Step((Message("user", "hello"),)))
    for verdict in (0.25, 0.25, 1.0):
      line.add_action(line.prompt, answer_of([5]))
      record.add_step(line, Step((Message("user", "so far"),), reward=verdict))
    trajectory = record.trajectory(Status.COMPLETED)
    self.assertEqual([t.reward for t in trajectory.turns], [0.25, 0.0, 0.75])
    self.assertEqual(trajectory.reward, 1.0)

  def test_what_an_answer_did_is_on_record(self):
    line = ChatRecord(an_episode(), codec()).start_line(())
    tool = Tool("add", "", {"required": ["a"]})
    called = [
      ToolCall("add", '{"a": 1}'),
      ToolCall("add", "{}"),
      ToolCall("drop", "{}"),
    ]
    written = codec().write(Message("assistant", "", tuple(called)))
    text = codec().encode("<tool_call>add(1)</tool_call>")
    line.add_observation([Message("user", "hello")])
    for tokens, tools in (
      (written, [tool]),
      (text, [tool]),
      (written[-1:], [tool]),
      (written, []),
    ):
      line.add_action(line.prompt, answer_of(tokens), tools)
    turns = line._tokens._turns
    self.assertEqual(
      [turn.calls for turn in turns],
      [("", "wrong arguments", "unknown tool"), ("malformed JSON",), (), None],
    )
    self.assertEqual([t.is_cut for t in turns], [False, True, False, False])

  def test_a_reply_is_shown_with_the_name_of_its_call(self):
    source = (families.HERE / "gptoss.jinja").read_text()
    harmony = families.codec_of(families.HARMONY, source)
    line = ChatRecord(an_episode(), harmony).start_line(())
    line.add_observation([Message("user", "hello")])
    text = "<|channel|>commentary to=functions.f <|message|>{}<|call|>"
    answer = line.add_action(line.prompt, answer_of(harmony.encode(text)))
    (call,) = answer.tool_calls
    line.add_observation([Message("tool", "7", tool_call_id=call.id)])
    reply = "<|start|>functions.f to=assistant<|channel|>commentary"
    shown = harmony.decode(line.prompt)
    self.assertIn(f'{text}{reply}<|message|>"7"<|end|>', shown)

  def test_a_transcript_names_lines_if_there_are_several(self):
    record = ChatRecord(an_episode(), codec())
    first = record.start_line((), "planner")
    first.add_observation([Message("user", "plan")])
    self.assertNotIn("line", self.transcript(record)[0])
    record.start_line((), "worker").add_observation([Message("user", "work")])
    self.assertEqual([m["line"] for m in self.transcript(record)], [0, 1])

  def transcript(self, record):
    return record.trajectory(Status.CANCELLED).transcript


class LongTextTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.codec = codec()
    self.encoded = []  # bytes and thread of each text that is tokenized
    encode = self.codec._tokenizer.encode

    def counted(text, *after):
      self.encoded.append((len(text.encode()), threading.current_thread()))
      return encode(text, *after)

    patched = mock.patch.object(self.codec._tokenizer, "encode", counted)
    self.enterContext(patched)

  def line(self, max_tokens, tools=()):
    record = ChatRecord(an_episode(), self.codec, max_tokens)
    return record.start_line(tools)

  async def test_what_cannot_fit_is_not_tokenized(self):
    most = 100 * self.codec.longest_token
    for content, tools in (
      ("x" * (most + 1), ()),
      ("x", [Tool("look", "x" * (most + 1), {})]),
      # As long as allowed by itself, and longer as the template shows it.
      ("\u00b0" * (most // 2 - 3), ()),
      ("x", [Tool("look", "", {"properties": {"x" * most: {"type": "any"}}})]),
    ):
      line = self.line(100, tools)
      line.add_observation([Message("user", content)])
      with self.assertRaisesRegex(PromptTooLong, "bytes; the 100 tokens"):
        await line.prompt_in_turn()
    self.assertEqual(self.encoded, [])

  async def test_room_is_what_the_line_has_left(self):
    line = self.line(100)
    line.add_observation([Message("user", "x")])
    line.add_action(line.prompt, answer_of([5]))
    self.encoded.clear()
    line.add_observation([Message("tool", "x" * 99 * self.codec.longest_token)])
    with self.assertRaises(PromptTooLong):
      await line.prompt_in_turn()
    self.assertEqual(self.encoded, [])

  async def test_long_text_is_tokenized_in_a_thread_once(self):
    line = self.line(1 << 20)
    line.add_observation([Message("user", "red shoes " * 2000)])
    prompt = await line.prompt_in_turn()
    np.testing.assert_array_equal(await line.prompt_in_turn(), prompt)
    np.testing.assert_array_equal(line.prompt, prompt)
    ((num_bytes, thread),) = self.encoded
    self.assertGreater(num_bytes, 20_000)
    self.assertTrue(thread.name.startswith("long-text"), thread.name)

  async def test_short_text_and_the_last_are_not_handed_over(self):
    line = self.line(1 << 20)
    line.add_observation([Message("user", "a text of its own")])
    await line.prompt_in_turn()
    self.assertIs(self.encoded[0][1], threading.current_thread())
    line.add_observation([Message("user", "x" * 999_999)], is_last=True)
    await line.prompt_in_turn()
    self.assertEqual(len(self.encoded), 1)
