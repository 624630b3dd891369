"""Tests of `controller.group_queue`: bounded, all or none, nothing lost."""

import asyncio
import dataclasses
import unittest

from agentrl_jax.controller.group_queue import GroupQueue, QueueLimits
from agentrl_jax.controller.learner_watch import LearnerWatch
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.errors import ConfigError, DeadlineExceeded, QueueClosed
from tests.controller.stage import a_group, turns_of_the_loop


def a_queue(max_groups=2, monitor=None, **limits):
  return GroupQueue(
    QueueLimits(max_groups=max_groups, **limits), monitor or Monitor()
  )


async def put(queue, group):
  """As a producer does."""
  if group.id not in queue._begun:
    queue.begin(group.id)
  queue.offer(group)
  await queue.room(group.id)


def ids(groups):
  return [int(group.id) for group in groups]


class GroupQueueTest(unittest.IsolatedAsyncioTestCase):
  async def test_first_in_first_out(self):
    queue = a_queue(3)
    for n in (2, 0, 1):
      await put(queue, a_group(n))
    self.assertEqual(ids(await queue.take(2, version=0)), [2, 0])
    self.assertEqual(ids(await queue.take(1, version=0)), [1])

  async def test_take_waits_for_all_it_asks(self):
    queue = a_queue()
    await put(queue, a_group(0))
    taking = asyncio.create_task(queue.take(2, version=0))
    await turns_of_the_loop()
    self.assertFalse(taking.done())
    await put(queue, a_group(1))
    self.assertEqual(ids(await taking), [0, 1])

  async def test_cancelled_take_leaves_everything(self):
    queue = a_queue()
    await put(queue, a_group(0))
    taking = asyncio.create_task(queue.take(2, version=0))
    await turns_of_the_loop()
    taking.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await taking
    self.assertEqual(ids(queue.snapshot()), [0])

  async def test_full_queue_holds_producers_back_in_turn(self):
    queue = a_queue(1)
    await put(queue, a_group(0))
    waiting = [asyncio.create_task(put(queue, a_group(n))) for n in (1, 2)]
    await turns_of_the_loop()
    self.assertEqual([w.done() for w in waiting], [False, False])
    await queue.take(1, version=0)
    await turns_of_the_loop()
    self.assertEqual([w.done() for w in waiting], [True, False])
    await queue.take(1, version=0)
    await asyncio.gather(*waiting)

  async def test_finished_groups_beyond_the_limit_are_in_the_snapshot(self):
    queue = a_queue(1)
    await put(queue, a_group(0))
    waiting = asyncio.create_task(put(queue, a_group(1)))
    await turns_of_the_loop()
    self.assertEqual(ids(queue.snapshot()), [0, 1])
    waiting.cancel()
    await turns_of_the_loop()
    self.assertEqual(ids(queue.snapshot()), [0, 1])

  async def test_producer_waits_no_longer_than_allowed(self):
    queue = GroupQueue(
      QueueLimits(max_groups=1), Monitor(), watch=LearnerWatch(1e-9)
    )
    queue.begin("00000000")
    queue.begin("00000001")
    queue.offer(a_group(0))
    queue.offer(a_group(1))
    with self.assertRaisesRegex(DeadlineExceeded, "the learner to take"):
      await queue.room("00000001")

  async def test_close_lets_drain_then_raises(self):
    queue = a_queue()
    await put(queue, a_group(0))
    taking = asyncio.create_task(queue.take(2, version=0))
    await turns_of_the_loop()
    queue.close()
    with self.assertRaisesRegex(QueueClosed, "1 groups in it"):
      await taking
    self.assertEqual(ids(await queue.take(1, version=0)), [0])

  async def test_close_frees_producers(self):
    queue = a_queue(1)
    await put(queue, a_group(0))
    waiting = asyncio.create_task(put(queue, a_group(1)))
    await turns_of_the_loop()
    queue.close()
    await waiting

  async def test_asking_for_more_than_fits_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "queue.max_groups"):
      await a_queue(2).take(3, version=0)

  async def test_stale_groups_are_dropped_and_counted_by_task_and_length(self):
    monitor = Monitor()
    queue = a_queue(3, monitor, max_staleness=1)
    for n, version in enumerate((0, 1, 2)):
      await put(queue, a_group(n, version=version, tokens=10))
    self.assertEqual(queue.drop_stale(1), 0)
    self.assertEqual(queue.drop_stale(2), 1)
    self.assertEqual(ids(queue.snapshot()), [1, 2])
    numbers = monitor.snapshot()
    self.assertEqual(numbers["groups/dropped/stale/arithmetic"], 1)
    self.assertEqual(
      numbers["groups/dropped/stale/up_to_16_tokens/arithmetic"], 1
    )

  async def test_nothing_is_dropped_unless_asked(self):
    queue = a_queue()
    await put(queue, a_group(0, version=0))
    self.assertEqual(queue.drop_stale(1000), 0)
    self.assertEqual(len(queue), 1)

  async def test_dropping_makes_room(self):
    queue = a_queue(1, max_staleness=0)
    await put(queue, a_group(0, version=0))
    waiting = asyncio.create_task(put(queue, a_group(1, version=1)))
    await turns_of_the_loop()
    queue.drop_stale(1)
    await waiting

  async def test_staleness_is_measured_at_the_taking(self):
    monitor = Monitor()
    queue = a_queue(2, monitor)
    await put(queue, a_group(0, version=1))
    await put(queue, a_group(1, version=3))
    await queue.take(2, version=3)
    self.assertEqual(monitor.staleness, {2: 1, 0: 1})


class MaxAgeTest(unittest.IsolatedAsyncioTestCase):
  async def test_slow_group_is_overtaken_until_it_is_due(self):
    queue = a_queue(4, max_age=1)
    for n, version in enumerate((0, 0, 0, 1)):
      queue.begin(f"{n:08d}", version)
    queue.offer(a_group(1))
    self.assertEqual(ids(await queue.take(1, version=0)), [1])
    queue.offer(a_group(3))
    taking = asyncio.create_task(queue.take(1, version=1))
    await turns_of_the_loop()
    self.assertFalse(taking.done())
    queue.offer(a_group(2))
    self.assertEqual(ids(await taking), [2])

  async def test_due_group_that_is_given_up_is_not_waited_for(self):
    queue = a_queue(4, max_age=1)
    queue.begin("00000000", 0)
    queue.begin("00000001", 1)
    queue.offer(a_group(1))
    taking = asyncio.create_task(queue.take(1, version=1))
    await turns_of_the_loop()
    self.assertFalse(taking.done())
    queue.give_up("00000000")
    self.assertEqual(ids(await taking), [1])

  def test_no_age_is_below_0(self):
    with self.assertRaisesRegex(ConfigError, "queue.max_age is -1"):
      QueueLimits(max_groups=1, max_age=-1)


class OrderOfStartingTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.queue = a_queue(2, order="started")
    for n in range(4):
      self.queue.begin(f"{n:08d}")

  async def test_slow_group_is_waited_for_even_by_a_full_queue(self):
    waiting = [
      asyncio.create_task(put(self.queue, a_group(n))) for n in (1, 2, 3)
    ]
    taking = asyncio.create_task(self.queue.take(2, version=0))
    await turns_of_the_loop()
    self.assertFalse(taking.done())
    await put(self.queue, a_group(0))
    self.assertEqual(ids(await taking), [0, 1])
    self.assertEqual(ids(await self.queue.take(2, version=0)), [2, 3])
    await asyncio.gather(*waiting)

  async def test_taking_from_beyond_the_limit_frees_that_producer_alone(self):
    queue = a_queue(1, order="started")
    for n in range(3):
      queue.begin(f"{n:08d}")
    waiting = {
      n: asyncio.create_task(put(queue, a_group(n))) for n in (1, 2, 0)
    }
    await turns_of_the_loop()
    self.assertEqual(ids(await queue.take(1, version=0)), [0])
    await turns_of_the_loop()
    freed = [n for n, task in waiting.items() if task.done()]
    self.assertEqual(freed, [1, 0])
    queue.close()
    await asyncio.gather(*waiting.values())

  async def test_group_that_was_given_up_is_not_waited_for(self):
    taking = asyncio.create_task(self.queue.take(1, version=0))
    self.queue.offer(a_group(1))
    await turns_of_the_loop()
    self.assertFalse(taking.done())
    self.queue.give_up("00000000")
    self.assertEqual(ids(await taking), [1])

  def test_unknown_order_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "finished, started"):
      dataclasses.replace(QueueLimits(max_groups=1), order="lifo")


if __name__ == "__main__":
  unittest.main()
