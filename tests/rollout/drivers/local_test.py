"""The deterministic driver keeps every driver's promises, and its own."""

import asyncio
import unittest

import numpy as np

from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from tests.rollout import small
from tests.rollout.drivers.contract import (
  PREFIX_CACHE,
  SHORT,
  DriverContract,
  mixed_requests,
)


class LocalDriverTest(DriverContract, unittest.TestCase):
  def driver_on(self, engine, **options):
    return LocalDriver(engine, **options)

  def settle(self, driver, futures):
    driver.run_until_idle()
    return [future.result(0) for future in futures]

  def run_into_error(self, driver):
    with self.assertRaisesRegex(ZeroDivisionError, "on purpose"):
      driver.run_until_idle()

  def test_a_swap_while_decoding_stamps_both_versions(self):
    prompt = small.prompt_of(8, 30)
    driver = self.open(prefill_tokens=16, prefill_slots=1)
    future = driver.submit(prompt, SamplingSpec(max_tokens=12))
    for _ in range(4):  # two chunks of prompt, two syncs of three tokens
      driver.step()
    driver.engine.versions.publish(0, small.params(30), 30)
    (answer,) = self.settle(driver, [future])
    self.assertEqual(answer.version.tolist(), [10] * 9 + [30] * 3)
    following = small.conversation(prompt, answer, [1, 2])
    for expected in (0, len(following) - 1):
      (again,) = self.ask(driver, [(following, SamplingSpec(max_tokens=1))])
      self.assertEqual(again.num_reused, expected)

  def test_a_swap_while_feeding_the_prompt_feeds_it_again(self):
    prompt, spec = small.prompt_of(9, 60), SamplingSpec(max_tokens=5)
    driver = self.open(prefill_tokens=16, prefill_slots=1)
    future = driver.submit(prompt, spec)
    driver.step()
    driver.engine.versions.publish(0, small.params(30), 30)
    (answer,) = self.settle(driver, [future])
    fresh = self.open((30, 20))
    (expected,) = self.ask(fresh, [(prompt, spec)])
    np.testing.assert_array_equal(answer.sampled, expected.sampled)
    np.testing.assert_allclose(
      answer.raw_logprob, expected.raw_logprob, atol=1e-4
    )
    self.assertEqual(driver.engine.stats().num_prefilled[0], 16 + 59)

  def test_cancelling_frees_the_slot_and_the_place_in_the_queue(self):
    driver = self.open(slots=(1, 1))
    spec = SamplingSpec(max_tokens=60)
    futures = [driver.submit([i], spec) for i in range(5)]
    driver.step()
    for i in (0, 1, 4):  # decodes, is inside without a slot, waits outside
      self.assertTrue(futures[i].cancel())
    self.assertEqual(len(self.settle(driver, futures[2:4])), 2)
    self.assertEqual(driver.engine.stats().num_cancelled, 2)
    self.assert_empty(driver)

  def test_a_slot_freed_by_cancelling_decodes_no_further(self):
    driver = self.open()
    doomed = driver.submit([5], SamplingSpec(max_tokens=80))
    requests = [([i], SamplingSpec(max_tokens=30, seed=i)) for i in range(3)]
    futures = [driver.submit(*request) for request in requests]
    driver.step()
    doomed.cancel()  # the others hold the other slots
    requests.append(
      (small.prompt_of(10, 50), SamplingSpec(max_tokens=30, seed=2))
    )
    futures.append(driver.submit(*requests[-1]))
    answers = self.settle(driver, futures)
    expected = self.ask(self.open(), requests)
    for answer, wanted in zip(answers, expected, strict=True):
      np.testing.assert_array_equal(answer.sampled, wanted.sampled)

  def test_a_copy_of_a_copy_is_made_in_order(self):
    driver, spec = self.open(), SamplingSpec(max_tokens=2)
    prompts = [small.prompt_of(i, 40) for i in range(4)]
    self.ask(driver, [(prompt, spec) for prompt in prompts])
    # Both branch off the last slot; the second finds it copied to the first.
    branches = [
      (np.append(prompts[3][:30], end), SamplingSpec(max_tokens=9, seed=end))
      for end in (1, 2)
    ]
    answers = self.ask(driver, branches)
    self.assertEqual(driver.engine.stats().num_copied[0], 60)
    expected = self.ask(self.open(), branches)
    for answer, wanted in zip(answers, expected, strict=True):
      self.assertEqual(answer.num_reused, 30)
      np.testing.assert_array_equal(answer.sampled, wanted.sampled)
      np.testing.assert_allclose(
        answer.raw_logprob, wanted.raw_logprob, atol=1e-4
      )

  def test_the_same_requests_give_the_same_bits(self):
    runs = [self.ask(self.open(), list(mixed_requests(20))) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
      for name in ("sampled", "behavior_logprob", "raw_logprob", "version"):
        np.testing.assert_array_equal(
          getattr(first, name), getattr(second, name)
        )

  def test_an_engine_that_never_gets_idle_is_reported(self):
    driver = self.open()
    driver.submit([1], SamplingSpec(max_tokens=60))
    with self.assertRaisesRegex(DeadlineExceeded, "max_steps=2"):
      driver.run_until_idle(max_steps=2)

  def test_hundreds_of_requests_cancels_and_swaps_leave_nothing(self):
    rng = np.random.default_rng(11)
    driver = self.open(driver_options=dict(max_waiting=400))
    futures = []
    for i, (prompt, spec) in enumerate(mixed_requests(300)):
      futures.append(driver.submit(prompt, spec))
      if rng.random() < 0.3:
        futures[int(rng.integers(len(futures)))].cancel()
      if rng.random() < 0.1:
        driver.engine.versions.publish(
          int(rng.integers(2)), small.params(int(rng.integers(3))), i
        )
      for _ in range(int(rng.integers(4))):
        driver.step()
    driver.run_until_idle()
    self.assertTrue(all(future.done() for future in futures))
    self.assert_empty(driver)


class LocalDriverWithStoreTest(LocalDriverTest):
  settings = PREFIX_CACHE

  def assert_empty(self, driver):
    super().assert_empty(driver)
    driver.engine.check_invariants()


class ServingTest(unittest.IsolatedAsyncioTestCase):
  async def test_serves_a_loop_and_stops_with_it(self):
    driver = LocalDriver(small.engine_of())
    requests = list(mixed_requests(12))
    async with driver.serving(), asyncio.timeout(120):
      for half in (requests[:6], requests[6:]):  # idle in between
        answers = await asyncio.gather(
          *(asyncio.wrap_future(driver.submit(p, s)) for p, s in half)
        )
        self.assertEqual(len(answers), 6)
    driver.close()

  async def test_an_error_reaches_those_who_wait(self):
    driver = LocalDriver(small.engine_of())

    def fail(*args):
      raise ZeroDivisionError("on purpose")

    driver.engine.versions.get = fail
    async with driver.serving(), asyncio.timeout(120):
      future = asyncio.wrap_future(driver.submit([1], SHORT))
      with self.assertRaisesRegex(Exception, "on purpose"):
        await future
    driver.close()


if __name__ == "__main__":
  unittest.main()
