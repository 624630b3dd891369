"""Tests of BFCL episodes: turns, added functions, limits, verdicts."""

import json
import unittest

from agentrl_jax.data.records import Message, Status, Task, ToolCall
from environments.bfcl import BFCL
from environments.bfcl.apis import APIs
from environments.bfcl.session import (
  BAD_CALL,
  MORE_FUNCTIONS,
  Failure,
  TurnChecker,
)
from tests.environments.bfcl.packages import require_packages

DONE = Message("assistant", "Done.")
FILES = ("GorillaFileSystem",)


def a_call(name, arguments, id="c0"):
  if not isinstance(arguments, str):
    arguments = json.dumps(arguments)
  return ToolCall(name, arguments, id)


def answer(*calls):
  return Message("assistant", tool_calls=calls)


class SessionTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    require_packages()
    self.environment = BFCL()
    self.problem = self.environment.find(Task("bfcl", "base", 0))

  def _open(self, category="base", index=0, environment=None):
    environment = environment or self.environment
    return environment.open(Task("bfcl", category, index), seed=0)

  async def test_answer_without_a_call_ends_the_turn(self):
    async with self._open() as session:
      question = Message("user", self.problem.questions[0][0])
      self.assertEqual((await session.reset()).messages, (question,))
      called = await session.step(answer(a_call("pwd", {})))
      self.assertEqual([m.role for m in called.messages], ["tool"])
      following = await session.step(DONE)
      second = Message("user", self.problem.questions[1][0])
      self.assertEqual(following.messages, (second,))

  async def test_replies_are_the_results_of_the_functions(self):
    async with self._open() as session:
      await session.reset()
      step = await session.step(
        answer(
          a_call("cd", {"folder": "document"}, "a"),
          a_call("mkdir", {"dir_name": "temp"}, "b"),
          a_call("ls", {}, "c"),
          a_call("cd", {"folder": "nowhere"}, "d"),
          a_call("cd", {}, "e"),
          a_call("format_disk", {}, "f"),
          a_call("exit", {}, "g"),
          a_call("_load_scenario", {"scenario": {}}, "h"),
        )
      )
    self.assertEqual([m.tool_call_id for m in step.messages], list("abcdefgh"))
    self.assertEqual(
      [m.content for m in step.messages],
      [
        '{"current_working_directory": "document"}',
        "None",
        '{"current_directory_content": ["final_report.pdf", '
        '"previous_report.pdf", "temp"]}',
        """{"error": "cd: 'nowhere': No such file or directory"}""",
        "Error during execution: GorillaFileSystem.cd() missing 1 required "
        "positional argument: 'folder'",
        "Error during execution: name 'format_disk' is not defined",
        "Error during execution: Function call exit is not allowed.",
        "Error during execution: name '_load_scenario' is not defined",
      ],
    )

  async def test_malformed_call_ends_the_turn_without_any_call(self):
    async with self._open() as session:
      await session.reset()
      calls = a_call("cd", {"folder": "document"}, "a"), a_call("pwd", "{", "b")
      step = await session.step(answer(*calls))
      replies = [Message("tool", BAD_CALL, tool_call_id=id) for id in "ab"]
      question = Message("user", self.problem.questions[1][0])
      self.assertEqual(step.messages, (*replies, question))
      self.assertIs(session.failure, Failure.NO_CALL)
      step = await session.step(answer(a_call("pwd", {})))
      self.assertNotIn("document", step.messages[0].content)

  async def test_answer_beyond_the_limit_ends_the_episode(self):
    environment = BFCL(max_steps=3)
    async with self._open(environment=environment) as session:
      await session.reset()
      for _ in range(3):
        step = await session.step(answer(a_call("pwd", {})))
        self.assertIs(step.status, Status.RUNNING)
      step = await session.step(answer(a_call("pwd", {})))
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(step.reward, 0.0)
    self.assertIs(session.failure, Failure.STEP_LIMIT)

  async def test_limit_is_counted_per_turn(self):
    environment = BFCL(max_steps=2)
    async with self._open(environment=environment) as session:
      step = await session.reset()
      for _ in self.problem.questions:
        for _ in range(2):
          step = await session.step(answer(a_call("pwd", {})))
          self.assertIs(step.status, Status.RUNNING)
        step = await session.step(DONE)
    self.assertIs(step.status, Status.COMPLETED)

  async def test_withheld_functions_are_added_at_their_turn(self):
    problem = self.environment.find(Task("bfcl", "miss_func", 0))
    self.assertEqual(problem.withheld, {3: ("sort",)})
    async with self._open("miss_func") as session:
      await session.reset()
      listed = [[tool.name for tool in session.tools]]
      for _ in range(3):
        step = await session.step(DONE)
        listed.append([tool.name for tool in session.tools])
    self.assertNotIn("sort", listed[2])
    self.assertEqual(listed[3], [*listed[0], "sort"])
    (message,) = step.messages
    self.assertTrue(message.content.startswith("[{'name': 'sort', 'desc"))
    self.assertTrue(message.content.endswith(f"}}]\n{MORE_FUNCTIONS}"))

  async def test_only_long_context_pads_replies(self):
    lengths = []
    for category in ("base", "long_context"):
      async with self._open(category) as session:
        await session.reset()
        step = await session.step(
          answer(
            a_call("cd", {"folder": "document"}),
            a_call("cat", {"file_name": "previous_report.pdf"}),
          )
        )
      lengths.append(len(step.messages[1].content))
    self.assertLess(lengths[0], 200)
    self.assertGreater(lengths[1], 1000)

  async def test_metrics(self):
    async with self._open() as session:
      step = await session.reset()
      await session.step(answer(a_call("pwd", {}), a_call("ls", {})))
      while step.status is Status.RUNNING:
        step = await session.step(DONE)
    expected = {"num_calls": 2.0, "right_turns": 0.0, "right/base": 0.0}
    self.assertEqual(step.metrics, expected)


class TurnCheckerTest(unittest.TestCase):
  def setUp(self):
    require_packages()

  def _verdicts(self, gold, turns):
    """Returns the verdict on each turn, given its calls."""
    apis, gold_apis = (APIs(FILES, {}, is_long=False) for _ in range(2))
    checker = TurnChecker(gold, gold_apis)
    return [
      checker.check(
        turn,
        [apis.call(name, (), arguments) for name, arguments in calls],
        apis,
      )
      for turn, calls in enumerate(turns)
    ]

  def test_result_is_required_as_often_as_gold_has_it(self):
    gold = [["pwd()", "pwd()"]]
    self.assertEqual(self._verdicts(gold, [[("pwd", {})]]), [Failure.RESULTS])
    self.assertEqual(self._verdicts(gold, [[("pwd", {})] * 2]), [None])

  def test_results_of_earlier_turns_count(self):
    gold = [["pwd()"], ["pwd()", "ls()"]]
    turns = [[("pwd", {})] * 2, [("ls", {})]]
    self.assertEqual(self._verdicts(gold, turns), [None, None])

  def test_order_and_additional_calls_do_not_matter(self):
    gold = [["ls()", "pwd()"]]
    turns = [[("pwd", {}), ("ls", {"a": True}), ("ls", {}), ("cd", {})]]
    self.assertEqual(self._verdicts(gold, turns), [None])

  def test_state_is_compared_before_results(self):
    gold = [["touch(file_name='a')", "pwd()"]]
    turns = [[("touch", {"file_name": "b"})]]
    self.assertEqual(self._verdicts(gold, turns), [Failure.STATE])

  def test_call_is_required_even_without_a_change_of_state(self):
    self.assertEqual(self._verdicts([["pwd()"]], [[]]), [Failure.NO_CALL])

  def test_turn_without_gold_is_right_but_keeps_its_effects(self):
    gold = [[], ["pwd()"]]
    turns = [[("touch", {"file_name": "a"})], [("pwd", {})]]
    self.assertEqual(self._verdicts(gold, turns), [None, Failure.STATE])
