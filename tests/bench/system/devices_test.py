"""Tests of `bench.system.devices`: the time that sequences take together."""

import asyncio
import unittest

from agentrl_jax.errors import ConfigError
from bench.system import virtual_time
from bench.system.devices import Devices


def ends_s(lengths_s, *, places, fixed, cancel_at_s=None):
  """Returns when each sequence ended; the first may be cancelled."""

  async def run():
    devices = Devices(places, fixed)
    loop = asyncio.get_running_loop()

    async def play(length_s):
      async with devices.places:
        await devices.decode(length_s)
      return loop.time()

    tasks = [asyncio.create_task(play(length_s)) for length_s in lengths_s]
    if cancel_at_s is not None:
      await asyncio.sleep(cancel_at_s)
      tasks[0].cancel()
      tasks = tasks[1:]
    return await asyncio.gather(*tasks)

  return virtual_time.run(run())


class DevicesTest(unittest.TestCase):
  def assert_ends(self, found, wanted):
    self.assertEqual(len(found), len(wanted))
    for one, other in zip(found, wanted, strict=True):
      self.assertAlmostEqual(one, other)

  def test_full_devices_take_the_length(self):
    for fixed in (0.0, 0.5, 1.0):
      self.assert_ends(ends_s([3.0] * 4, places=4, fixed=fixed), [3.0] * 4)

  def test_a_straggler_gets_faster_as_far_as_weights_allow(self):
    # Two of two places for 1 s, of which each does 1 s; then one of two.
    for fixed, rest_s in ((1.0, 2.0), (0.5, 1.5), (0.0, 1.0)):
      found = ends_s([1.0, 3.0], places=2, fixed=fixed)
      self.assert_ends(found, [1.0, 1.0 + rest_s])

  def test_a_sequence_without_a_place_waits(self):
    self.assert_ends(
      ends_s([1.0, 2.0, 1.0], places=2, fixed=0.5), [1.0, 2.0, 2.0]
    )

  def test_no_more_is_done_than_full_devices_do(self):
    lengths_s = [0.3, 2.0, 0.7, 1.1, 0.2, 5.0, 0.9]
    for fixed in (0.0, 0.3, 1.0):
      last_s = max(ends_s(lengths_s, places=3, fixed=fixed))
      self.assertGreaterEqual(last_s + 1e-9, sum(lengths_s) / 3)

  def test_a_cancelled_sequence_frees_the_devices(self):
    # Until 0.5 both are active; then one alone at 1 / 0.75 of the speed.
    found = ends_s([3.0, 1.0], places=2, fixed=0.5, cancel_at_s=0.5)
    self.assert_ends(found, [0.5 + 0.5 * 0.75])

  def test_two_that_are_cancelled_at_the_end_of_another(self):
    async def run():
      devices = Devices(3, 0.5)
      tasks = [asyncio.create_task(devices.decode(t)) for t in (1.0, 1.0, 2.0)]
      await tasks[0]
      tasks[1].cancel()  # which has ended, too
      tasks[2].cancel()
      await asyncio.wait(tasks)
      began_s = asyncio.get_running_loop().time()
      await devices.decode(1.0)  # alone: none is counted any more
      return asyncio.get_running_loop().time() - began_s

    self.assertAlmostEqual(virtual_time.run(run()), 0.5 + 0.5 / 3)

  def test_a_share_above_one_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "from 0 to 1"):
      Devices(2, 1.5)


if __name__ == "__main__":
  unittest.main()
