"""A BFCL attempt, message by message: turns, added functions, limits."""

import json
import unittest

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.tools import require_readable
from environments.bfcl import BFCL
from environments.bfcl.scoring import Failure
from environments.bfcl.session import BAD_CALL, MORE_FUNCTIONS
from tests.environments.bfcl.packages import require_packages

DONE = Message("assistant", "Done.")


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
    self.problem = self.environment._problems("base")[0]

  def _open(self, category="base", index=0, environment=None):
    environment = environment or self.environment
    return environment.open(Task("bfcl", category, index), seed=0)

  async def test_the_user_asks_again_once_nothing_is_called(self):
    async with self._open() as session:
      first = await session.reset()
      self.assertEqual(
        first.messages, (Message("user", self.problem.questions[0][0]),)
      )
      called = await session.step(answer(a_call("pwd", {})))
      self.assertEqual([m.role for m in called.messages], ["tool"])
      following = await session.step(DONE)
      self.assertEqual(
        following.messages, (Message("user", self.problem.questions[1][0]),)
      )

  async def test_replies_are_the_functions_own(self):
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

  async def test_a_malformed_call_ends_the_turn_unplayed(self):
    async with self._open() as session:
      await session.reset()
      step = await session.step(
        answer(
          a_call("cd", {"folder": "document"}, "a"), a_call("pwd", "{", "b")
        )
      )
      self.assertEqual(
        step.messages,
        (
          Message("tool", BAD_CALL, tool_call_id="a"),
          Message("tool", BAD_CALL, tool_call_id="b"),
          Message("user", self.problem.questions[1][0]),
        ),
      )
      self.assertIs(session.failure, Failure.NO_CALL)
      step = await session.step(answer(a_call("pwd", {})))
      self.assertNotIn("document", step.messages[0].content)

  async def test_the_step_beyond_the_limit_fails_the_attempt(self):
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

  async def test_the_limit_is_of_each_turn(self):
    environment = BFCL(max_steps=2)
    async with self._open(environment=environment) as session:
      step = await session.reset()
      for _ in self.problem.questions:
        for _ in range(2):
          step = await session.step(answer(a_call("pwd", {})))
          self.assertIs(step.status, Status.RUNNING)
        step = await session.step(DONE)
    self.assertIs(step.status, Status.COMPLETED)

  async def test_functions_are_added_at_their_turn(self):
    problem = self.environment._problems("miss_func")[0]
    self.assertEqual(problem.withheld, {3: ("sort",)})
    async with self._open("miss_func") as session:
      await session.reset()
      listed = [[tool.name for tool in session.tools]]
      for _ in range(3):
        step = await session.step(DONE)
        listed.append([tool.name for tool in session.tools])
      require_readable(session.tools)
    self.assertNotIn("sort", listed[2])
    self.assertEqual(listed[3], [*listed[0], "sort"])
    (message,) = step.messages
    self.assertTrue(message.content.startswith("[{'name': 'sort', 'desc"))
    self.assertTrue(message.content.endswith(f"}}]\n{MORE_FUNCTIONS}"))

  async def test_replies_are_long_in_long_context_alone(self):
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
    self.assertEqual(
      step.metrics,
      {"num_calls": 2.0, "right_turns": 0.0, "right/base": 0.0},
    )


if __name__ == "__main__":
  unittest.main()
