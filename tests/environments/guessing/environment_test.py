"""Tests of guessing: contract, replies, rewards, and what no player may see."""

import collections
import dataclasses
import json
import unittest

import pytest
from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.contract import SessionContract
from environments.guessing import Guessing
from environments.guessing.environment import NO_CALL, GameSession
from environments.guessing.game import NO, YES
from tests.environments.playing import play

TASK = Task("guessing", "train", 0)
GAME = Guessing().find(TASK)


def a_call(name, **arguments):
  call = ToolCall(name, json.dumps(arguments), "c1")
  return Message("assistant", tool_calls=(call,))


def ask(attribute, value):
  return a_call("ask", attribute=attribute, value=value)


def guess(thing):
  return a_call("guess", number=thing + 1)


RIGHT, WRONG = guess(GAME.secret), guess((GAME.secret + 1) % 16)


async def steps_of(answers, *, game=GAME, max_turns=10, reward="success"):
  session = GameSession(game, max_turns=max_turns, reward=reward)
  return [await session.reset(), *[await session.step(a) for a in answers]]


class GuessingContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Guessing()


@pytest.mark.slow
class LargestContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return Guessing(num_things=64, num_attributes=4, max_turns=13)


@pytest.mark.slow
class OneListContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  """All 16 things of two attributes: tasks differ in order and secret."""

  def make_environment(self):
    return Guessing(num_things=16, num_attributes=2, max_turns=7)


class GuessingTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def test_questions_are_answered(self):
    for question in GAME.questions:
      _, step = await steps_of([ask(*question)])
      reply = YES if GAME.has(GAME.secret, question) else NO
      self.assertEqual(
        step.messages, (Message("tool", reply, tool_call_id="c1"),)
      )
      self.assertIs(step.status, Status.RUNNING)

  @parameterized.parameters(
    ("success", RIGHT, 1.0),
    ("success", WRONG, 0.0),
    ("questions", RIGHT, -2.0),
    ("questions", WRONG, -10.0),
  )
  async def test_a_guess_ends_the_game(self, reward, last, expected):
    question = ask(*GAME.questions[0])
    steps = await steps_of([question, question, last], reward=reward)
    self.assertIs(steps[-1].status, Status.COMPLETED)
    self.assertEqual(steps[-1].reward, expected)
    self.assertEqual(
      steps[-1].metrics, {"success": float(last == RIGHT), "questions": 2.0}
    )

  @parameterized.parameters(
    ("success", Status.TASK_LIMIT_REACHED, [0.0, 0.0, 0.0]),
    ("questions", Status.COMPLETED, [-1.0, -2.0, -3.0]),
  )
  async def test_turns_are_limited(self, reward, status, rewards):
    hm = Message("assistant", "hm")
    _, *steps = await steps_of([hm] * 3, max_turns=3, reward=reward)
    self.assertEqual([step.reward for step in steps], rewards)
    self.assertIs(steps[-1].status, status)
    self.assertEqual(steps[0].messages[0].content, NO_CALL)
    self.assertEqual(steps[-1].metrics["success"], 0.0)

  async def test_a_value_of_another_attribute_is_told(self):
    _, step = await steps_of([ask("colour", "star")])
    self.assertEqual(
      step.messages[0].content,
      "Error: star is no colour. The values of colour are: red, green, blue, "
      "yellow.",
    )


class LazyPlayersTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  """Ways to a reward without questions, all of which must fail."""

  async def test_observations_do_not_depend_on_the_secret(self):
    seen = []
    for secret in range(16):
      game = dataclasses.replace(GAME, secret=secret)
      session = GameSession(game, max_turns=10, reward="success")
      nonsense = [Message("assistant", "?"), a_call("tell"), ask("x", "y")]
      steps = [await session.reset()]
      steps += [await session.step(answer) for answer in nonsense]
      seen.append((session.tools, steps))
    self.assertTrue(all(each == seen[0] for each in seen))

  def test_no_number_is_more_frequent(self):
    environment, num_tasks = Guessing(), 1600
    for split in ("train", "test"):
      count = collections.Counter(
        environment.find(Task("guessing", split, i)).secret
        for i in range(num_tasks)
      )
      self.assertLen(count, 16)
      # Five standard deviations around 100.
      self.assertLess(max(count.values()), 150)
      self.assertGreater(min(count.values()), 50)

  async def test_several_calls_in_one_answer_are_one(self):
    every = tuple(
      ToolCall("guess", json.dumps({"number": n + 1}), f"c{n}")
      for n in [(GAME.secret + 1) % 16, *range(16)]
    )
    _, step = await steps_of([Message("assistant", tool_calls=every)])
    self.assertEqual((step.reward, step.messages), (0.0, ()))
    self.assertIs(step.status, Status.COMPLETED)

    questions = tuple(
      ToolCall("ask", json.dumps({"attribute": a, "value": v}), f"c{v}")
      for a, v in GAME.questions
    )
    _, step = await steps_of([Message("assistant", tool_calls=questions)])
    self.assertLen(step.messages, 1)

  @parameterized.parameters(
    {"number": 0},
    {"number": -1},
    {"number": 17},
    {"number": "1"},
    {"number": [1, 2]},
    {"number": None},
    {"number": 1.5},
    {"number": True},
    {"number": 1, "other": 2},
    {},
  )
  async def test_a_malformed_guess_costs_a_turn_and_tells_nothing(
    self, **arguments
  ):
    _, first, second = await steps_of([a_call("guess", **arguments), RIGHT])
    self.assertIs(first.status, Status.RUNNING)
    self.assertStartsWith(first.messages[0].content, "Error")
    self.assertEqual(second.metrics["questions"], 1.0)

  async def test_to_guess_at_once_costs_more_than_to_ask(self):
    """By -1 a question: else a lost game of one turn would be the best."""
    environment = Guessing(reward="questions")
    for index in range(20):
      task = Task("guessing", "test", index)
      steps = await play(environment, task)
      game = environment.find(task)
      at_once = await steps_of(
        [guess((game.secret + 1) % 16)], game=game, reward="questions"
      )
      self.assertGreater(steps[-1].reward, at_once[-1].reward)

  async def test_the_cost_of_a_turn_is_paid_in_it(self):
    """Differences of successive rewards are those of the turns."""
    answers = [ask(*GAME.questions[0]), Message("assistant", ""), WRONG]
    steps = await steps_of(answers, reward="questions")
    self.assertEqual([s.reward for s in steps], [0.0, -1.0, -2.0, -10.0])
