"""Streams, errors and deadlines through asyncio."""

import asyncio
import unittest

from agentrl_jax.errors import DeadlineExceeded, GeneratorFault
from agentrl_jax.rollout.drivers.driver import EngineGenerator, LocalDriver
from tests.rollout import small
from tests.rollout.drivers.contract import SHORT, mixed_requests


class EngineGeneratorTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.driver = LocalDriver(small.engine_of())
    self.generator = EngineGenerator(self.driver, deadline_s=600.0)
    self.addCleanup(self.driver.close)

  async def test_a_missed_deadline_is_reported_and_frees_the_slot(self):
    generator = EngineGenerator(self.driver, deadline_s=0.0)
    with self.assertRaisesRegex(DeadlineExceeded, "20 tokens.*policy slot 0"):
      await generator.generate([1], SHORT)
    self.driver.run_until_idle()
    self.assertEqual(self.driver.num_inside, (0, 0))

  async def test_an_exception_of_the_engine_is_the_cause_of_the_fault(self):
    def fail(*args):
      raise ZeroDivisionError("on purpose")

    self.driver.engine.versions.get = fail
    async with self.driver.serving():
      with self.assertRaises(GeneratorFault) as caught:
        await self.generator.generate([1], SHORT)
    self.assertIsInstance(caught.exception.__cause__, ZeroDivisionError)

  async def test_closing_the_driver_is_a_fault_not_a_cancellation(self):
    task = asyncio.ensure_future(self.generator.generate([1], SHORT))
    await asyncio.sleep(0)
    self.driver.close()
    with self.assertRaisesRegex(GeneratorFault, "closed"):
      await task

  async def streamed(self, prompt, spec):
    return [chunk async for chunk in self.generator.stream(prompt, spec)]

  async def test_joined_chunks_are_the_answer(self):
    requests = list(mixed_requests(10))
    async with self.driver.serving():
      streams = await asyncio.gather(*(self.streamed(*r) for r in requests))
      answers = await asyncio.gather(
        *(self.generator.generate(*r) for r in requests)
      )
    self.assertGreater(max(map(len, streams)), 3)
    for chunks, answer in zip(streams, answers, strict=True):
      small.assert_joined(chunks, answer)
