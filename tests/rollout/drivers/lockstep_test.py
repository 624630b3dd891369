"""Answers in waves: everyone asks before anyone goes on."""

import asyncio
import random
import unittest

import numpy as np

from agentrl_jax.errors import DeadlineExceeded, PromptTooLong
from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from agentrl_jax.rollout.drivers.lockstep import LockstepGenerator
from tests.rollout import small

NUM_ATTEMPTS, NUM_TURNS = 6, 3


def _spec(seed, **changes):
  settings = dict(seed=seed, temperature=0.9, max_tokens=4 + seed % 5)
  return SamplingSpec(**(settings | changes))


class WaveGeneratorTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.driver = LocalDriver(small.engine_of())
    self.addCleanup(self.driver.close)

  async def _attempt(self, waves, number, waits):
    """A conversation; the environment takes its time."""
    with waves.playing():
      prompt, answers = small.prompt_of(number, 9 + number), []
      for turn in range(NUM_TURNS):
        await asyncio.sleep(waits.uniform(0, 0.01))
        spec = _spec(10 * number + turn, policy_slot=number % 2)
        answers.append(await waves.generate(prompt, spec))
        prompt = small.conversation(prompt, answers[-1], [turn])
    return answers

  async def _played(self, seed):
    """By attempt its answers; and the steps that the engine took."""
    driver = LocalDriver(small.engine_of())
    self.addCleanup(driver.close)
    waves, draw = LockstepGenerator(driver), random.Random(seed)
    numbers = list(range(NUM_ATTEMPTS))
    draw.shuffle(numbers)
    async with driver.serving():
      found = await asyncio.gather(
        *(self._attempt(waves, number, draw) for number in numbers)
      )
    stats = driver.engine.stats()
    return dict(zip(numbers, found, strict=True)), stats.num_steps, stats

  async def test_who_came_when_changes_no_bit_and_no_step(self):
    first, num_steps, stats = await self._played(seed=0)
    second, again, other = await self._played(seed=1)
    self.assertEqual(num_steps, again)
    self.assertEqual(stats.num_reused, other.num_reused)
    for number, answers in first.items():
      for a, b in zip(answers, second[number], strict=True):
        np.testing.assert_array_equal(a.sampled, b.sampled)
        np.testing.assert_array_equal(a.raw_logprob, b.raw_logprob)
        np.testing.assert_array_equal(a.behavior_logprob, b.behavior_logprob)

  async def test_a_refusal_is_its_own(self):
    waves = LockstepGenerator(self.driver)

    async def attempt(spec):
      with waves.playing():
        return await waves.generate([1, 2, 3], spec)

    async with self.driver.serving():
      answer, refusal = await asyncio.gather(
        attempt(_spec(1)),
        attempt(_spec(2, max_tokens=500)),
        return_exceptions=True,
      )
    self.assertEqual(answer.version[0], 10)
    self.assertIsInstance(refusal, PromptTooLong)

  async def test_nobody_is_answered_before_all_have_asked(self):
    waves, late = LockstepGenerator(self.driver), asyncio.Event()

    async def thinks():
      with waves.playing():
        await late.wait()

    async def asks():
      with waves.playing():
        return await waves.generate([1, 2, 3], _spec(1))

    async with self.driver.serving():
      thinking = asyncio.create_task(thinks())
      asking = asyncio.create_task(asks())
      for _ in range(1000):
        await asyncio.sleep(0)
      self.assertEqual(self.driver.engine.stats().num_steps, 0)
      late.set()
      self.assertEqual((await asking).version[0], 10)
      await thinking

  async def test_one_that_is_cancelled_holds_up_nobody(self):
    waves = LockstepGenerator(self.driver)

    async def attempt(number):
      with waves.playing():
        if number:
          return await waves.generate([1, 2, 3], _spec(1))
        await asyncio.Event().wait()

    async with self.driver.serving():
      stuck, asking = (asyncio.create_task(attempt(n)) for n in range(2))
      for _ in range(1000):
        await asyncio.sleep(0)
      stuck.cancel()
      self.assertEqual((await asking).version[0], 10)

  async def test_a_deadline_names_who_is_waited_for(self):
    waves = LockstepGenerator(self.driver, deadline_s=0.05)
    refused = self.assertRaisesRegex(DeadlineExceeded, "1 of 2 episodes")
    with waves.playing(), waves.playing(), refused:
      await waves.generate([1, 2, 3], _spec(1))

  async def test_an_engine_that_forgets_starts_as_new(self):
    requests = [(small.prompt_of(n, 20), _spec(n)) for n in range(3)]
    counts = []
    for _ in range(2):
      before = self.driver.engine.stats()
      for request in requests:
        self.driver.submit(*request)
      self.driver.run_until_idle()
      after = self.driver.engine.stats()
      counts.append(after.num_prefilled[0] - before.num_prefilled[0])
      self.driver.engine.reset()
    self.assertEqual(counts[0], counts[1])
    self.assertGreater(counts[0], 0)


if __name__ == "__main__":
  unittest.main()
