"""Tests of the arithmetic environment and of its expert's mistakes."""

import unittest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.contract import SessionContract
from environments.arithmetic.environment import Arithmetic
from tests.environments.answers import call
from tests.environments.playing import play, play_answers

TASK = Task("arithmetic", "train", 0)


class ArithmeticContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Arithmetic()


class ArithmeticTest(unittest.IsolatedAsyncioTestCase):
  async def test_add_and_answer_earn_the_reward(self):
    environment = Arithmetic()
    problem = environment.find(TASK)
    a, b = problem.a, problem.b
    asked, added, answered = await play_answers(
      environment,
      TASK,
      call("add", {"a": a, "b": b}),
      call("answer", {"value": a + b}),
    )
    self.assertEqual(asked.messages, (Message("user", f"What is {a} + {b}?"),))
    self.assertEqual(added.messages[0].content, str(a + b))
    self.assertEqual(
      (answered.reward, answered.status), (1.0, Status.COMPLETED)
    )

  async def test_each_mistake_has_its_outcome(self):
    environment = Arithmetic(max_turns=3)
    outcomes = {
      "no_call": (Status.TASK_LIMIT_REACHED, 0.0, 4),
      "broken_json": (Status.TASK_LIMIT_REACHED, 0.0, 4),
      "skipped_add": (Status.COMPLETED, 1.0, 2),
      "wrong_sum": (Status.COMPLETED, 0.0, 3),
    }
    for mistake, expected in outcomes.items():
      with self.subTest(mistake=mistake):
        steps = await play(environment, TASK, mistakes={mistake: 1.0})
        last = steps[-1]
        self.assertEqual((last.status, last.reward, len(steps)), expected)
