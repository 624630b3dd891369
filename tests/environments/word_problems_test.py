"""Tests of word problems: stories, the calculator, and rewards."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.contract import SessionContract
from environments.word_problems.environment import WordProblems
from tests.environments.answers import call
from tests.environments.playing import play, play_answers

HARD = {"steps": (2, 4), "largest": 60}
TASK = Task("word_problems", "train", 0)


class WordProblemsContractTest(
  SessionContract, unittest.IsolatedAsyncioTestCase
):
  def make_environment(self):
    return WordProblems(**HARD)


class CalculatorContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  def make_environment(self):
    return WordProblems(calculator=True, **HARD)


class ProblemsTest(parameterized.TestCase):
  def test_answer_is_the_value_of_the_expression(self):
    environment = WordProblems(**HARD)
    for index in range(300):
      problem = environment.find(Task("word_problems", "train", index))
      self.assertEqual(
        (eval(problem.expression), problem.solution.splitlines()[-1]),
        (problem.answer, f"#### {problem.answer}"),
      )
      self.assertGreaterEqual(min(problem.partial_results), 1)
      self.assertLessEqual(max(problem.terms), 60)
      for term in problem.terms:
        self.assertRegex(problem.text, rf"\b{term}\b")

  @parameterized.parameters("+-*", "-", "*+")
  def test_splits_share_no_computation_and_have_the_operators(self, operators):
    environment = WordProblems(operators=tuple(operators))
    train, test = (
      {
        environment.find(Task("word_problems", split, index)).expression
        for index in range(2000)
      }
      for split in ("train", "test")
    )
    found = {text.split()[1] for text in train | test}
    self.assertEqual((train & test, found), (set(), {*operators}))
    self.assertGreater(min(len(train), len(test)), 10)


class RewardTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters(False, True)
  async def test_right_number_wins_and_its_neighbour_does_not(self, calculator):
    environment = WordProblems(calculator=calculator, **HARD)
    right = environment.find(TASK).answer
    for number, reward in ((right, 1.0), (right + 1, 0.0)):
      answer = Message("assistant", f"Now {number} pens.")
      _, step = await play_answers(environment, TASK, answer)
      self.assertEqual((step.reward, step.status), (reward, Status.COMPLETED))

  async def test_answer_by_a_call(self):
    environment = WordProblems(calculator=True, **HARD)
    right = environment.find(TASK).answer
    for number, reward in ((right, 1.0), (right + 1, 0.0)):
      answer = call("answer", {"number": number})
      _, step = await play_answers(environment, TASK, answer)
      self.assertEqual((step.reward, step.status), (reward, Status.COMPLETED))

  async def test_a_result_has_its_text_and_a_mistake_has_not(self):
    environment = WordProblems(calculator=True, result="It is {}.")
    steps = await play(environment, TASK)
    self.assertRegex(steps[1].messages[0].content, r"^It is \d+\.$")
    self.assertEqual((len(steps), steps[-1].reward), (3, 1.0))
    _, step = await play_answers(environment, TASK, call("calculate", "{"))
    self.assertNotIn("It is", step.messages[0].content)

  async def test_a_call_where_there_is_no_tool_is_an_answer(self):
    answer = call("calculate", {"left": 1, "operator": "Add", "right": 1})
    _, step = await play_answers(WordProblems(), TASK, answer)
    self.assertEqual((step.reward, step.status), (0.0, Status.COMPLETED))

  async def test_each_mistake_has_its_outcome(self):
    environment = WordProblems(calculator=True, max_turns=4)
    outcomes = {
      "wrong_number": (Status.COMPLETED, 0.0, 3),
      "no_call": (Status.COMPLETED, 1.0, 2),
      "broken_json": (Status.TASK_LIMIT_REACHED, 0.0, 5),
    }
    for mistake, expected in outcomes.items():
      with self.subTest(mistake=mistake):
        steps = await play(environment, TASK, mistakes={mistake: 1.0})
        last = steps[-1]
        self.assertEqual((last.status, last.reward, len(steps)), expected)


class CalculatorTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.parameters(
    ('{"left": 7, "operator": "Subtract", "right": 9}', "-2"),
    ('{"left": 12, "operator": "Multiply", "right": 12}', "144"),
    ('{"left": 1e3, "operator": "Add", "right": 1}', "1001"),
    ('{"left": 7, "operator": "/", "right": 9}', "Error"),
    ('{"left": "7 pens", "operator": "Subtract", "right": 9}', "Error"),
    ('{"left": 1.5, "operator": "Subtract", "right": 9}', "Error"),
    (
      '{"left": 1' + "0" * 40 + ', "operator": "Multiply", "right": 9}',
      "Error",
    ),
    ('{"left": 1e300, "operator": "Multiply", "right": 1e300}', "Error"),
    ("{", "Error"),
  )
  async def test_reply(self, arguments, start):
    environment = WordProblems(calculator=True)
    answer = call("calculate", arguments)
    _, step = await play_answers(environment, TASK, answer)
    self.assertIs(step.status, Status.RUNNING)
    self.assertTrue(step.messages[0].content.startswith(start), step.messages)
