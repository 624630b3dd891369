"""Tests of word problems: stories, the calculator, and rewards."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from environments.word_problems.environment import WordProblems
from tests.environments.playing import play

HARD = {"steps": (2, 4), "largest": 60}
TASK = Task("word_problems", "train", 0)
ONE_AND_ONE = '{"left": 1, "operator": "+", "right": 1}'


class WordProblemsContractTest(
  SessionContract, unittest.IsolatedAsyncioTestCase
):
  def make_environment(self):
    return WordProblems(**HARD)


class CalculatorContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return WordProblems(calculator=True, **HARD)


class ProblemsTest(unittest.TestCase):
  def test_answer_is_the_value_of_the_expression(self):
    environment = WordProblems(**HARD)
    for index in range(300):
      problem = environment.find(Task("word_problems", "train", index))
      self.assertEqual(eval(problem.expression), problem.answer)
      self.assertTrue(problem.solution.endswith(f"\n#### {problem.answer}"))
      self.assertGreaterEqual(min(problem.partial_results), 1)
      self.assertLessEqual(max(problem.terms), 60)
      for term in problem.terms:
        self.assertRegex(problem.text, rf"\b{term}\b")

  def test_splits_share_no_computation(self):
    environment = WordProblems()
    train, test = (
      {
        environment.find(Task("word_problems", split, index)).expression
        for index in range(2000)
      }
      for split in ("train", "test")
    )
    self.assertEqual(train & test, set())
    self.assertGreater(min(len(train), len(test)), 60)


class RewardTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters(False, True)
  async def test_right_number_wins_and_its_neighbour_does_not(self, calculator):
    environment = WordProblems(calculator=calculator, **HARD)
    right = environment.find(TASK).answer
    for number, reward in ((right, 1.0), (right + 1, 0.0)):
      async with environment.open(TASK, seed=0) as session:
        await session.reset()
        step = await session.step(Message("assistant", f"Now {number} pens."))
      self.assertEqual((step.reward, step.status), (reward, Status.COMPLETED))

  async def test_answer_by_a_call(self):
    environment = WordProblems(calculator=True, **HARD)
    right = environment.find(TASK).answer
    for number, reward in ((right, 1.0), (right + 1, 0.0)):
      call = ToolCall("answer", f'{{"number": {number}}}', "c")
      async with environment.open(TASK, seed=0) as session:
        await session.reset()
        step = await session.step(Message("assistant", tool_calls=(call,)))
      self.assertEqual((step.reward, step.status), (reward, Status.COMPLETED))

  async def test_calls_without_an_answer_reach_the_limit(self):
    environment = WordProblems(calculator=True, max_turns=2)
    call = ToolCall("calculate", ONE_AND_ONE, "c")
    async with environment.open(TASK, seed=0) as session:
      await session.reset()
      steps = [
        await session.step(Message("assistant", tool_calls=(call,)))
        for _ in range(2)
      ]
    self.assertEqual(steps[0].messages[0].content, "2")
    self.assertIs(steps[1].status, Status.TASK_LIMIT_REACHED)

  async def test_a_result_has_its_text_and_a_mistake_has_not(self):
    environment = WordProblems(calculator=True, result="It is {}.")
    steps = await play(environment, TASK)
    self.assertRegex(steps[1].messages[0].content, r"^It is \d+\.$")
    self.assertEqual((len(steps), steps[-1].reward), (3, 1.0))
    call = ToolCall("calculate", "{", "c")
    async with environment.open(TASK, seed=0) as session:
      await session.reset()
      step = await session.step(Message("assistant", tool_calls=(call,)))
    self.assertNotIn("It is", step.messages[0].content)

  async def test_a_call_where_there_is_no_tool_is_an_answer(self):
    call = ToolCall("calculate", ONE_AND_ONE, "c")
    async with WordProblems().open(TASK, seed=0) as session:
      await session.reset()
      step = await session.step(Message("assistant", tool_calls=(call,)))
    self.assertEqual((step.reward, step.status), (0.0, Status.COMPLETED))

  async def test_each_mistake_has_its_outcome(self):
    environment = WordProblems(calculator=True)
    outcomes = {"wrong_number": (0.0, 3), "no_call": (1.0, 2)}
    outcomes["broken_json"] = (0.0, 9)  # until the limit of turns
    for mistake, expected in outcomes.items():
      with self.subTest(mistake=mistake):
        steps = await play(environment, TASK, mistakes={mistake: 1.0})
        self.assertEqual((steps[-1].reward, len(steps)), expected)


class CalculatorTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters(
    ('{"left": 7, "operator": "-", "right": 9}', "-2"),
    ('{"left": 12, "operator": "*", "right": 12}', "144"),
    ('{"left": 1e3, "operator": "+", "right": 1}', "1001"),
    ('{"left": 7, "operator": "/", "right": 9}', "Error"),
    ('{"left": "7 pens", "operator": "-", "right": 9}', "Error"),
    ('{"left": 1.5, "operator": "-", "right": 9}', "Error"),
    ('{"left": 1' + "0" * 40 + ', "operator": "*", "right": 9}', "Error"),
    ('{"left": 1e300, "operator": "*", "right": 1e300}', "Error"),
    ("{", "Error"),
  )
  async def test_reply(self, arguments, start):
    call = ToolCall("calculate", arguments, "c")
    async with WordProblems(calculator=True).open(TASK, seed=0) as session:
      await session.reset()
      step = await session.step(Message("assistant", tool_calls=(call,)))
    self.assertIs(step.status, Status.RUNNING)
    self.assertTrue(step.messages[0].content.startswith(start), step.messages)


class OptionsTest(parameterized.TestCase):
  @parameterized.parameters(
    {"steps": (0, 1)},
    {"steps": (3, 2)},
    {"largest": 3},
    {"max_turns": 0},
    {"result": "It is."},
  )
  def test_refused(self, **options):
    with self.assertRaises(ConfigError):
      WordProblems(**options)
