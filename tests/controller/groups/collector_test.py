"""Tests of the collector: admission, order, failure and its end."""

import asyncio
import contextlib
import dataclasses
import unittest

import pytest

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.errors import DeadlineExceeded, QueueClosed
from tests.clocks import Clock, turns_of_the_loop, until
from tests.controller.pipeline import (
  STEP,
  Held,
  Pipeline,
  at_once,
  ids,
  played_by,
)
from tests.controller.stage import (
  Brittle,
  ScriptedEngine,
  a_group,
  a_player,
  started,
)


def with_signal(every: int):
  """Plays groups of which the last in so many has different rewards."""

  async def play(pipeline, task, group_id, seed):
    await asyncio.sleep(0)
    number = int(group_id)
    group = a_group(number, version=pipeline.admission.version)
    first, second = group.trajectories
    if number % every == every - 1:
      first = dataclasses.replace(first, reward=second.reward - 1)
    return dataclasses.replace(group, trajectories=(first, second))

  return play


class CollectorTest(unittest.IsolatedAsyncioTestCase):
  async def test_real_groups_arrive_in_order_of_the_stream(self):
    pipeline = Pipeline(played_by(a_player()), order="started")
    async with pipeline.running() as collector:
      for version in range(5):
        groups = await collector.take(STEP, version=version)
        self.assertEqual(ids(groups), [2 * version, 2 * version + 1])
        for group in groups:
          self.assertEqual(group.task, pipeline.stream.at(int(group.id)))
          self.assertEqual([t.reward for t in group.trajectories], [1.0] * 4)

  async def test_idle_learner_stops_the_environments(self):
    """Starts 4 groups, for staleness 1 and 2 groups a step, and no more."""
    held = Held()
    pipeline = Pipeline(held)
    async with pipeline.running() as collector:
      await held.end(*range(100))
      self.assertEqual(held.begun, [0, 1, 2, 3])
      await collector.take(STEP, version=0)
      await turns_of_the_loop()
      self.assertEqual(len(held.begun), 4)
      collector.advance(1)
      await turns_of_the_loop()
      self.assertEqual(len(held.begun), 6)

  async def test_full_queue_counts_as_in_flight(self):
    held = Held()
    pipeline = Pipeline(held, max_staleness=9, concurrent=3, max_groups=2)
    async with pipeline.running() as collector:
      await held.end(*range(100))
      self.assertEqual(len(held.begun), 5)  # 2 queued, 3 wait for room
      self.assertEqual(len(collector.snapshot().queued), 5)
      await collector.take(STEP, version=0)
      await turns_of_the_loop()
      self.assertEqual(len(held.begun), 7)

  async def test_a_take_that_is_cancelled_at_any_moment_loses_no_group(self):
    """They are returned, or in the queue: else the learner waits for ever."""
    taken = []
    for num_turns in range(20):
      held = Held()
      pipeline = Pipeline(held)
      async with pipeline.running() as collector:
        collector._overdue = OverdueGroups(
          pipeline.queue, GroupTimers(), patience=1.0
        )
        taking = asyncio.create_task(collector.take(STEP, version=0))
        await turns_of_the_loop()
        ending = asyncio.create_task(held.end(0, 1))
        for _ in range(num_turns):
          await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking, ending])
        await turns_of_the_loop()
        found = 0 if taking.cancelled() else len(taking.result())
        queued = len(collector.snapshot().queued)
        self.assertEqual(found + queued, STEP, num_turns)
        taken.append(found)
    self.assertEqual(set(taken), {0, STEP})  # it was cancelled before and after

  async def test_lost_group_is_made_up_for(self):
    async def play(pipeline, task, group_id, seed):
      await asyncio.sleep(0)
      return None if int(group_id) % 3 == 0 else a_group(int(group_id))

    for order in ("finished", "started"):
      pipeline = Pipeline(play, max_staleness=0, order=order)
      async with pipeline.running() as collector:
        taken = []
        for version in range(4):
          taken += ids(await collector.take(STEP, version=version))
      self.assertEqual(taken, [1, 2, 4, 5, 7, 8, 10, 11])

  async def test_groups_without_a_signal_are_replaced(self):
    """Of three in a row, two are replaced; the learner waits for no fourth."""
    pipeline = Pipeline(with_signal(every=4), max_staleness=0, refills=2)
    async with pipeline.running() as collector:
      taken = ids(await collector.take(STEP, version=0))
      self.assertEqual(taken, [2, 3])  # 0 and 1 were replaced, 2 was not
      counts = pipeline.monitor.tasks["arithmetic"]
      self.assertEqual(counts.dropped, {"no_signal": 2})
      for version in range(1, 5):
        await collector.take(STEP, version=version)
    self.assertEqual(counts.dropped["no_signal"], 2 * 5)

  async def test_task_that_never_has_a_signal_freezes_nothing(self):
    for order in ("finished", "started"):
      pipeline = Pipeline(
        with_signal(every=10**6), max_staleness=0, refills=2, order=order
      )
      async with pipeline.running() as collector:
        for version in range(4):
          async with asyncio.timeout(10):
            taken = await collector.take(STEP, version=version)
          self.assertEqual(len(taken), STEP)
          self.assertEqual(
            {g.oldest_version for g in taken}, {version}, "stale"
          )

  async def test_state_has_no_replaced_group(self):
    pipeline = Pipeline(with_signal(every=4), refills=3)
    async with pipeline.running() as collector:
      await turns_of_the_loop(20)
      state = collector.snapshot()
    self.assertNotIn(0, ids(state.queued) + [n for n, _ in state.in_flight])
    again = Pipeline(with_signal(every=4), refills=3, state=state)
    async with again.running() as collector:
      taken = ids(await collector.take(STEP, version=0))
      taken += ids(await collector.take(STEP, version=1))
    self.assertEqual(len(set(taken)), 4)
    self.assertEqual(set(taken) & {0, 1, 2}, set())

  async def test_environment_that_is_down_is_asked_less_and_less(self):
    """Four groups at once, then one after 1, 2, 4 s and so on, up to 60 s."""
    num_asked = 0

    async def play(pipeline, task, group_id, seed):
      nonlocal num_asked
      num_asked += 1
      if num_asked <= 20:
        return None
      return await at_once(pipeline, task, group_id, seed)

    clock = Clock()
    pipeline = Pipeline(play, concurrent=4)
    async with pipeline.running() as collector:
      await turns_of_the_loop()
      self.assertEqual(num_asked, 4)
      for seconds, expected in ((0.9, 4), (0.2, 5), (1.5, 5), (1, 6), (5, 7)):
        await clock.forward(seconds)
        self.assertEqual(num_asked, expected)
      for _ in range(20):
        await clock.forward(61)
      self.assertEqual(len(await collector.take(STEP, version=0)), STEP)

  async def test_one_lost_group_is_followed_by_another_at_once(self):
    asked = []

    async def play(pipeline, task, group_id, seed):
      asked.append(group_id)
      return a_group(int(group_id)) if int(group_id) % 2 else None

    pipeline = Pipeline(play, max_staleness=50, max_groups=50, concurrent=1)
    async with pipeline.running():
      await turns_of_the_loop(200)
    self.assertGreater(len(asked), 50)

  async def test_staleness_is_bounded_when_taken_as_started(self):
    pipeline = Pipeline(at_once, max_staleness=2, order="started")
    async with pipeline.running() as collector:
      for version in range(12):
        await collector.take(STEP, version=version)
    self.assertEqual(pipeline.monitor.staleness.total(), 24)
    self.assertLessEqual(max(pipeline.monitor.staleness), 2)

  async def test_age_is_bounded_when_the_slow_are_waited_for_in_time(self):
    """Plays two groups in the time of every third group, which is slow."""

    async def play(pipeline, task, group_id, seed):
      if int(group_id) % 3:
        return await at_once(pipeline, task, group_id, seed)
      version = pipeline.admission.version
      await turns_of_the_loop(40)
      return a_group(int(group_id), version=version)

    ages = {}
    for max_age in (ANY_AGE, 1):
      pipeline = Pipeline(play, max_staleness=1, max_age=max_age)
      async with pipeline.running() as collector:
        for version in range(20):
          await collector.take(STEP, version=version)
      ages[max_age] = max(pipeline.monitor.staleness)
    self.assertGreater(ages[ANY_AGE], 1)
    self.assertEqual(ages[1], 1)

  async def test_bug_closes_the_queue_cancels_the_rest_and_is_raised(self):
    environment = Brittle()
    broken = played_by(
      a_player(environment, ScriptedEngine(gate=asyncio.Event().wait))
    )

    async def play(pipeline, task, group_id, seed):
      if int(group_id) == 1:
        await turns_of_the_loop()
        raise ZeroDivisionError
      return await broken(pipeline, task, group_id, seed)

    pipeline = Pipeline(play)
    with self.assertRaises(ExceptionGroup) as caught:
      await pipeline.collector.run()
    self.assertIsInstance(caught.exception.exceptions[0], ZeroDivisionError)
    self.assertGreater(environment.most_open, 0)
    self.assertEqual(environment.num_open, 0)
    with self.assertRaises(QueueClosed):
      await pipeline.collector.take(1, version=0)
    self.assertEqual(len(asyncio.all_tasks()), 1)

  async def test_cancelling_leaves_no_session(self):
    environment = Brittle()
    engine = ScriptedEngine(gate=asyncio.Event().wait)
    async with Pipeline(played_by(a_player(environment, engine))).running():
      await until(lambda: environment.num_open == 16)
    self.assertEqual(environment.num_open, 0)

  async def test_nothing_to_do_for_too_long_says_why(self):
    clock = Clock()
    pipeline = Pipeline(at_once)
    collecting = await started(pipeline.collector.run())
    await clock.forward(3601)
    with self.assertRaises(ExceptionGroup) as caught:
      await collecting
    (error,) = caught.exception.exceptions
    self.assertIsInstance(error, DeadlineExceeded)
    self.assertIn("4 groups have started, as many as the learner", str(error))


class FaultsTest(unittest.IsolatedAsyncioTestCase):
  @pytest.mark.slow
  async def test_500_episodes_with_faults_lose_no_group_and_no_session(self):
    environment = Brittle(fault_rate=0.05, seed=3)
    engine = ScriptedEngine(skill=0.8)
    pipeline = Pipeline(played_by(a_player(environment, engine)))
    num_steps, seen = 63, []  # 63 * 2 groups * 4 attempts = 504 episodes
    async with pipeline.running() as collector:
      for version in range(num_steps):
        seen += await collector.take(STEP, version=version)
      collector.pause()
      await until(lambda: pipeline.admission.in_flight == 0)
      state = collector.snapshot()
    self.assertEqual(environment.num_open, 0)
    self.assertEqual(state.in_flight, ())
    counts = pipeline.monitor.tasks["arithmetic"]
    every = [*seen, *state.queued]
    self.assertEqual(sorted(ids(every)), list(range(len(every))))
    self.assertFalse(counts.dropped)
    self.assertGreater(environment.num_faults, 50)
    self.assertEqual(counts.faults.total(), environment.num_faults)
    self.assertEqual(counts.started, counts.finished + counts.faults.total())
    self.assertEqual(counts.masked, sum(g.num_masked for g in every))
    self.assertEqual(counts.finished, sum(len(g.trajectories) for g in every))
    self.assertEqual(counts.finished + counts.masked, 4 * len(every))
    self.assertEqual(counts.started, 4 * len(every) + counts.retried)


async def stopped_after_one():
  """Returns groups, of which only number 2 has ended, and the state."""
  held = Held()
  pipeline = Pipeline(held)
  async with pipeline.running() as collector:
    await turns_of_the_loop()
    await held.end(2)
    return held, pipeline, collector.snapshot()


class ResumeTest(unittest.IsolatedAsyncioTestCase):
  async def test_snapshot_tells_running_from_finished(self):
    _, pipeline, state = await stopped_after_one()
    self.assertEqual([p for p, _ in state.in_flight], [0, 1, 3])
    self.assertEqual(ids(state.queued), [2])
    self.assertEqual(state.stream, {"position": 4})
    after = pipeline.collector.snapshot()  # the same once it was cancelled
    self.assertEqual(after.in_flight, state.in_flight)
    self.assertEqual(ids(after.queued), [2])

  async def test_in_flight_come_again_first_with_the_same_seeds(self):
    again = Held()
    held, _, state = await stopped_after_one()
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
    held, _, state = await stopped_after_one()
    self.assertEqual(Pipeline(held, state=state).collector.snapshot(), state)

  @pytest.mark.slow
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
