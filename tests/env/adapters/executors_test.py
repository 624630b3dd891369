"""Tests of executors of foreign code, in the loop and in a thread."""

import asyncio
import threading
import unittest

from agentrl_jax.env.adapters.executors import (
  LoopExecutor,
  ThreadExecutor,
  executor_of,
)
from agentrl_jax.errors import EnvironmentFault
from tests.clocks import Clock, until


class ExecutorsTest(unittest.IsolatedAsyncioTestCase):
  async def test_results_and_errors_come_back(self):
    async def double(number):
      await asyncio.sleep(0)
      return 2 * number

    def stop():
      raise StopIteration

    for blocking in (False, True):
      executor = executor_of(blocking=blocking, limit_s=60.0)
      with self.subTest(blocking=blocking):
        self.assertEqual(await executor.run(lambda: 7), 7)
        self.assertEqual(await executor.run(lambda: double(7)), 14)
        with self.assertRaises(ZeroDivisionError):
          await executor.run(lambda: 1 // 0)
        with self.assertRaises(RuntimeError):
          await executor.run(stop)
      await executor.close(lambda: None)

  async def test_only_blocking_code_leaves_the_thread_of_the_loop(self):
    for kind, is_here in ((LoopExecutor, True), (ThreadExecutor, False)):
      executor = kind(60.0)
      thread = await executor.run(threading.get_ident)
      self.assertEqual(thread == threading.get_ident(), is_here)
      await executor.close(lambda: None)

  async def test_an_awaitable_has_a_deadline(self):
    executor = LoopExecutor(60.0)
    entered = asyncio.Event()

    async def hang():
      entered.set()
      await asyncio.Event().wait()

    running = asyncio.create_task(executor.run(hang))
    await until(entered.is_set)
    await Clock().forward(61.0)
    with self.assertRaisesRegex(EnvironmentFault, "within 60 s"):
      await running

  async def test_a_timeout_of_the_code_itself_is_not_the_deadline(self):
    async def late():
      raise TimeoutError("the database")

    with self.assertRaisesRegex(TimeoutError, "the database"):
      await LoopExecutor(60.0).run(late)
