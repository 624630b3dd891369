"""Deadlines name who waited for whom, and hide no other error."""

import asyncio
import unittest

from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.controller.waiting import LearnerWatch, deadline
from agentrl_jax.errors import ConfigError, DeadlineExceeded
from tests.clocks import Clock, turns_of_the_loop
from tests.controller.pipeline import Pipeline, at_once
from tests.controller.stage import started


def a_deadline(seconds, look_at="queue fill"):
  return deadline(
    seconds, waiter="collector", holder="learner", look_at=look_at
  )


class DeadlineTest(unittest.IsolatedAsyncioTestCase):
  async def test_says_who_waited_for_whom_and_where_to_look(self):
    with self.assertRaises(DeadlineExceeded) as caught:
      async with a_deadline(0):
        await asyncio.Event().wait()
    self.assertEqual(
      str(caught.exception),
      "collector waited 0 s for learner, and no longer than that is allowed;"
      " look at: queue fill",
    )

  async def test_asks_where_to_look_when_the_time_is_up(self):
    state = "early"
    with self.assertRaisesRegex(DeadlineExceeded, "late"):
      async with a_deadline(0, look_at=lambda: state):
        state = "late"
        await asyncio.Event().wait()

  async def test_timeout_of_the_body_passes_untouched(self):
    with self.assertRaises(TimeoutError) as caught:
      async with a_deadline(60):
        raise TimeoutError("of the body")
    self.assertNotIsInstance(caught.exception, DeadlineExceeded)

  async def test_inner_deadline_is_not_the_outer_ones(self):
    with self.assertRaisesRegex(DeadlineExceeded, "inner"):
      async with (
        a_deadline(60),
        deadline(0, waiter="inner", holder="x", look_at="y"),
      ):
        await asyncio.Event().wait()


async def _wait(watch):
  async with watch.wait(
    waiter="group 7", holder="room", look_at=lambda: "the queue"
  ):
    await asyncio.get_running_loop().create_future()


class LearnerWatchTest(unittest.IsolatedAsyncioTestCase):
  async def test_every_call_of_the_learner_starts_the_wait_again(self):
    clock, watch = Clock(), LearnerWatch(1000.0)
    waiting = await started(_wait(watch))
    for _ in range(5):  # 4,500 s in all
      await clock.forward(900.0)
      watch.seen()
    self.assertFalse(waiting.done())
    await clock.forward(1001.0)
    with self.assertRaisesRegex(
      DeadlineExceeded,
      "group 7 waited for room.*train.step_timeout_s=1000 s.*the queue",
    ):
      await waiting

  async def test_a_timeout_of_the_body_is_its_own(self):
    with self.assertRaises(TimeoutError) as raised:
      async with LearnerWatch(1000.0).wait(waiter="", holder="", look_at=str):
        raise TimeoutError("of the body")
    self.assertNotIsInstance(raised.exception, DeadlineExceeded)

  async def test_one_wait_lasts_through_many_calls_of_the_learner(self):
    """Keeps the queue full, so that the same producers wait all the time."""
    clock = Clock()
    pipeline = Pipeline(at_once, max_groups=2, step_timeout_s=1000.0)
    async with pipeline.running():
      await turns_of_the_loop()
      for _ in range(5):  # 4,500 s in all
        await clock.forward(900.0)
        pipeline.collector.advance(0)
      await turns_of_the_loop()
      groups = await pipeline.collector.take(2, version=0)
      self.assertEqual(len(groups), 2)

  def test_no_time_at_all_is_refused(self):
    for seconds in (0, -1.0, float("nan")):
      with self.assertRaisesRegex(ConfigError, "train.step_timeout_s"):
        LearnerWatch(seconds)


class LearnerThatNeverCallsTest(unittest.TestCase):
  def test_is_told_why_the_run_ended(self):
    async def with_a_loop():
      return Pipeline(at_once, max_groups=2, step_timeout_s=0.01)

    controller = ControllerThread(asyncio.run(with_a_loop()).collector)
    controller.start()
    controller._thread.join(30)
    with self.assertRaises(ExceptionGroup) as raised:
      controller.take(2, version=0, timeout_s=1)
    error = raised.exception
    while isinstance(error, ExceptionGroup):
      error = error.exceptions[0]
    self.assertIsInstance(error, DeadlineExceeded)
    self.assertIn("train.step_timeout_s=0.01 s", str(error))
