"""After any number of random requests, nothing is left behind."""

import threading

import numpy as np
import pytest
from absl import logging
from absl.testing import absltest, parameterized

from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from tests.rollout import small, small_grammars, soak

DRIVERS = ("local", "jetstream")
# How keys and values live on, and what a swap does to answers that have begun.
ENGINES = {
  "slots": dict(old_weights=0),
  "store": dict(
    prefix_cache_tokens=96,
    prefix_cache_host_tokens=96,
    block_size=16,
    old_weights=1,
  ),
}


def driver_on(kind, engine, **options):
  if kind == "local":
    return LocalDriver(engine, **options)
  pytest.importorskip("jetstream", reason="google-jetstream is missing")
  from agentrl_jax.rollout.drivers import jetstream as jetstream_driver

  return jetstream_driver.JetStreamDriver(engine, **options)


class SoakTest(parameterized.TestCase):
  @parameterized.parameters(("local", "store"), ("jetstream", "slots"))
  def test_hundreds_of_requests(self, driver, engine):
    self.soak(driver, engine, number=120, checked=8, seed=1)

  @parameterized.product(driver=DRIVERS, engine=list(ENGINES))
  @pytest.mark.full
  def test_ten_thousand_requests(self, driver, engine):
    self.soak(driver, engine, number=2500, checked=40, seed=2)

  def soak(self, kind, engine, *, number, checked, seed):
    logging.info("seed %d: %d requests, %s, %s", seed, number, kind, engine)
    threads = set(threading.enumerate())
    driver = self.driver_of(kind, engine)
    try:
      running = soak.Soak(driver, seed)
      asked = running.run(number // 5)  # everything is compiled after these
      before = soak.live_bytes()
      asked = running.run(number - number // 5)
      self.check_all_ended(running, asked, number)
      self.check_nothing_is_left(driver, kind)
      self.assertLess(soak.live_bytes(), before + 200_000, "arrays pile up")
    finally:
      driver.close()
    self.assertEqual(set(threading.enumerate()), threads)
    self.check_answers(asked, checked)

  def driver_of(self, kind, engine):
    # Policy slot i serves the weights of seed (10 + i) % SEEDS, as step 20 + i.
    engine = small.engine_of(
      (20 % soak.SEEDS, 19 % soak.SEEDS),
      slots=(3, 2),
      grammars=small_grammars.grammars(),
      **ENGINES[engine],
    )
    for policy_slot, step in enumerate((20, 19)):
      engine.versions.publish(
        policy_slot, small.params(step % soak.SEEDS), step
      )
    return driver_on(kind, engine, max_waiting=soak.MAX_WAITING)

  def check_all_ended(self, running, asked, number):
    logging.info("%s", dict(running.counts))
    self.assertLen(asked, number)
    for one in asked:
      self.assertTrue(one.future.done())
    for what in (
      "answered",
      "cancelled meanwhile",
      "cancelled at once",
      "full",
      "swapped",
      "continued",
      "streamed",
      "constrained",
      "dead ends",
    ):
      self.assertGreater(running.counts[what], 0, what)

  def check_nothing_is_left(self, driver, kind):
    if kind == "local":
      driver.run_until_idle()
    # As many requests as can be inside at once still find a place each.
    probes = [
      driver.submit([1], SamplingSpec(policy_slot=policy_slot, max_tokens=2))
      for policy_slot, slots in enumerate(driver.engine.config.slots)
      for _ in range(2 * slots)
    ]
    if kind == "local":
      driver.run_until_idle()
    for probe in probes:
      self.assertLen(probe.result(soak.WAIT_S).sampled, 2)
    stats = driver.engine.stats()
    self.assertEqual((stats.num_active, stats.num_pending), ((0, 0), (0, 0)))
    self.assertEqual(driver.num_inside, (0, 0))
    self.assertEqual(driver.num_waiting, (0, 0))
    self.assertTrue(driver.engine.is_idle)
    driver.engine.check_books()

  def check_answers(self, asked, number):
    """A sample of answers equals that of an engine which has no other."""
    answered = [
      one
      for one in asked
      if not one.future.cancelled() and one.future.exception(0) is None
    ]
    for one in answered:
      self.check_shape(one)
    whole = [
      one for one in answered if len(set(one.future.result(0).version)) == 1
    ]
    engines = {}
    for one in whole[:: max(1, len(whole) // number)]:
      answer = one.future.result(0)
      seed = int(answer.version[0]) % soak.SEEDS
      if seed not in engines:
        engines[seed] = LocalDriver(
          small.engine_of((seed, seed), grammars=small_grammars.grammars())
        )
      engines[seed].engine.forget()
      future = engines[seed].submit(one.prompt, one.spec)
      engines[seed].run_until_idle()
      alone = future.result(0)
      np.testing.assert_array_equal(answer.sampled, alone.sampled)
      for name in ("behavior_logprob", "raw_logprob"):
        np.testing.assert_allclose(
          getattr(answer, name), getattr(alone, name), atol=1e-4
        )
    for engine in engines.values():
      engine.close()

  def check_shape(self, one):
    answer, spec = one.future.result(0), one.spec
    if spec.grammar:
      small_grammars.grammars().masks(spec.grammar, answer.sampled)  # raises
    self.assertEqual(answer.policy_slot, spec.policy_slot)
    self.assertBetween(len(answer.sampled), 1, spec.max_tokens)
    stops = np.isin(answer.sampled, spec.stop_tokens)
    self.assertFalse(stops[:-1].any())
    if len(answer.sampled) < spec.max_tokens:
      self.assertTrue(stops[-1])
    self.assertTrue(np.all(np.diff(answer.version) >= 0))
    if one.pieces:
      heard = np.concatenate([piece.sampled for piece in one.pieces])
      np.testing.assert_array_equal(heard, answer.sampled)


if __name__ == "__main__":
  absltest.main()
