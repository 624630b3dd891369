"""The engine's figures, of real answers by the deterministic driver."""

import unittest

from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from agentrl_jax.rollout.drivers.metrics import EngineMetrics
from tests.rollout import small


class Clock:
  now_s = 0.0

  def __call__(self) -> float:
    return self.now_s


class EngineMetricsTest(unittest.TestCase):
  def open(self, **settings):
    driver = LocalDriver(small.engine_of(**settings))
    self.addCleanup(driver.close)
    clock = Clock()
    return driver, EngineMetrics(driver, clock), clock

  def ask(self, driver, requests):
    futures = [driver.submit(*request) for request in requests]
    driver.run_until_idle()
    return [future.result(0) for future in futures]

  def test_counts_what_the_answers_say(self):
    driver, metrics, clock = self.open()
    prompt = small.prompt_of(4, 60)
    answers = self.ask(
      driver,
      [(prompt, SamplingSpec(max_tokens=9, seed=seed)) for seed in range(3)],
    )
    clock.now_s = 2.0
    found = metrics.report()
    sampled = sum(len(answer.sampled) for answer in answers)
    self.assertEqual(found["engine/sampled_tokens/policy_slot0"], sampled)
    self.assertEqual(found["engine/sampled_tokens/policy_slot1"], 0)
    self.assertEqual(found["engine/tokens_per_s"], sampled / 2)
    self.assertEqual(found["engine/prefilled_tokens/policy_slot0"], 59)
    self.assertEqual(found["engine/reused_tokens/policy_slot0"], 2 * 59)
    self.assertAlmostEqual(found["engine/reused_share/policy_slot0"], 2 / 3)
    self.assertEqual(found["engine/copied_tokens/policy_slot0"], 2 * 59)
    self.assertGreater(found["engine/slot_occupancy/policy_slot0"], 0)
    self.assertLessEqual(found["engine/slot_occupancy/policy_slot0"], 1)
    self.assertGreaterEqual(found["engine/wait_s/policy_slot0"], 0)
    # Nobody asked the other policy slot: no mean of nothing.
    self.assertNotIn("engine/wait_s/policy_slot1", found)
    self.assertEqual(found["engine/slot_occupancy/policy_slot1"], 0)

  def test_counters_go_on_and_means_begin_anew(self):
    driver, metrics, clock = self.open()
    request = (small.prompt_of(4, 20), SamplingSpec(max_tokens=5))
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

  def test_a_full_engine_shows_who_waits(self):
    driver, metrics, clock = self.open(slots=(1, 1))
    futures = [
      driver.submit([i], SamplingSpec(max_tokens=30)) for i in range(5)
    ]
    driver.step()
    clock.now_s = 1.0
    found = metrics.report()
    self.assertEqual(found["engine/waiting_requests/policy_slot0"], 4)
    self.assertEqual(found["engine/slot_occupancy/policy_slot0"], 1.0)
    futures[4].cancel()
    driver.run_until_idle()
    found = metrics.report()
    self.assertEqual(found["engine/waiting_requests/policy_slot0"], 0)
    waited = found["engine/wait_s/policy_slot0"]
    # Three waited for those before them: longer than the first, who found the
    # slot empty.
    self.assertGreater(waited, 0)

  def test_a_store_that_is_too_small_evicts(self):
    driver, metrics, _ = self.open(
      slots=(1, 1), prefix_cache_tokens=64, block_size=16
    )
    for seed in range(6):
      self.ask(
        driver, [(small.prompt_of(seed, 50), SamplingSpec(max_tokens=4))]
      )
    found = metrics.report()
    self.assertGreater(found["engine/stored_tokens/policy_slot0"], 0)
    self.assertGreater(found["engine/evicted_blocks/policy_slot0"], 0)
    self.assertEqual(found["engine/evicted_blocks/policy_slot1"], 0)
    self.assertEqual(found["engine/store_failures/policy_slot0"], 0)


if __name__ == "__main__":
  unittest.main()
