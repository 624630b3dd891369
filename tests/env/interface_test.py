"""The guards around every session: the end of an episode, and long answers."""

import unittest

from absl.testing import parameterized

from agentrl_jax.data.records import Message, Status, ToolCall
from agentrl_jax.env.interface import Session, Step
from agentrl_jax.errors import EnvironmentFault

GO_ON = Step((Message("user", "Go on."),))


class Scripted(Session):
  """Returns prepared steps, or raises them; keeps what it was given."""

  tools = ()

  def __init__(self, *steps):
    self.steps, self.got = list(steps), []

  async def reset(self):
    return GO_ON

  async def step(self, answer):
    self.got.append(answer)
    step = self.steps.pop(0)
    if isinstance(step, Exception):
      raise step
    return step


class Twice(Scripted):
  """Goes on after the end of what it is derived from."""

  async def step(self, answer):
    first = await super().step(answer)
    if first.status is Status.RUNNING:
      return first
    return await super().step(answer)


class Heir(Scripted):
  """Leaves `step` as it is."""


def answer(*calls):
  return Message(
    "assistant",
    tool_calls=tuple(
      ToolCall(name, arguments, f"c{n}")
      for n, (name, arguments) in enumerate(calls)
    ),
  )


class EndTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  @parameterized.product(
    kind=(Scripted, Heir),
    last=(
      *(
        Step((), 1.0, status) for status in Status if status.value != "running"
      ),
      EnvironmentFault("broken"),
      KeyError("a bug"),
    ),
  )
  async def test_nothing_is_played_after_the_end(self, kind, last):
    session = kind(GO_ON, last, GO_ON)
    await session.step(answer())
    if isinstance(last, Exception):
      with self.assertRaises(type(last)):
        await session.step(answer())
    else:
      self.assertIs(await session.step(answer()), last)
    for _ in range(2):
      with self.assertRaisesRegex(EnvironmentFault, "after the episode's end"):
        await session.step(answer())
    self.assertLen(session.got, 2)

  async def test_a_subclass_decides_about_the_end(self):
    end = Step((), 0.0, Status.COMPLETED)
    session = Twice(end, GO_ON, GO_ON, end, end)
    self.assertIs(await session.step(answer()), GO_ON)
    self.assertIs(await session.step(answer()), GO_ON)
    self.assertIs(await session.step(answer()), end)
    with self.assertRaisesRegex(EnvironmentFault, "after the episode's end"):
      await session.step(answer())


class BoundsTest(unittest.IsolatedAsyncioTestCase):
  async def test_an_answer_within_the_bounds_is_played_as_it_is(self):
    session = Scripted(GO_ON)
    said = answer(*[("go", "{}")] * 64)
    self.assertIs(await session.step(said), GO_ON)
    self.assertIs(session.got[0], said)

  async def test_calls_above_the_bound_are_told_and_not_played(self):
    session = Scripted(GO_ON)
    said = answer(*[("go", "{}")] * 2000)
    step = await session.step(said)
    self.assertEqual(session.got[0].tool_calls, said.tool_calls[:64])
    *before, note = step.messages
    self.assertEqual(tuple(before), GO_ON.messages)
    self.assertRegex(note.content, "at most 64 calls of an answer are played")

  async def test_long_arguments_are_cut_whatever_call_they_are_of(self):
    session = Scripted(GO_ON, GO_ON)
    session.max_call_chars = 10
    await session.step(answer(("go", "{}"), ("to", '{"x": 100}'), ("go", "{}")))
    played = [(c.name, c.arguments) for c in session.got[0].tool_calls]
    self.assertEqual(played, [("go", "{}"), ("to", '{"x"'), ("", "")])
    step = await session.step(answer(("n" * 11, "{}")))
    (call,) = session.got[1].tool_calls
    self.assertEqual((call.name, call.arguments, call.id), ("n" * 10, "", "c0"))
    self.assertRegex(step.messages[-1].content, "10 characters of their")

  async def test_the_last_step_needs_no_note(self):
    end = Step((), 1.0, Status.COMPLETED)
    session = Scripted(end)
    self.assertIs(await session.step(answer(*[("go", "{}")] * 65)), end)
