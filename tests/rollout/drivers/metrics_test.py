"""Engine metrics of real answers by the deterministic driver."""

import unittest

import pytest

from agentrl_jax.model.policy import num_params
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.drivers.metrics import EngineMetrics
from tests.clocks import StoppedClock
from tests.rollout import small


class EngineMetricsTest(unittest.TestCase):
  def open(self, **settings):
    driver = LocalDriver(small.engine_of(**settings))
    self.addCleanup(driver.close)
    clock = StoppedClock(0.0)
    return driver, EngineMetrics(driver, clock), clock

  def ask(self, driver, requests):
    futures = [driver.submit(*request) for request in requests]
    driver.run_until_idle()
    return [future.result(0) for future in futures]

  def test_counts_tokens_of_the_answers(self):
    driver, metrics, clock = self.open()
    prompt = small.prompt_of(4, 60)
    answers = self.ask(
      driver,
      [(prompt, SamplingParams(max_tokens=9, seed=seed)) for seed in range(3)],
    )
    clock.now_s = 2.0
    report = metrics.report()
    sampled = sum(len(answer.sampled) for answer in answers)
    self.assertEqual(report["engine/sampled_tokens/policy_slot0"], sampled)
    self.assertEqual(report["engine/sampled_tokens/policy_slot1"], 0)
    self.assertEqual(report["engine/tokens_per_s"], sampled / 2)
    self.assertEqual(
      report["engine/weight_bytes/policy_slot0"],
      4 * num_params(small.params(10)),
    )
    self.assertEqual(report["engine/prefilled_tokens/policy_slot0"], 59)
    self.assertEqual(report["engine/reused_tokens/policy_slot0"], 2 * 59)
    self.assertAlmostEqual(report["engine/reused_share/policy_slot0"], 2 / 3)
    self.assertEqual(report["engine/copied_tokens/policy_slot0"], 2 * 11)
    self.assertGreater(report["engine/slot_occupancy/policy_slot0"], 0)
    self.assertLessEqual(report["engine/slot_occupancy/policy_slot0"], 1)
    self.assertGreaterEqual(report["engine/wait_s/policy_slot0"], 0)
    # The other policy slot had no requests, so it has no mean.
    self.assertNotIn("engine/wait_s/policy_slot1", report)
    self.assertEqual(report["engine/slot_occupancy/policy_slot1"], 0)

  def test_counters_add_up_and_means_start_again(self):
    driver, metrics, clock = self.open()
    request = (small.prompt_of(4, 20), SamplingParams(max_tokens=5))
    self.ask(driver, [request])
    clock.now_s = 1.0
    first = metrics.report()
    clock.now_s = 2.0
    idle = metrics.report()
    name = "engine/sampled_tokens/policy_slot0"
    self.assertEqual(idle[name], first[name])
    self.assertEqual(idle["engine/tokens_per_s"], 0)
    for mean in ("wait_s", "reused_share", "slot_occupancy"):
      self.assertNotIn(f"engine/{mean}/policy_slot0", idle)
    self.ask(driver, [request])
    again = metrics.report()
    self.assertEqual(again[name], 2 * first[name])
    self.assertEqual(again["engine/reused_share/policy_slot0"], 1.0)

  def test_requests_that_wait_for_a_slot_are_counted(self):
    driver, metrics, clock = self.open()
    futures = [
      driver.submit([i], SamplingParams(max_tokens=30)) for i in range(4 + 4)
    ]
    driver.step()
    clock.now_s = 1.0
    report = metrics.report()
    self.assertEqual(report["engine/waiting_requests/policy_slot0"], 4)
    self.assertEqual(report["engine/slot_occupancy/policy_slot0"], 1.0)
    futures[-1].cancel()
    driver.run_until_idle()
    report = metrics.report()
    self.assertEqual(report["engine/waiting_requests/policy_slot0"], 0)
    waited = report["engine/wait_s/policy_slot0"]
    # Three waited for earlier requests, the first did not wait.
    self.assertGreater(waited, 0)

  def test_without_drafts_a_slot_samples_one_token_per_step(self):
    driver, metrics, _ = self.open()
    self.ask(driver, [([5], SamplingParams(max_tokens=9))])
    report = metrics.report()
    self.assertEqual(report["engine/tokens_per_slot_step/policy_slot0"], 1)
    self.assertNotIn("engine/accepted_share/policy_slot0", report)

  @pytest.mark.slow
  def test_pages_of_ended_sequences_are_evicted(self):
    driver, metrics, _ = self.open(
      slots=(1, 1), page_size=16, cache_tokens=(64, 64)
    )
    for seed in range(6):
      self.ask(
        driver, [(small.prompt_of(seed, 50), SamplingParams(max_tokens=4))]
      )
    report = metrics.report()
    self.assertGreater(report["engine/evicted_pages/policy_slot0"], 0)
    self.assertEqual(report["engine/evicted_pages/policy_slot1"], 0)
