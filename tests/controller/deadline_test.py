"""Tests of `controller.deadline`: it names who waited, and hides nothing."""

import asyncio
import unittest

from agentrl_jax.controller.deadline import deadline
from agentrl_jax.errors import DeadlineExceeded


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

  async def test_in_time_is_silent(self):
    async with a_deadline(60):
      await asyncio.sleep(0)

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

  async def test_cancellation_from_outside_stays_one(self):
    async def wait():
      async with a_deadline(60):
        await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await waiting


if __name__ == "__main__":
  unittest.main()
