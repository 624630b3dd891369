"""Tests of `controller.thread`: blocking calls, and no failure hidden."""

import asyncio
import math
import threading
import unittest
from unittest import mock

from agentrl_jax.controller import thread
from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.errors import DeadlineExceeded, QueueClosed
from tests import clocks
from tests.controller.pipeline import STEP, Pipeline, at_once, ids, played_by
from tests.controller.stage import Brittle, ScriptedEngine, a_player


class Bug(Exception):
  """Error that no code handles."""


async def broken(pipeline, task, group_id, seed):
  raise Bug


async def stuck(pipeline, task, group_id, seed):
  await asyncio.get_running_loop().create_future()


class ControllerThreadTest(unittest.TestCase):
  def tearDown(self):
    names = [each.name for each in threading.enumerate()]
    self.assertNotIn("controller", names)

  def test_learner_takes_groups_step_by_step(self):
    environment = Brittle(fault_rate=0.02)
    pipeline = Pipeline(played_by(a_player(environment)), order="started")
    taken = []
    with ControllerThread(pipeline.collector) as controller:
      for version in range(5):
        taken += ids(controller.take(STEP, version, timeout_s=60))
      state = controller.snapshot()
    self.assertEqual(taken, list(range(10)))
    self.assertEqual(environment.num_open, 0)
    ahead = [*(p for p, _ in state.in_flight), *ids(state.queued)]
    self.assertEqual(sorted(ahead), list(range(10, 10 + len(ahead))))

  def test_a_short_wait_ends_with_nothing_and_loses_nothing(self):
    release = threading.Event()

    async def waits(pipeline, task, group_id, seed):
      await asyncio.to_thread(release.wait, 60)
      return await played_by(a_player())(pipeline, task, group_id, seed)

    pipeline = Pipeline(waits, order="started")
    with ControllerThread(pipeline.collector) as controller:
      for _ in range(5):
        self.assertIsNone(controller.take_within(STEP, 0, wait_s=0.001))
      release.set()
      taken = []
      while not taken:
        taken = ids(controller.take_within(STEP, 0, wait_s=0.01) or [])
    self.assertEqual(taken, list(range(STEP)))

  def test_bug_in_the_loop_is_raised_in_the_next_call(self):
    for call in (
      lambda c: c.take(STEP, 0, timeout_s=60),
      lambda c: c.set_version(1),
      lambda c: c.snapshot(),
      lambda c: c.run(asyncio.sleep(0), timeout_s=60),
    ):
      controller = ControllerThread(Pipeline(broken).collector)
      controller.start()
      with self.assertRaises(ExceptionGroup) as caught:
        for _ in range(100_000):
          call(controller)
      self.assertIsInstance(caught.exception.exceptions[0], Bug)
      with self.assertRaises(ExceptionGroup):
        call(controller)  # and in every call from then on
      with self.assertRaises(ExceptionGroup):
        controller.stop()

  def test_a_waiting_take_raises_the_bug(self):
    release = threading.Event()

    async def breaks_later(pipeline, task, group_id, seed):
      await asyncio.to_thread(release.wait, 60)
      raise Bug

    controller = ControllerThread(Pipeline(breaks_later).collector)
    controller.start()
    waiter = threading.Timer(0, release.set)
    waiter.start()
    with self.assertRaises(ExceptionGroup) as caught:
      controller.take(STEP, 0, timeout_s=60)
    self.assertIsInstance(caught.exception.exceptions[0], Bug)
    waiter.join()
    with self.assertRaises(ExceptionGroup):
      controller.stop()

  def test_take_that_is_late_says_so_and_loses_nothing(self):
    pipeline = Pipeline(stuck)
    with ControllerThread(pipeline.collector) as controller:
      with self.assertRaisesRegex(DeadlineExceeded, "the learner waited 0 s"):
        controller.take(STEP, 0, timeout_s=0)
      self.assertEqual(len(controller.snapshot().in_flight), 4)

  def test_version_and_pause_reach_the_loop(self):
    pipeline = Pipeline(stuck)
    pipeline.collector.pause()
    with ControllerThread(pipeline.collector) as controller:
      controller.set_version(3)
      self.assertEqual(pipeline.admission.version, 3)
      self.assertEqual(controller.snapshot().in_flight, ())
      controller.resume()
      self.assertEqual(len(controller.snapshot().in_flight), 8)
      controller.pause()

  def test_runs_one_off_work_without_a_collector(self):
    async def where():
      return threading.current_thread().name

    with ControllerThread() as controller:
      self.assertEqual(controller.run(where(), timeout_s=60), "controller")
      with self.assertRaisesRegex(RuntimeError, "without a collector"):
        controller.take(1, 0, timeout_s=60)

  def test_error_of_one_off_work_is_its_own(self):
    async def fails():
      raise Bug

    with ControllerThread(Pipeline(at_once).collector) as controller:
      with self.assertRaises(Bug):
        controller.run(fails(), timeout_s=60)
      self.assertEqual(len(controller.take(STEP, 0, timeout_s=60)), STEP)

  def test_late_work_is_cancelled(self):
    cancelled = threading.Event()

    async def endless():
      try:
        await asyncio.Event().wait()
      finally:
        cancelled.set()

    with ControllerThread() as controller:
      with self.assertRaisesRegex(DeadlineExceeded, "the evaluation.*the end"):
        controller.run(
          endless(), timeout_s=0, holder="the evaluation", look_at="the end"
        )
      self.assertTrue(cancelled.is_set())

  def test_work_without_a_limit_outlasts_many_looks(self):
    async def wait():
      await asyncio.sleep(0.2)
      return "done"

    with (
      mock.patch.object(thread, "PULSE_S", 0.01),
      ControllerThread() as controller,
    ):
      self.assertEqual(controller.run(wait(), math.inf), "done")

  def test_a_blocked_loop_ends_work_without_a_limit(self):
    blocked = threading.Event()
    self.addCleanup(blocked.set)

    async def block():
      blocked.wait(clocks.WITHIN_S)

    with (
      mock.patch.multiple(thread, PULSE_S=0.01, CALL_S=0.05, GRACE_S=0.05),
      ControllerThread() as controller,
    ):
      with self.assertRaisesRegex(DeadlineExceeded, "what blocks it"):
        controller.run(block(), math.inf)
      blocked.set()

  def test_stopping_leaves_no_session(self):
    environment = Brittle()
    engine = ScriptedEngine(gate=lambda: asyncio.Event().wait())
    pipeline = Pipeline(played_by(a_player(environment, engine)))
    with ControllerThread(pipeline.collector) as controller:
      controller.snapshot()
    self.assertEqual(environment.num_open, 0)

  def test_calls_before_the_start_and_after_the_stop_are_refused(self):
    controller = ControllerThread(Pipeline(at_once).collector)
    with self.assertRaisesRegex(QueueClosed, "call start"):
      controller.snapshot()
    controller.start()
    controller.stop()
    controller.stop()
    with self.assertRaisesRegex(QueueClosed, "not running"):
      controller.take(STEP, 0, timeout_s=60)
