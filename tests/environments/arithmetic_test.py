"""Tests of the arithmetic environment and of its expert's mistakes."""

import unittest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.contract import SessionContract
from environments.arithmetic import environment as arithmetic
from environments.arithmetic.environment import Arithmetic
from tests.environments.playing import play

TASK = Task("arithmetic", "train", 0)


def a_call(name, arguments):
  return Message("assistant", tool_calls=(ToolCall(name, arguments, "c1"),))


class ArithmeticContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Arithmetic()


class ArithmeticTest(unittest.IsolatedAsyncioTestCase):
  async def test_add_and_answer_earn_the_reward(self):
    environment = Arithmetic()
    async with environment.open(TASK, seed=0) as session:
      question = (await session.reset()).messages[0].content
      a, b = (int(n) for n in question[len("What is ") : -1].split(" + "))
      sum_step = await session.step(a_call("add", f'{{"a": {a}, "b": {b}}}'))
      self.assertEqual(
        sum_step.messages, (Message("tool", str(a + b), tool_call_id="c1"),)
      )
      step = await session.step(a_call("answer", f'{{"value": {a + b}}}'))
    self.assertEqual((step.reward, step.status), (1.0, Status.COMPLETED))

  async def test_max_turns_ends_the_episode(self):
    async with Arithmetic(max_turns=2).open(TASK, seed=0) as session:
      await session.reset()
      first = await session.step(Message("assistant", "hm"))
      second = await session.step(Message("assistant", "hm"))
    self.assertEqual(first.messages[0].content, arithmetic.NO_CALL)
    self.assertIs(second.status, Status.TASK_LIMIT_REACHED)

  async def test_each_mistake_has_its_outcome(self):
    environment = Arithmetic()
    outcomes = {
      "no_call": (Status.TASK_LIMIT_REACHED, 0.0, 5),
      "broken_json": (Status.TASK_LIMIT_REACHED, 0.0, 5),
      "skipped_add": (Status.COMPLETED, 1.0, 2),
      "wrong_sum": (Status.COMPLETED, 0.0, 3),
    }
    for mistake, expected in outcomes.items():
      with self.subTest(mistake=mistake):
        steps = await play(environment, TASK, mistakes={mistake: 1.0})
        last = steps[-1]
        self.assertEqual((last.status, last.reward, len(steps)), expected)
