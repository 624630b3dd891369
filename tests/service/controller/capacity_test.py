"""Places are given in order, once, and are always given back."""

import asyncio
import time
import unittest

from agentrl_jax.service.controller.capacity import (
  CapacityQueue,
  NoCapacity,
  Overloaded,
)
from agentrl_jax.service.controller.registry import Health, Registry, Timers
from agentrl_jax.service.controller.session_table import SessionTable


class PlacesTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.registry = Registry(Timers(), str)
    self.table = SessionTable()
    self.places = CapacityQueue(self.registry, self.table)

  def serve(self, task="sums", capacity=1):
    body = {"name": task, "address": task, "indices": [0]}
    body["concurrency"] = capacity
    self.registry.add_heartbeat(body, time.monotonic())
    (worker,) = self.registry.find(task)
    worker.health = Health.ALIVE
    return worker

  def take(self, task="sums", index=0, wait_s=5.0, **options):
    return asyncio.create_task(
      self.places.take(
        task,
        lambda worker: self.table.open(worker, index),
        wait_s=wait_s,
        **options,
      )
    )

  def end(self, session):
    self.table.end(session)
    self.places.offer(session.worker.task)

  async def test_first_come_first_served(self):
    worker = self.serve()
    waiting = [self.take(index=n) for n in range(4)]
    for n in range(4):
      session = await waiting[n]
      self.assertEqual(session.index, n)
      self.assertEqual(worker.num_sessions, 1)
      self.assertEqual(sum(w.done() for w in waiting), n + 1)
      self.end(session)
    self.assertEqual(worker.num_sessions, 0)

  async def test_a_refused_request_keeps_its_place_in_the_queue(self):
    self.serve()
    session = await self.take()
    later = self.take(index=1)
    await asyncio.sleep(0)
    again = self.take(index=2, first=True)
    await asyncio.sleep(0)
    self.end(session)
    self.assertEqual((await again).index, 2)
    self.assertFalse(later.done())
    self.end(again.result())
    await later

  async def test_one_task_holds_up_no_other(self):
    self.serve("full")
    self.serve("free")
    await self.take("full")
    stuck = [self.take("full") for _ in range(10)]
    await asyncio.sleep(0)
    await self.take("free")
    self.assertEqual(self.places.num_waiting("full"), 10)
    for waiting in stuck:
      waiting.cancel()
    await asyncio.wait(stuck)
    self.assertEqual(self.places.num_waiting("full"), 0)

  async def test_a_wait_ends(self):
    self.serve()
    session = await self.take(wait_s=0.0)
    for wait_s in (0.0, 0.02):
      with self.assertRaisesRegex(NoCapacity, "no workers available for task"):
        await self.take(wait_s=wait_s)
    self.end(session)
    await self.take(wait_s=0.0)

  async def test_a_worker_that_comes_takes_those_who_wait(self):
    waiting = [self.take() for _ in range(3)]
    await asyncio.sleep(0)
    worker = self.serve(capacity=2)
    self.places.offer("sums")
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    self.assertEqual(worker.num_sessions, 2)
    self.assertEqual(self.places.num_waiting("sums"), 1)
    waiting[2].cancel()

  async def test_a_place_that_nobody_takes_any_more_is_offered_on(self):
    worker = self.serve()
    session = await self.take()
    gone, next_one = self.take(index=1), self.take(index=2)
    await asyncio.sleep(0)
    self.end(session)  # gives the place to the one that is cancelled now
    gone.cancel()
    self.assertEqual((await next_one).index, 2)
    self.assertEqual(worker.num_sessions, 1)
    self.assertTrue(gone.cancelled())

  async def test_a_refusal_names_the_place_in_line(self):
    self.serve()
    await self.take()
    first, second = self.take(index=1), self.take(index=2, wait_s=0.02)
    with self.assertRaisesRegex(NoCapacity, "; 1 requests were before this"):
      await second
    first.cancel()

  async def test_too_many_are_refused_at_once_and_cost_the_others_nothing(self):
    self.places = CapacityQueue(self.registry, self.table, max_waiting=3)
    self.serve()
    self.serve("other")
    session = await self.take()
    waiting = [self.take(index=n) for n in range(3)]
    await asyncio.sleep(0)
    with self.assertRaisesRegex(Overloaded, "3 requests wait.*--max-waiting"):
      await self.take(wait_s=600.0)
    await self.take("other")
    self.end(session)
    self.assertEqual((await waiting[0]).index, 0)
    last = self.take(index=3)  # in the place in line that is free again
    await asyncio.sleep(0)
    self.assertEqual(self.places.num_waiting("sums"), 3)
    for each in (*waiting[1:], last):
      each.cancel()
