"""Tests that hosted sessions fail alone, and are always freed."""

import asyncio
import unittest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.worker.hosting import (
  Host,
  HostFull,
  HostLimits,
  SessionRefused,
)
from tests.clocks import Clock, turns_of_the_loop, until
from tests.env.moody import SAY, Moody


def a_task(index=0):
  return Task("moody", "test", index)


def say(words):
  return Message("assistant", words)


class HostTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.environment = Moody()

  def a_host(self, **limits):
    return Host(self.environment, HostLimits(**limits))

  async def until_empty(self, host):
    await until(lambda: not host.num_open)
    self.assertEqual(self.environment.num_open, 0)

  async def test_plays_an_episode_to_its_end(self):
    host = self.a_host()
    session, first = await host.start(1, a_task(), seed=3)
    self.assertEqual(first.messages, (Message("user", "Well?"),))
    self.assertEqual(session.tools, (SAY,))
    self.assertEqual(host.tasks(), {1: a_task()})
    second = await host.step(1, say("hm"))
    self.assertEqual(second.messages[0].content, "You say hm.")
    last = await host.step(1, say("end"))
    self.assertEqual((last.status, last.reward), (Status.COMPLETED, 1.0))
    self.assertEqual(host.tasks(), {})
    await self.until_empty(host)
    self.assertEqual(self.environment.seeds, [3])

  async def test_an_episode_may_be_over_as_it_begins(self):
    host = self.a_host()
    _, first = await host.start(1, a_task(3), seed=0)
    self.assertIs(first.status, Status.TASK_LIMIT_REACHED)
    await self.until_empty(host)

  async def test_failing_to_open_is_a_fault_with_its_cause(self):
    host = self.a_host()
    with (
      self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"),
      self.assertRaisesRegex(
        EnvironmentFault, "RuntimeError: the disk"
      ) as ours,
    ):
      await host.start(1, a_task(1), seed=0)
    self.assertIsInstance(ours.exception.__cause__, RuntimeError)
    await self.until_empty(host)

  async def test_a_session_that_breaks_leaves_the_others_alone(self):
    host = self.a_host()
    for id in (1, 2, 3):
      await host.start(id, a_task(), seed=0)
    for id, words in ((1, "break"), (2, "fault")):
      with (
        self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"),
        self.assertRaises(EnvironmentFault),
      ):
        await host.step(id, say(words))
    self.assertEqual(list(host.tasks()), [3])
    self.assertEqual((await host.step(3, say("end"))).reward, 1.0)
    await self.until_empty(host)

  async def test_failing_to_close_is_logged(self):
    host = self.a_host()
    await host.start(1, a_task(2), seed=0)
    with self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"):
      self.assertEqual((await host.step(1, say("end"))).reward, 1.0)
      await self.until_empty(host)

  async def test_deadlines_free_what_hangs(self):
    clock = Clock()
    host = self.a_host(start_timeout_s=60.0, step_s=90.0)
    await host.start(2, a_task(), seed=0)
    for request, limit_s in (
      (host.start(1, a_task(4), seed=0), 60),
      (host.step(2, say("hang")), 90),
    ):
      asked = asyncio.create_task(request)
      await clock.forward(limit_s - 10)
      self.assertFalse(asked.done())
      await clock.forward(11)
      with self.assertRaisesRegex(EnvironmentFault, f"within {limit_s} s"):
        await asked
    await self.until_empty(host)

  async def test_idle_sessions_expire(self):
    clock = Clock()
    host = self.a_host(idle_timeout_s=60.0)
    await host.start(1, a_task(), seed=0)
    await clock.forward(50.0)
    await host.step(1, say("hm"))
    await clock.forward(50.0)  # an answer starts the time again
    self.assertEqual(host.num_open, 1)
    with self.assertLogs("agentrl_jax.service.worker.hosting", "WARNING"):
      await clock.forward(11.0)
      await self.until_empty(host)
    with self.assertRaises(SessionRefused):
      await host.step(1, say("hm"))

  async def test_places_are_limited_and_given_back(self):
    host = self.a_host(concurrency=2)
    await host.start(1, a_task(), seed=0)
    await host.start(2, a_task(), seed=0)
    with self.assertRaises(HostFull):
      await host.start(3, a_task(), seed=0)
    await host.cancel(1)
    self.assertEqual(self.environment.num_open, 1)
    await host.start(3, a_task(), seed=0)
    await host.cancel_all()
    await self.until_empty(host)

  async def test_draining_ends_no_session_and_begins_none(self):
    host = self.a_host()
    await host.drain()  # nothing to wait for
    host = self.a_host()
    await host.start(1, a_task(), seed=0)
    draining = asyncio.create_task(host.drain())
    await turns_of_the_loop()
    with self.assertRaisesRegex(HostFull, "will end soon"):
      await host.start(2, a_task(), seed=0)
    await host.step(1, say("hm"))
    self.assertFalse(draining.done())
    await host.cancel(1)
    await draining

  async def test_unknown_busy_and_ended_sessions_are_refused(self):
    host = self.a_host()
    with self.assertRaises(SessionRefused):
      await host.step(1, say("hm"))
    await host.start(1, a_task(), seed=0)
    with self.assertRaisesRegex(SessionRefused, "already"):
      await host.start(1, a_task(), seed=0)
    async with asyncio.TaskGroup() as group:
      hanging = group.create_task(self.expect_cancelled(host))
      await asyncio.sleep(0)
      with self.assertRaisesRegex(SessionRefused, "busy"):
        await host.step(1, say("hm"))
      await host.cancel(1)
    self.assertIsNone(hanging.result())
    await self.until_empty(host)

  async def expect_cancelled(self, host):
    with self.assertRaisesRegex(EnvironmentFault, "was cancelled"):
      await host.step(1, say("hang"))

  async def test_cancelling_a_request_frees_its_session(self):
    host = self.a_host()
    await host.start(1, a_task(), seed=0)
    asked = asyncio.create_task(host.step(1, say("hang")))
    await until(lambda: self.environment.num_hanging)
    asked.cancel()
    with self.assertRaises(asyncio.CancelledError):
      await asked
    await self.until_empty(host)

  def test_limits_are_checked(self):
    with self.assertRaisesRegex(ConfigError, "idle_timeout_s=0"):
      HostLimits(idle_timeout_s=0)
