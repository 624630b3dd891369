"""A numbered turn is played once, and its report can be had again."""

import asyncio
import unittest
from unittest import mock

from agentrl_jax.service.worker import turns
from agentrl_jax.service.worker.hosting import SessionRefused
from agentrl_jax.service.worker.turns import PlayedTurns
from tests.clocks import StoppedClock


class TurnsTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.open = {1, 2}
    self.turns = PlayedTurns(self.open.__contains__)
    self.played = []
    self.gate = asyncio.Event()
    self.gate.set()

  def ask(self, session, number, report="report"):
    async def play():
      self.played.append((session, number))
      await self.gate.wait()
      if isinstance(report, Exception):
        raise report
      return f"{report} {session}.{number}"

    return self.turns.play(session, number, play)

  async def test_a_repeated_turn_has_the_same_report(self):
    for number in (1, 2):
      first = await self.ask(1, number)
      self.assertEqual(await self.ask(1, number, "another"), first)
    await self.ask(2, 1)
    self.assertEqual(self.played, [(1, 1), (1, 2), (2, 1)])

  async def test_a_repeated_turn_waits_for_the_first(self):
    self.gate.clear()
    asked = [asyncio.create_task(self.ask(1, 1)) for _ in range(5)]
    await asyncio.sleep(0)
    asked[0].cancel()  # its connection broke
    await asyncio.wait(asked[:1])
    self.gate.set()
    self.assertEqual(set(await asyncio.gather(*asked[1:])), {"report 1.1"})
    self.assertEqual(self.played, [(1, 1)])

  async def test_turns_out_of_order_are_refused(self):
    for number in (0, 2, -1):
      with self.assertRaisesRegex(SessionRefused, "the next one is 1"):
        await self.ask(1, number)
    await self.ask(1, 1)
    await self.ask(1, 2)
    for number in (1, 4):
      with self.assertRaisesRegex(SessionRefused, "the next one is 3"):
        await self.ask(1, number)
    self.assertEqual(self.played, [(1, 1), (1, 2)])

  async def test_a_refused_turn_leaves_no_trace(self):
    await self.ask(1, 1)
    with self.assertRaisesRegex(ValueError, "no tool call"):
      await self.ask(1, 2, ValueError("no tool call"))
    self.assertEqual(await self.ask(1, 2), "report 1.2")
    with self.assertRaises(SessionRefused):
      await self.ask(7, 1, SessionRefused("there is no session 7"))
    self.assertEqual(await self.ask(7, 1), "report 7.1")

  async def test_reports_outlive_their_sessions_for_a_while(self):
    clock = StoppedClock()
    with mock.patch.object(turns.time, "monotonic", clock):
      await self.ask(1, 1)
      self.open.remove(1)
      clock.now_s += turns.KEEP_S - 1
      await self.ask(2, 1)
      self.assertEqual(await self.ask(1, 1, "another"), "report 1.1")
      clock.now_s += 2
      await self.ask(2, 2)
      self.assertNotIn(1, self.turns._last)
      clock.now_s += 10 * turns.KEEP_S
      await self.ask(2, 3)  # an open session keeps its number
      await self.ask(2, 4)

  async def test_not_too_many_are_kept(self):
    with mock.patch.object(turns, "MAX_KEPT", 10):
      for session in range(100, 200):
        await self.ask(session, 1)
    self.assertLessEqual(len(self.turns._last), 10)
