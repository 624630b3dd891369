"""Tests of `virtual_time`: no time passes, and all stays in order."""

import asyncio
import unittest

from bench.system import virtual_time


class VirtualTimeTest(unittest.TestCase):
  def test_a_year_of_waiting_passes_at_once(self):
    async def wait():
      begun_s = asyncio.get_running_loop().time()
      await asyncio.sleep(365 * 86400.0)
      return asyncio.get_running_loop().time() - begun_s

    self.assertAlmostEqual(virtual_time.run(wait()), 365 * 86400.0, places=3)

  def test_timers_fire_in_their_order(self):
    fired = []

    async def fire(after_s):
      await asyncio.sleep(after_s)
      fired.append((asyncio.get_running_loop().time(), after_s))

    async def all_of_them():
      await asyncio.gather(*map(fire, (3.0, 0.5, 2.0, 0.0)))

    virtual_time.run(all_of_them())
    self.assertEqual([s for _, s in fired], [0.0, 0.5, 2.0, 3.0])
    for now_s, after_s in fired:
      self.assertAlmostEqual(now_s, after_s)

  def test_a_deadline_holds(self):
    async def hang():
      async with asyncio.timeout(5.0):
        await asyncio.Event().wait()

    with self.assertRaises(TimeoutError):
      virtual_time.run(hang())

  def test_a_deadlock_is_an_error_and_not_a_hang(self):
    async def wait_for_nobody():
      await asyncio.Event().wait()

    with self.assertRaisesRegex(RuntimeError, "wait for each other"):
      virtual_time.run(wait_for_nobody())
