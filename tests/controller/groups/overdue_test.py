"""Ages are bounded, and no episode holds the learner; on a virtual clock."""

import asyncio
import contextlib
import math
import unittest
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.groups.group_queue import ANY_AGE
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.groups.timers import GroupTimers
from tests.controller.groups import virtual_time
from tests.controller.groups.simulation import HOUR, SIZE, STEP, Settings, train


class OverdueTest(unittest.TestCase):
  def test_no_group_is_too_old_or_waited_for_long_after_resumes(self):
    # Resumes so often that no step is measured.
    self._check_ages(2, 3, 0, 0.01, {15, 16, 17}, 0)
    # One hangs after a resume, and all others started before one ended.
    self._check_ages(3, 4, 0, 0.01, {3, 6}, 3)

  @pytest.mark.slow
  @settings(max_examples=30, deadline=None)
  @given(
    stride=st.integers(1, 3),
    staleness=st.integers(0, 4),
    slack=st.integers(0, 4),
    hanging=st.sampled_from([0.0, 0.01]),
    resumes=st.sets(st.integers(1, 29), max_size=3),
    seed=st.integers(0, 9),
  )
  def test_no_group_is_too_old_or_waited_for_long(self, **case):
    self._check_ages(**case)

  def _check_ages(self, stride, staleness, slack, hanging, resumes, seed):
    made = Settings(
      max_staleness=staleness,
      max_age=staleness + slack,
      stride=stride,
      hanging=hanging,
      seed=seed,
    )
    found = train(made, steps=30, resume_at=resumes)
    self.assertLessEqual(max(found.monitor.staleness), made.max_age)
    ids = [group.id for group in found.groups]
    self.assertEqual(len(set(ids)), len(ids))
    if staleness > stride:  # so that others finish while one hangs
      self.assertLess(found.seconds, HOUR / 4)

  def test_a_hanging_episode_costs_what_it_took_of_its_group(self):
    found = train(Settings(hanging=0.02))
    short = [g for g in found.groups if len(g.trajectories) < SIZE]
    self.assertGreater(len(short), 0)
    self.assertTrue(all(len(g.trajectories) >= 2 for g in short))
    self.assertEqual({g.num_masked for g in short}, {1})

  def test_hanging_groups_that_use_up_admission_are_ended(self):
    made = Settings(max_staleness=0, max_age=0, hanging=0.01)
    found = train(made, steps=100)
    self.assertGreater(found.monitor.tasks["a"].late, 2)
    self.assertLess(found.seconds / 100, 20 * made.train_s)

  def test_an_outage_costs_a_quarter_of_a_batch_at_most(self):
    for second in range(20, 40, 7):
      made = Settings(max_staleness=1, max_age=8, outage_at=second + 0.5)
      found = train(made, steps=20)
      self.assertLessEqual(found.monitor.tasks["a"].late, SIZE * STEP / 4)

  def test_without_a_maximum_age_no_group_is_cut_off(self):
    found = train(Settings(patience=0.0, max_age=ANY_AGE, max_staleness=3))
    self.assertGreater(max(found.monitor.staleness), 3)
    self.assertEqual(found.monitor.tasks["a"].late, 0)

  def test_a_long_step_ends_no_group(self):
    found = train(Settings(slow_s=20.0), pause_at={5, 6, 20})
    self.assertEqual(found.monitor.tasks["a"].late, 0)

  def test_episodes_that_are_all_slow_are_not_ended(self):
    for slow_s in (1.0, 60.0, 600.0):
      found = train(Settings(slow_s=slow_s, train_s=0.01))
      self.assertEqual(found.monitor.tasks["a"].late, 0, slow_s)

  def test_waits_do_not_make_longer_waits(self):
    made = Settings(hanging=0.08, max_staleness=6, max_age=6, patience=2.0)
    found = train(made, steps=100)
    self.assertGreater(found.monitor.tasks["a"].late, 50)
    self.assertLess(found.seconds / 100, 2 * made.patience * made.train_s)

  def test_more_patience_ends_fewer(self):
    late = [
      train(Settings(max_age=1, patience=patience)).monitor.tasks["a"].late
      for patience in (0.0, 0.5, 8.0)
    ]
    self.assertGreater(late[0], late[1])
    self.assertGreater(late[1], late[2])
    self.assertEqual(late[2], 0)


class LackingGroupsTest(unittest.IsolatedAsyncioTestCase):
  async def test_one_step_ends_a_quarter_of_the_groups_that_it_lacks(self):
    """A batch of 8 lacks up to 2 groups, which straggle one after the other."""
    ended = []
    queue = mock.Mock(held_by=lambda *_: [], changed=asyncio.Event().wait)
    timers = mock.Mock(end=ended.append, straggles_at=lambda _: 0.0)
    overdue = OverdueGroups(queue, timers, patience=0.0)
    for groups in (["a"], ["b", "c"], ["d"]):
      queue.lacked_by = lambda _, groups=groups: groups
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
          await overdue.watch(8, 0)
    self.assertEqual(ended, ["a", "b"])
    overdue.taken()
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(0.01):
        await overdue.watch(8, 1)
    self.assertEqual(ended, ["a", "b", "d"])


class GroupTimersTest(unittest.IsolatedAsyncioTestCase):
  async def test_ends_a_group_that_is_played_and_no_other(self):
    timers = GroupTimers()
    timers.end("a")
    with self.assertRaises(TimeoutError):
      async with timers.running("t", "a", 60.0):
        timers.end("b")
        await asyncio.sleep(0)
        timers.end("a")
        timers.end("a")
        await asyncio.sleep(60)
    timers.end("a")


class StragglersTest(unittest.TestCase):
  def test_a_straggler_is_played_longer_than_three_others(self):
    """On a virtual clock, after a first group that took a minute to compile."""

    async def straggles_at(num_others, *, num_beside=0):
      timers, loop = GroupTimers(), asyncio.get_running_loop()
      begun = loop.time()
      for length_s in (60.0, *range(1, num_others + 1)):
        since = loop.time()
        await asyncio.sleep(length_s)
        timers.note_whole("t", since)
        timers.note_whole("t", begun)  # as cold as the first
        timers.note_whole("u", begun)  # of another task
      async with contextlib.AsyncExitStack() as stack:
        for group in ("a", *map(str, range(num_beside))):
          await stack.enter_async_context(timers.running("t", group, 600.0))
        return timers.straggles_at("a") - loop.time()

    def after_s(*others, **beside):
      return virtual_time.run(straggles_at(*others, **beside))

    self.assertEqual(after_s(2), math.inf)
    self.assertAlmostEqual(after_s(3), 3 * 3.0, delta=0.01)
    self.assertEqual(after_s(3, num_beside=1), math.inf)
    self.assertAlmostEqual(after_s(6, num_beside=1), 3 * 6.0, delta=0.01)

  def test_a_cold_straggler_is_compared_with_cold_groups(self):
    """All started at once, and no other can start before the last has ended."""

    async def straggles_at(num_others, *, num_beside=0):
      timers, loop = GroupTimers(), asyncio.get_running_loop()
      begun = loop.time()
      async with contextlib.AsyncExitStack() as stack:
        for group in ("a", *map(str, range(num_beside))):
          await stack.enter_async_context(timers.running("t", group, 600.0))
        for _ in range(num_others):
          await asyncio.sleep(1.0)
          timers.note_whole("t", begun)
        return timers.straggles_at("a") - begun

    def after_s(*others, **beside):
      return virtual_time.run(straggles_at(*others, **beside))

    self.assertEqual(after_s(2), math.inf)
    self.assertAlmostEqual(after_s(7), 3 * 7.0, delta=0.01)
    self.assertEqual(after_s(5, num_beside=1), math.inf)

  def test_a_group_that_is_not_played_never_straggles(self):
    self.assertEqual(GroupTimers().straggles_at("a"), math.inf)
