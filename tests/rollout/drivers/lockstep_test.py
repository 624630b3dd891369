"""Answers in lockstep: no episode goes on before all have sent a request."""

import asyncio
import random
import unittest

from agentrl_jax.errors import DeadlineExceeded, PromptTooLong
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.drivers.lockstep import LockstepGenerator
from tests.clocks import Clock, turns_of_the_loop
from tests.rollout import small

NUM_EPISODES, NUM_TURNS = 6, 3


def _spec(seed, **changes):
  settings = dict(seed=seed, temperature=0.9, max_tokens=4 + seed % 5)
  return SamplingParams(**(settings | changes))


class LockstepGeneratorTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.driver = LocalDriver(small.engine_of())
    self.addCleanup(self.driver.close)

  async def _episode(self, generator, number, draw):
    """Plays an episode whose environment takes random times."""
    with generator.playing():
      prompt, answers = small.prompt_of(number, 9 + number), []
      for turn in range(NUM_TURNS):
        await turns_of_the_loop(draw.randrange(50))
        spec = _spec(10 * number + turn, policy_slot=number % 2)
        answers.append(await generator.generate(prompt, spec))
        prompt = small.conversation(prompt, answers[-1], [turn])
    return answers

  async def _played(self, seed):
    """Returns answers by episode, the number of engine steps, and counts."""
    driver = LocalDriver(small.engine_of())
    self.addCleanup(driver.close)
    generator, draw = (
      LockstepGenerator(driver, deadline_s=600.0),
      random.Random(seed),
    )
    numbers = list(range(NUM_EPISODES))
    draw.shuffle(numbers)
    async with driver.serving():
      answers = await asyncio.gather(
        *(self._episode(generator, number, draw) for number in numbers)
      )
    stats = driver.engine.stats()
    return dict(zip(numbers, answers, strict=True)), stats.num_steps, stats

  async def test_the_order_of_arrival_changes_no_bit_and_no_step(self):
    first, num_steps, stats = await self._played(seed=0)
    second, again, other = await self._played(seed=1)
    self.assertEqual(num_steps, again)
    self.assertEqual(stats.num_reused, other.num_reused)
    for number, answers in first.items():
      for a, b in zip(answers, second[number], strict=True):
        small.assert_same(a, b, atol=0)

  async def test_a_refused_request_fails_alone(self):
    generator = LockstepGenerator(self.driver, deadline_s=600.0)

    async def episode(spec):
      with generator.playing():
        return await generator.generate([1, 2, 3], spec)

    async with self.driver.serving():
      answer, refusal = await asyncio.gather(
        episode(_spec(1)),
        episode(_spec(2, max_tokens=500)),
        return_exceptions=True,
      )
    self.assertEqual(answer.version[0], 10)
    self.assertIsInstance(refusal, PromptTooLong)

  async def test_no_answer_before_all_have_sent_a_request(self):
    generator, late = (
      LockstepGenerator(self.driver, deadline_s=600.0),
      asyncio.Event(),
    )

    async def thinks():
      with generator.playing():
        await late.wait()

    async def asks():
      with generator.playing():
        return await generator.generate([1, 2, 3], _spec(1))

    async with self.driver.serving():
      thinking = asyncio.create_task(thinks())
      asking = asyncio.create_task(asks())
      await turns_of_the_loop(1000)
      self.assertEqual(self.driver.engine.stats().num_steps, 0)
      late.set()
      self.assertEqual((await asking).version[0], 10)
      await thinking

  async def test_a_cancelled_episode_does_not_block_the_round(self):
    generator = LockstepGenerator(self.driver, deadline_s=600.0)

    async def episode(number):
      with generator.playing():
        if number:
          return await generator.generate([1, 2, 3], _spec(1))
        await asyncio.Event().wait()

    async with self.driver.serving():
      stuck, asking = (asyncio.create_task(episode(n)) for n in range(2))
      await turns_of_the_loop(1000)
      stuck.cancel()
      self.assertEqual((await asking).version[0], 10)

  async def test_a_missed_deadline_is_reported(self):
    generator = LockstepGenerator(self.driver, deadline_s=60.0)
    with generator.playing(), generator.playing():
      asking = asyncio.create_task(generator.generate([1, 2, 3], _spec(1)))
      await turns_of_the_loop()
      self.assertFalse(asking.done())
      await Clock().forward(61.0)
      with self.assertRaisesRegex(DeadlineExceeded, "1 of 2 episodes"):
        await asking
