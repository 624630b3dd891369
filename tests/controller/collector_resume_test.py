"""Tests of `controller.collector`: killed anywhere, none lost, none twice."""

import asyncio
import contextlib
import unittest

from tests.controller.pipeline import STEP, Held, Pipeline, ids, played_by
from tests.controller.stage import ScriptedEngine, a_player, turns_of_the_loop


class ResumeTest(unittest.IsolatedAsyncioTestCase):
  async def test_snapshot_tells_running_from_finished(self):
    held = Held()
    pipeline = Pipeline(held)
    async with pipeline.running() as collector:
      await turns_of_the_loop()
      await held.end(2)
      state = collector.snapshot()
    self.assertEqual([p for p, _ in state.in_flight], [0, 1, 3])
    self.assertEqual(ids(state.queued), [2])
    self.assertEqual(state.stream, {"position": 4})
    after = pipeline.collector.snapshot()  # the same once it was cancelled
    self.assertEqual(after.in_flight, state.in_flight)
    self.assertEqual(ids(after.queued), [2])

  async def test_in_flight_come_again_first_with_the_same_seeds(self):
    held, again = Held(), Held()
    pipeline = Pipeline(held)
    async with pipeline.running() as collector:
      await turns_of_the_loop()
      await held.end(2)
      state = collector.snapshot()
    async with Pipeline(again, state=state).running() as collector:
      await turns_of_the_loop()
      self.assertEqual(again.begun, [0, 1, 3])
      collector.advance(1)
      await turns_of_the_loop()
      self.assertEqual(again.begun, [0, 1, 3, 4, 5])
    self.assertEqual(len(set(held.seeds.values())), 4)
    for position in (0, 1, 3):
      self.assertEqual(again.seeds[position], held.seeds[position])

  async def test_snapshot_right_after_restore_is_the_same(self):
    held = Held()
    async with Pipeline(held).running() as collector:
      await turns_of_the_loop()
      await held.end(2)
      state = collector.snapshot()
    self.assertEqual(Pipeline(held, state=state).collector.snapshot(), state)

  async def test_killed_anywhere_none_is_lost_and_none_comes_twice(self):
    """Stops after every number of loop turns, and goes on from there."""
    for turns in range(0, 120, 7):
      with self.subTest(turns=turns):
        first = Pipeline(played_by(a_player()))
        taken = []
        async with first.running() as collector:
          with contextlib.suppress(asyncio.CancelledError):
            taking = asyncio.create_task(collector.take(STEP, version=0))
            await turns_of_the_loop(turns)
            if taking.done():
              taken += ids(taking.result())
            taking.cancel()
          state = collector.snapshot()
        version = len(taken) // STEP
        second = Pipeline(
          played_by(a_player()), state=state, version=version, order="started"
        )
        async with second.running() as collector:
          for later in range(version, 4):
            taken += ids(await collector.take(STEP, version=later))
        self.assertEqual(sorted(taken), list(range(8)))

  async def test_resumed_groups_are_token_for_token_the_same(self):
    async def tokens(state=None, stop_after=None):
      pipeline = Pipeline(
        played_by(a_player(engine=ScriptedEngine(skill=0.7))),
        order="started",
        state=state,
      )
      async with pipeline.running() as collector:
        if stop_after is not None:
          await turns_of_the_loop(stop_after)
          return collector.snapshot()
        groups = await collector.take(STEP, version=0)
      return [
        [turn.sampled.tolist() for turn in t.turns]
        for group in groups
        for t in group.trajectories
      ]

    state = await tokens(stop_after=9)
    self.assertTrue(state.in_flight)
    self.assertEqual(await tokens(state=state), await tokens())


if __name__ == "__main__":
  unittest.main()
