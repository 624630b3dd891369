"""Tests of the warm pool: hand-out, refill, bounds, and closing."""

import asyncio
import unittest

from agentrl_jax.env.warm_pool import WarmPool
from agentrl_jax.errors import ConfigError, EnvironmentFault


class Stock:
  """Makes numbers, slowly on request, and records removals."""

  def __init__(self):
    self.num_started = 0
    self.removed = []
    self.gate = asyncio.Event()
    self.gate.set()
    self.fails = False

  async def start(self):
    await self.gate.wait()
    if self.fails:
      raise EnvironmentFault("no stock")
    self.num_started += 1
    return self.num_started

  async def remove(self, number):
    self.removed.append(number)


class WarmPoolTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.stock = Stock()

  def pool(self, num_warm):
    pool = WarmPool(self.stock.start, self.stock.remove, num_warm=num_warm)
    self.addAsyncCleanup(pool.close)
    return pool

  async def test_nothing_starts_before_the_first_is_taken(self):
    self.pool(3)
    await asyncio.sleep(0)
    self.assertEqual(self.stock.num_started, 0)

  async def test_refills_to_its_size_and_no_further(self):
    pool = self.pool(3)
    await pool.take()
    await pool.wait_until_full()
    self.assertEqual(self.stock.num_started, 4)

  async def test_each_is_handed_out_once_and_at_once(self):
    pool = self.pool(3)
    await pool.wait_until_full()
    self.stock.gate.clear()  # what is ready needs no start
    taken = [await pool.take() for _ in range(3)]
    self.assertEqual(sorted(taken), [1, 2, 3])

  async def test_an_empty_pool_starts_one_for_the_taker(self):
    pool = self.pool(0)
    self.assertEqual([await pool.take() for _ in range(2)], [1, 2])
    self.assertEqual(self.stock.num_started, 2)

  async def test_closing_removes_ready_objects(self):
    pool = self.pool(2)
    taken = await pool.take()
    await pool.wait_until_full()
    await pool.close()
    self.assertEqual(sorted([*self.stock.removed, taken]), [1, 2, 3])
    with self.assertRaises(ConfigError):
      await pool.take()

  async def test_closing_while_one_starts_leaves_nothing(self):
    pool = self.pool(2)
    await pool.take()
    self.stock.gate.clear()
    await asyncio.sleep(0)
    await pool.close()
    self.assertEqual(self.stock.num_started, 1 + len(self.stock.removed))

  async def test_a_failed_start_is_raised_and_the_pool_recovers(self):
    pool = self.pool(1)
    await pool.take()
    await pool.wait_until_full()
    self.stock.fails = True
    with self.assertLogs("agentrl_jax.env.warm_pool", "WARNING"):
      await pool.take()
      await pool.wait_until_full()
    with self.assertRaises(EnvironmentFault):
      await pool.take()
    self.stock.fails = False
    await pool.take()
    await pool.wait_until_full()
    self.assertEqual(self.stock.num_started, 4)

  async def test_cancelling_a_taker_is_harmless(self):
    pool = self.pool(1)
    self.stock.gate.clear()
    waiting = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    waiting.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await waiting
    self.stock.gate.set()
    self.assertEqual(await pool.take(), 1)

  def test_a_negative_size_is_refused(self):
    with self.assertRaises(ConfigError):
      WarmPool(self.stock.start, self.stock.remove, num_warm=-1)
