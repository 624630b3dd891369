"""The deterministic driver keeps the contract, and repeats its bits."""

import numpy as np
import pytest

from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.rollout.api import SamplingParams
from tests.rollout import small
from tests.rollout.drivers.contract import (
  FEW_PAGES,
  DriverContract,
  DriverTestCase,
  mixed_requests,
)


class LocalDriverTest(DriverContract, DriverTestCase):
  kind = "local"
  settings = FEW_PAGES

  def test_a_swap_while_decoding_stamps_both_versions(self):
    prompt = small.prompt_of(8, 30)
    driver = self.open(prefill_tokens=16, prefill_slots=1)
    future = driver.submit(prompt, SamplingParams(max_tokens=12))
    for _ in range(4):  # two chunks of prompt, two syncs of three tokens
      driver.step()
    driver.engine.versions.publish(small.params(30), 30)
    (answer,) = self.settle(driver, [future])
    self.assertEqual(answer.version.tolist(), [10] * 9 + [30] * 3)
    next_prompt = small.conversation(prompt, answer, [1, 2])
    for expected in (0, len(next_prompt) - 1):
      (again,) = self.ask(driver, [(next_prompt, SamplingParams(max_tokens=1))])
      self.assertEqual(again.num_reused, expected)

  def test_a_swap_during_prefill_starts_it_again(self):
    prompt, spec = small.prompt_of(9, 60), SamplingParams(max_tokens=5)
    driver = self.open(prefill_tokens=16, prefill_slots=1)
    future = driver.submit(prompt, spec)
    driver.step()
    driver.engine.versions.publish(small.params(30), 30)
    (answer,) = self.settle(driver, [future])
    fresh = self.open((30, 20))
    (expected,) = self.ask(fresh, [(prompt, spec)])
    small.assert_same(answer, expected)
    self.assertEqual(driver.engine.stats().num_prefilled[0], 16 + 59)

  def test_cancelling_frees_slots_and_the_queue(self):
    driver = self.open()
    spec = SamplingParams(max_tokens=30)
    futures = [driver.submit([i], spec) for i in range(10)]
    driver.step()
    # One waits outside, one is inside without a slot, one decodes.
    for i in (9, 5, 0):
      self.assertTrue(futures.pop(i).cancel())
    self.assertEqual(len(self.settle(driver, futures)), 7)
    self.assertEqual(driver.engine.stats().num_cancelled, 2)
    self.assert_empty(driver)

  def test_a_slot_freed_by_cancelling_decodes_no_further(self):
    driver = self.open()
    doomed = driver.submit([5], SamplingParams(max_tokens=80))
    requests = [([i], SamplingParams(max_tokens=30, seed=i)) for i in range(3)]
    futures = [driver.submit(*request) for request in requests]
    driver.step()
    doomed.cancel()  # the others hold the other slots
    requests.append(
      (small.prompt_of(10, 50), SamplingParams(max_tokens=30, seed=2))
    )
    futures.append(driver.submit(*requests[-1]))
    answers = self.settle(driver, futures)
    expected = self.ask(self.open(), requests)
    for answer, wanted in zip(answers, expected, strict=True):
      np.testing.assert_array_equal(answer.sampled, wanted.sampled)

  def test_a_page_is_copied_for_two_requests_at_once(self):
    driver, spec = self.open(), SamplingParams(max_tokens=2)
    prompts = [small.prompt_of(i, 40) for i in range(4)]
    self.ask(driver, [(prompt, spec) for prompt in prompts])
    # Both share a part of the last prompt, and so a part of one of its pages.
    branches = [
      (np.append(prompts[3][:30], end), SamplingParams(max_tokens=9, seed=end))
      for end in (1, 2)
    ]
    answers = self.ask(driver, branches)
    part = 30 % driver.engine.config.tokens_per_page
    self.assertEqual(driver.engine.stats().num_copied[0], 2 * part)
    expected = self.ask(self.open(), branches)
    for answer, wanted in zip(answers, expected, strict=True):
      self.assertEqual(answer.num_reused, 30)
      small.assert_same(answer, wanted)

  def test_the_same_requests_give_the_same_bits(self):
    runs = [self.ask(self.open(), list(mixed_requests(20))) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
      small.assert_same(first, second, atol=0)

  def test_an_engine_that_does_not_get_idle_is_reported(self):
    driver = self.open()
    driver.submit([1], SamplingParams(max_tokens=60))
    with self.assertRaisesRegex(DeadlineExceeded, "max_steps=2"):
      driver.run_until_idle(max_steps=2)


# `jetstream_test` has the contract on such an engine.
@pytest.mark.slow
class LocalDriverWithPagesForAllSlotsTest(LocalDriverTest):
  settings = {}
