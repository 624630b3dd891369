"""The client of other engines, against rollout servers of this framework."""

import asyncio
import contextlib
import dataclasses
import unittest

import numpy as np

from agentrl_jax.errors import ConfigError, PromptTooLong
from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.external.probe import Needs
from agentrl_jax.rollout.remote.generator import connected
from agentrl_jax.rollout.settings import RolloutsConfig
from tests.rollout import small
from tests.rollout.drivers.contract import SHORT, mixed_requests
from tests.rollout.external.client_test import NEEDS, QUICK, EnginesCase
from tests.rollout.external.peers import OwnServer
from tests.rollout.serving import hold

TRUNCATED = SamplingSpec(temperature=0.7, top_k=5, top_p=0.8)
TWO_POLICY_SLOTS = Needs(
  vocab_size=small.VOCAB, num_policy_slots=2, specs=(TRUNCATED,)
)


class OwnServerTest(EnginesCase):
  async def serve(self, **changes):
    return await self.enterAsyncContext(OwnServer(**changes))

  async def ask(self, generator, requests):
    return await asyncio.gather(*(generator.generate(*r) for r in requests))

  async def test_answers_are_those_of_the_binary_endpoint(self):
    served = await self.serve()
    requests = list(mixed_requests(24))
    other = await self.connect("openai", served.address, needs=TWO_POLICY_SLOTS)
    found = await self.ask(other, requests)
    config = RolloutsConfig(servers=served.address, **QUICK)
    async with connected(config, num_policy_slots=2) as binary:
      wanted = await self.ask(binary, requests)
    for answer, expected in zip(found, wanted, strict=True):
      self.assertEqual(answer.policy_slot, expected.policy_slot)
      for name in ("sampled", "version"):
        np.testing.assert_array_equal(
          getattr(answer, name), getattr(expected, name)
        )
      for name in ("behavior_logprob", "raw_logprob"):
        np.testing.assert_allclose(
          getattr(answer, name), getattr(expected, name), atol=1e-5
        )

  async def test_every_token_has_its_own_version(self):
    served = await self.serve()
    generator = await self.connect(
      "openai", served.address, needs=TWO_POLICY_SLOTS
    )
    await generator.generate([1], SHORT)
    engine = served.driver.engine
    before, step = engine.stats().num_sampled[0], engine.step

    def step_and_swap():
      if engine.stats().num_sampled[0] >= before + 6:
        engine.step = step
        engine.versions.publish(0, small.params(30), 30)
      return step()

    engine.step = step_and_swap
    answer = await generator.generate([1], SamplingSpec(max_tokens=60))
    self.assertEqual(set(answer.version), {10, 30})
    self.assertTrue(np.all(np.diff(answer.version) >= 0))

  async def test_a_server_that_is_killed_costs_no_answer(self):
    stack = contextlib.AsyncExitStack()
    self.addAsyncCleanup(stack.aclose)
    leaving = await stack.enter_async_context(OwnServer())
    released = hold(self, leaving)
    generator = await self.connect(
      "openai", leaving.address, needs=TWO_POLICY_SLOTS, health_interval_s=1.0
    )
    released.set()
    specs = [SamplingSpec(max_tokens=40, seed=seed) for seed in range(4)]
    await generator.generate([1], SHORT)
    released.clear()
    asked = [
      asyncio.create_task(generator.generate([1, 2], spec)) for spec in specs
    ]
    await self.until(lambda: sum(leaving.driver.num_inside) == 4)
    port = leaving.port
    released.set()
    leaving.driver.close()
    await self.until(lambda: generator.pool.servers[0].num_lost)
    await stack.aclose()
    again = await self.serve(port=port)
    answers = await asyncio.gather(*asked)
    self.assertGreaterEqual(generator.num_repeated, 4)
    expected = await self.ask(
      await self.connect("openai", again.address, needs=TWO_POLICY_SLOTS),
      [([1, 2], spec) for spec in specs],
    )
    for answer, wanted in zip(answers, expected, strict=True):
      np.testing.assert_array_equal(answer.sampled, wanted.sampled)

  async def test_mistakes_are_raised_and_not_repeated(self):
    served = await self.serve()
    generator = await self.connect(
      "openai", served.address, needs=TWO_POLICY_SLOTS
    )
    with self.assertRaises(PromptTooLong):
      await generator.generate([1] * 90, SHORT)
    with self.assertRaisesRegex(ConfigError, "knows 0 to 60"):
      await generator.generate([small.VOCAB], SHORT)
    self.assertEqual(generator.num_repeated, 0)

  async def test_a_vocabulary_that_does_not_fit_is_refused(self):
    served = await self.serve()
    needs = dataclasses.replace(TWO_POLICY_SLOTS, vocab_size=small.VOCAB + 9)
    generator = await self.connect("openai", served.address, needs=needs)
    with self.assertRaisesRegex(ConfigError, f"knows 0 to {small.VOCAB - 1}"):
      await generator.serving({}, 60)

  async def test_a_server_without_weights_is_waited_for(self):
    served = await self.serve()
    serving, served.serving = served.serving, False
    generator = await self.connect("openai", served.address, needs=NEEDS_ONE)
    await self.until(lambda: generator.pool.servers[0].is_reachable)
    asked = asyncio.create_task(generator.generate([1], SHORT))
    await asyncio.sleep(0.2)
    self.assertFalse(asked.done())
    served.serving = serving
    self.assertEqual(len((await asked).sampled), SHORT.max_tokens)


NEEDS_ONE = dataclasses.replace(NEEDS, num_policy_slots=2)


if __name__ == "__main__":
  unittest.main()
