"""Sub-agents as a tool beside the environment's."""

import dataclasses
import json
import unittest

import numpy as np
from absl.testing import parameterized

from agentrl_jax.controller.episode import run_episode
from agentrl_jax.controller.subagent import SubagentConfig
from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import Arithmetic
from tests.controller.stage import LIMITS, SAMPLED, an_episode, answer_of, codec
from tests.settings import WAITS

CONFIG = SubagentConfig(tool="delegate", max_turns=3)


def call(name, **arguments):
  return ToolCall(name, json.dumps(arguments))


def delegate(text="Add the numbers."):
  return Message("assistant", tool_calls=(call("delegate", task=text),))


def add(a=1, b=2):
  return Message("assistant", tool_calls=(call("add", a=a, b=b),))


def answer(value):
  return Message("assistant", tool_calls=(call("answer", value=value),))


def say(text):
  return Message("assistant", text)


class Saying:
  """Answers with messages, whatever the prompt."""

  num_policy_slots = 1

  def __init__(self, messages):
    self._messages = list(messages)
    self.prompts: list[str] = []

  async def generate(self, prompt, sampling):
    self.prompts.append(codec().decode(prompt))
    sampled = codec().write(self._messages.pop(0))
    return answer_of(sampled[: sampling.max_tokens])


async def play(*messages, config=CONFIG, **limits):
  engine = Saying(messages)
  trajectory = await run_episode(
    an_episode(),
    Arithmetic(),
    engine,
    codec(),
    limits=dataclasses.replace(LIMITS, **limits),
    sampling=SAMPLED,
    waits=WAITS,
    choose_policy_slot=lambda seed, turn: 0,
    subagent=config,
  )
  return trajectory, engine.prompts


def the_sum():
  question = Arithmetic().find(an_episode().task)
  return question.a + question.b


class SubagentTest(unittest.IsolatedAsyncioTestCase):
  async def test_the_planner_reads_what_a_worker_found_and_no_more(self):
    played, prompts = await play(
      delegate(), add(20, 22), say("It is 42."), answer(the_sum())
    )
    self.assertEqual((played.status, played.reward), (Status.COMPLETED, 1.0))
    planner, worker = played.lines
    self.assertEqual((planner.role, worker.role), ("planner", "worker"))
    self.assertEqual((planner.numbers, worker.numbers), ((0, 3), (1, 2)))
    self.assertEqual([t.reward for t in played.turns], [0, 0, 0, 1])
    last = prompts[3]
    self.assertIn("<|tool|>It is 42.", last)
    self.assertNotIn("<|tool|>42", last)
    self.assertNotIn(CONFIG.system_prompt, last)

  async def test_a_worker_reads_the_question_and_its_text_with_no_such_tool(
    self,
  ):
    played, prompts = await play(delegate("Be quick."), say("?"), answer(0))
    question = str(played.transcript[0]["content"])
    self.assertIn(f"{question}\n\nBe quick.", prompts[1])
    self.assertIn(CONFIG.system_prompt, prompts[1])
    self.assertIn("delegate(", prompts[0])
    self.assertNotIn("delegate(", prompts[1])
    self.assertIn("add(", prompts[1])
    bare = dataclasses.replace(CONFIG, recap=False, system_prompt="")
    _, prompts = await play(
      delegate("Be quick."), say("?"), answer(0), config=bare
    )
    self.assertNotIn(question, prompts[1])

  async def test_each_worker_is_a_line_and_each_prompt_its_tokens(self):
    played, prompts = await play(
      delegate("one"), say("1"), delegate("two"), say("2"), answer(the_sum())
    )
    self.assertEqual(
      [line.numbers for line in played.lines], [(0, 2, 4), (1,), (3,)]
    )
    for line in played.lines:
      stream = np.empty(0, np.int32)
      for number, turn in zip(line.numbers, line.turns, strict=True):
        stream = np.concatenate([stream, turn.observation])
        self.assertEqual(codec().decode(stream), prompts[number])
        stream = np.concatenate([stream, turn.sampled])
    self.assertEqual([m["line"] for m in played.transcript][-2:], [2, 2])

  async def test_a_worker_may_end_the_episode(self):
    played, _ = await play(delegate(), answer(the_sum()))
    self.assertEqual((played.status, played.reward), (Status.COMPLETED, 1.0))
    self.assertEqual([t.reward for t in played.turns], [0, 1])

  async def test_a_call_beside_another_is_not_made(self):
    both = Message(
      "assistant",
      tool_calls=(call("add", a=1, b=2), call("delegate", task="x")),
    )
    played, prompts = await play(both, answer(the_sum()))
    self.assertEqual(len(played.lines), 1)
    self.assertIn("must be the only call", prompts[1])
    self.assertIn("was not made", prompts[1])
    self.assertNotIn("<|tool|>3", prompts[1])

  async def test_mistakes_in_the_call_are_told(self):
    for arguments in ({}, {"task": ""}, {"task": 3}, {"task": "x", "y": 1}):
      wrong = Message("assistant", tool_calls=(call("delegate", **arguments),))
      played, prompts = await play(wrong, answer(the_sum()))
      self.assertEqual(len(played.lines), 1)
      self.assertIn("Error", prompts[1])
      self.assertEqual(played.reward, 1.0)

  async def test_a_worker_without_a_result_costs_its_turns_alone(self):
    played, prompts = await play(
      delegate(), add(), add(), add(), answer(the_sum())
    )
    self.assertIn("no answer in 3 turns", prompts[4])
    self.assertEqual(played.reward, 1.0)

  async def test_a_worker_whose_context_is_full_is_told(self):
    long = dataclasses.replace(CONFIG, system_prompt="x" * 3000)
    played, prompts = await play(delegate(), answer(the_sum()), config=long)
    self.assertIn("context of the sub-agent is full", prompts[1])
    self.assertEqual(played.reward, 1.0)

  async def test_the_episode_s_turns_are_everyone_s(self):
    played, _ = await play(delegate(), add(), add(), max_turns=3)
    self.assertEqual(played.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(len(played.turns), 3)

  async def test_workers_have_no_workers(self):
    played, prompts = await play(
      delegate(), delegate(), say("no"), answer(the_sum())
    )
    self.assertEqual(len(played.lines), 2)
    self.assertIn("no tool", prompts[2])

  async def test_a_name_that_is_taken_is_refused(self):
    config = dataclasses.replace(CONFIG, tool="add")
    with self.assertRaisesRegex(ConfigError, "add, answer"):
      await play(answer(0), config=config)


class SubagentConfigTest(parameterized.TestCase):
  @parameterized.parameters(({"tool": "a b"}, "subagent.tool"))
  def test_refusals(self, changes, pattern):
    with self.assertRaisesRegex(ConfigError, pattern):
      dataclasses.replace(CONFIG, **changes)
