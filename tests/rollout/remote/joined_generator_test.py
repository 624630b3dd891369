"""Two real engines behind one generator, by the policy slots of both."""

import asyncio
import contextlib
import unittest

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import EngineGenerator, LocalDriver
from agentrl_jax.rollout.remote.joined_generator import JoinedGenerator
from tests.rollout import small


class JoinedGeneratorTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    stack = contextlib.AsyncExitStack()
    self.addAsyncCleanup(stack.aclose)
    generators = []
    for steps in ((10, 20), (30,)):
      driver = LocalDriver(small.engine_of(steps))
      stack.callback(driver.close)
      await stack.enter_async_context(driver.serving())
      generators.append(EngineGenerator(driver, deadline_s=600.0))
    self.joined = JoinedGenerator(generators)

  async def test_each_policy_slot_is_of_its_own_engine(self):
    self.assertEqual(self.joined.num_policy_slots, 3)
    self.assertEqual(self.joined.first_policy_slots, (0, 2))
    prompt = small.prompt_of(0, 9)
    specs = [SamplingParams(policy_slot=n, max_tokens=5) for n in range(3)]
    answers = await asyncio.gather(
      *(self.joined.generate(prompt, spec) for spec in specs)
    )
    for spec, answer, step in zip(specs, answers, (10, 20, 30), strict=True):
      self.assertEqual(answer.policy_slot, spec.policy_slot)
      self.assertEqual(set(answer.version), {step})
      chunks = [chunk async for chunk in self.joined.stream(prompt, spec)]
      small.assert_joined(chunks, answer)

  async def test_there_is_no_other_policy_slot(self):
    for policy_slot in (-1, 3):
      with self.assertRaisesRegex(
        ConfigError, f"policy_slot={policy_slot} must be 0 to 2"
      ):
        await self.joined.generate([1], SamplingParams(policy_slot=policy_slot))
