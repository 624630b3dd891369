"""How an attempt ends, and what is refused as AgentBench refuses it."""

import unittest

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.data.trajectory import Status
from tests.environments.knowledgegraph.session_case import (
  FAILED,
  NO_ENTITY,
  SessionTestCase,
)


class EndTest(SessionTestCase):
  async def test_the_right_variable(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    for text in (
      "Final Answer: #0",
      "Find Answer: #0, I think",
      "So it is.\nFinal Answer: #0 Observation: Final Answer: #1",
    ):
      step = await self.say(text)
      with self.subTest(text=text):
        self.assertIs(step.status, Status.COMPLETED)
        self.assertEqual(step.reward, 1.0)
        self.assertEqual(step.messages, ())

  async def test_half_right_scores_but_pays_nothing(self):
    await self.call("get_neighbors", "A Director", "film.director.film")
    await self.call("argmax", "#0", "film.film.runtime")
    step = await self.say("Final Answer: #1")
    self.assertIs(step.status, Status.COMPLETED)
    self.assertEqual(step.reward, 0.0)
    self.assertAlmostEqual(step.metrics["f1"], 2 / 3)
    self.assertEqual(step.metrics["right/grailqa"], 0.0)

  async def test_a_variable_that_is_not_there(self):
    for text in ("Final Answer: #0", f"Final Answer: #{10**30}"):
      step = await self.say(text)
      self.assertIs(step.status, Status.AGENT_VALIDATION_FAILED)
      self.assertEqual((step.reward, step.messages), (0.0, ()))

  async def test_no_call_and_no_answer(self):
    for text in (
      "",
      "final answer: #0",
      "Final Answer: A Director",
      "Final Answer: #",
      "Observation: Final Answer: #0",
    ):
      step = await self.say(text)
      with self.subTest(text=text):
        self.assertIs(step.status, Status.RUNNING)
        self.assertEqual(
          step.messages,
          (
            Message(
              "user",
              "No valid function calls found! Need to recheck the function "
              "calls.",
            ),
          ),
        )

  async def test_the_last_round_is_played(self):
    self.session = self.make_session(max_rounds=2)
    await self.say("hm")
    call = ToolCall("get_relations", '{"variable": "m.0dir"}', "c1")
    step = await self.session.step(Message("assistant", tool_calls=(call,)))
    self.assertIs(step.status, Status.TASK_LIMIT_REACHED)
    self.assertEqual(
      step.messages[0].content, "Observation: [film.director.film]"
    )


class QuirksTest(SessionTestCase):
  async def test_ids_of_the_newer_form(self):
    self.assertEqual(
      await self.call("get_relations", "g.12"),
      "Observation: [film.director.film]",
    )
    self.session = self.make_session(upstream_quirks=True)
    self.assertEqual(
      await self.call("get_relations", "g.12"),
      FAILED + NO_ENTITY.format("get_relations"),
    )

  async def test_what_agentbench_cannot_write_in_sparql(self):
    for quirks, last in (
      (False, Status.COMPLETED),
      (True, Status.AGENT_VALIDATION_FAILED),
    ):
      for calls in (
        [("argmax", "#0", "film.film.runtime"), ("count", "#1")],
        [("argmax", "#0", "film.film.runtime")] * 2
        + [("intersection", "#1", "#2")],
      ):
        self.session = self.make_session(upstream_quirks=quirks)
        await self.call("get_neighbors", "A Director", "film.director.film")
        for name, *values in calls:
          await self.call(name, *values)
        step = await self.say(f"Final Answer: #{len(calls)}")
        with self.subTest(quirks=quirks, calls=calls):
          self.assertIs(step.status, last)


if __name__ == "__main__":
  unittest.main()
