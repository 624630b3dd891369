"""Sessions of one call an answer: turns, mistakes, and what ends them."""

import unittest

from agentrl_jax.data.records import Message, Status, Tool, ToolCall
from agentrl_jax.env.interface import OneCallSession, Step

GO = Tool(
  "go",
  "Goes.",
  {
    "type": "object",
    "properties": {"steps": {"type": "integer"}},
    "required": ["steps"],
    "additionalProperties": False,
  },
)


class Walk(OneCallSession):
  """Ends well after three steps or more at once."""

  tools = (GO,)

  def __init__(self, max_turns=3):
    super().__init__("Where to?", max_turns=max_turns, no_call="Call go.")
    self.played = []

  def play(self, tool, arguments):
    self.played.append((tool, arguments["steps"]))
    if arguments["steps"] >= 3:
      return Step((), reward=1.0, status=Status.COMPLETED)
    return "not there"


def calls(*steps):
  return Message(
    "assistant",
    tool_calls=tuple(
      ToolCall("go", f'{{"steps": {n}}}', id=f"call_{i}")
      for i, n in enumerate(steps)
    ),
  )


class OneCallSessionTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.session = Walk()

  async def test_begins_with_the_question(self):
    step = await self.session.reset()
    self.assertEqual(step.messages, (Message("user", "Where to?"),))
    self.assertIs(step.status, Status.RUNNING)

  async def test_a_reply_belongs_to_its_call(self):
    step = await self.session.step(calls(1))
    reply = Message("tool", "not there", tool_call_id="call_0")
    self.assertEqual(step, Step((reply,)))

  async def test_the_task_ends_it(self):
    step = await self.session.step(calls(3))
    self.assertEqual(step, Step((), reward=1.0, status=Status.COMPLETED))

  async def test_further_calls_are_ignored(self):
    step = await self.session.step(calls(1, 3))
    self.assertIs(step.status, Status.RUNNING)
    self.assertEqual(self.session.played, [("go", 1)])

  async def test_an_answer_without_a_readable_call_is_not_played(self):
    step = await self.session.step(Message("assistant", "three"))
    self.assertEqual(step.messages, (Message("user", "Call go."),))
    for arguments in ('{"steps": 3', '{"steps": "many"}', "{}"):
      call = ToolCall("go", arguments, id="x")
      self.session.turns_left = 3
      step = await self.session.step(Message("assistant", tool_calls=(call,)))
      self.assertEqual(step.messages[0].tool_call_id, "x")
      self.assertEqual(step.reward, 0)
    self.assertEqual(self.session.played, [])

  async def test_every_answer_is_a_turn(self):
    for answer in (calls(1), Message("assistant", "?")):
      step = await self.session.step(answer)
      self.assertIs(step.status, Status.RUNNING)
    step = await self.session.step(calls(2))
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(step.reward, 0)

  async def test_the_last_answer_may_end_it_well(self):
    self.session.turns_left = 1
    step = await self.session.step(calls(3))
    self.assertIs(step.status, Status.COMPLETED)
