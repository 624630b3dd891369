"""What episodes hold the policy's calls to, turn by turn."""

import contextlib
import unittest

from agentrl_jax.controller.episode import Sampling
from agentrl_jax.data.trajectory import Status
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import ADD, ANSWER
from tests.controller.episode_test import play
from tests.controller.stage import Brittle, ScriptedEngine, codec


class CallContext(Brittle):
  """Has no tools, and takes any answer."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    async with super().open(task, seed=seed) as session:
      session.tools = ()
      session.step = self._step
      yield session

  async def _step(self, answer):
    return Step((), status=Status.COMPLETED)


class Growing(Brittle):
  """Has a tool more after the first answer, as BFCL's tasks may."""

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    async with super().open(task, seed=seed) as session:
      session.tools, step = (ADD,), session.step

      async def grown(answer):
        session.tools = (ADD, ANSWER)
        return await step(answer)

      session.step = grown
      yield session


class EpisodeCallsTest(unittest.IsolatedAsyncioTestCase):
  async def test_calls_follow_a_grammar_of_the_task_s_tools(self):
    for calls, choice in (("well_formed", "auto"), ("required", "required")):
      engine = ScriptedEngine()
      played = await play(engine=engine, sampling=Sampling(calls=calls))
      wanted = codec().call_grammar((ADD, ANSWER), choice=choice)
      self.assertEqual([s.grammar for _, s in engine.asked], [wanted] * 2)
      self.assertEqual([t.grammar for t in played.turns], [wanted] * 2)
      # What it said is what the grammar says, so the learner can tell.
      read = codec().grammars(codec().vocab_size)
      for turn in played.turns:
        read.masks(turn.grammar, turn.sampled)
    free = await play(sampling=Sampling(calls="free"))
    self.assertEqual({turn.grammar for turn in free.turns}, {""})

  async def test_a_task_without_tools_has_nothing_to_call(self):
    context = CallContext()
    played = await play(context, sampling=Sampling(calls="well_formed"))
    self.assertEqual([turn.grammar for turn in played.turns], [""])
    with self.assertRaisesRegex(ConfigError, "arithmetic.* has no tools"):
      await play(context, sampling=Sampling(calls="required"))

  async def test_tools_that_come_on_the_way_are_called_from_then_on(self):
    engine = ScriptedEngine()
    played = await play(
      Growing(), engine=engine, sampling=Sampling(calls="required")
    )
    wanted = [
      codec().call_grammar(tools, choice="required")
      for tools in ((ADD,), (ADD, ANSWER))
    ]
    self.assertEqual([spec.grammar for _, spec in engine.asked], wanted)
    self.assertEqual([turn.grammar for turn in played.turns], wanted)


if __name__ == "__main__":
  unittest.main()
