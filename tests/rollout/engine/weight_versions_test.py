"""What becomes of answers that have begun when the weights are swapped."""

import unittest
import weakref

import jax
import numpy as np

from agentrl_jax.rollout.api import SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from agentrl_jax.rollout.engine.weight_versions import WeightVersions
from agentrl_jax.rollout.engine.weights import Published
from tests.rollout import small

PROMPT = small.prompt_of(8, 30)


def spec(seed, max_tokens=24):
  return SamplingSpec(seed=seed, max_tokens=max_tokens)


def driver_of(**changes):
  return LocalDriver(small.engine_of((10,), slots=(4,), **changes))


def publish(driver, step):
  driver.engine.versions.publish(0, small.params(step), step)


def finish(driver, futures):
  driver.run_until_idle()
  driver.engine.check_books()
  return [future.result(0) for future in futures]


class InFlightTest(unittest.TestCase):
  def published(self, publication):
    return Published(
      params=None, step=10 * publication, publication=publication
    )

  def test_keeps_what_is_needed_and_no_more_than_it_may(self):
    for num_old, publications in ((0, [4]), (1, [3, 4]), (9, [1, 3, 4])):
      weights = WeightVersions(num_old)
      for publication in (1, 2, 3, 4):
        weights.set_weights(self.published(publication), {1, 3})
      self.assertEqual(weights.publications, publications)
      self.assertEqual(weights.of(2).publication, 4)
      self.assertEqual(weights.of(publications[0]).publication, publications[0])


class SwapTest(unittest.TestCase):
  def test_what_has_begun_is_finished_on_its_weights(self):
    driver = driver_of(old_weights=1)
    first = [driver.submit(PROMPT, spec(seed)) for seed in (1, 2)]
    for _ in range(2):
      driver.step()
    publish(driver, 30)
    second = [driver.submit(PROMPT, spec(seed)) for seed in (1, 2)]
    answers = finish(driver, first + second)
    for answer, step in zip(answers, (10, 10, 30, 30), strict=True):
      self.assertEqual(answer.version.tolist(), [step] * 24)
      tokens = np.concatenate([PROMPT, answer.sampled])
      logits = small.teacher_logits(step, tokens)[29:-1]
      expected = small.log_softmax(logits)[np.arange(24), answer.sampled]
      np.testing.assert_allclose(answer.raw_logprob, expected, atol=1e-4)
    # 24 tokens are 8 steps, the last of which began three later: two until the
    # swap, and one in which the prompt was fed for both.
    self.assertEqual(driver.engine.stats().num_steps, 11)

  def test_without_room_for_old_weights_it_goes_on_with_the_newest(self):
    driver = driver_of()
    future = driver.submit(PROMPT, spec(1))
    for _ in range(2):
      driver.step()
    publish(driver, 30)
    (answer,) = finish(driver, [future])
    self.assertEqual(answer.version.tolist(), [10] * 6 + [30] * 18)

  def test_one_swap_too_many_takes_the_oldest_over_to_the_newest(self):
    driver = driver_of(old_weights=1)
    futures = []
    for step in (10, 30, 40):
      if step > 10:
        publish(driver, step)
      futures.append(driver.submit(PROMPT, spec(step)))
      for _ in range(2):
        driver.step()
    answers = finish(driver, futures)
    versions = [answer.version.tolist() for answer in answers]
    self.assertEqual(versions, [[10] * 12 + [40] * 12, [30] * 24, [40] * 24])
    # Of what is left in the slots, only the last is the newest weights' own.
    following = small.conversation(PROMPT, answers[0], [1])
    newest = small.conversation(PROMPT, answers[2], [1])
    alike = int((following == newest).argmin())
    (again,) = finish(driver, [driver.submit(following, spec(1, 1))])
    self.assertEqual(again.num_reused, alike)
    self.assertLess(alike, 35)

  def test_old_weights_live_as_long_as_a_slot_needs_them(self):
    driver = driver_of(old_weights=2)
    params = jax.tree.map(lambda x: x.copy(), small.params(20))
    leaf = weakref.ref(jax.tree.leaves(params)[0])
    driver.engine.versions.publish(0, params, 20)
    del params
    short, long = (
      driver.submit(PROMPT, spec(seed, size)) for seed, size in ((1, 9), (2, 3))
    )
    driver.step()
    publish(driver, 30)
    later = driver.submit(PROMPT, spec(3, 30))
    while not short.done():
      self.assertIsNotNone(leaf())
      driver.step()
    driver.step()
    self.assertIsNone(leaf())
    finish(driver, [short, long, later])

  def test_an_idle_engine_holds_on_to_nothing(self):
    driver = driver_of(old_weights=1)
    params = jax.tree.map(lambda x: x.copy(), small.params(20))
    leaf = weakref.ref(jax.tree.leaves(params)[0])
    driver.engine.versions.publish(0, params, 20)
    del params
    finish(driver, [driver.submit(PROMPT, spec(1, 3))])
    doomed = driver.submit(PROMPT, spec(1, 9))
    driver.step()
    doomed.cancel()
    driver.run_until_idle()
    publish(driver, 30)
    self.assertIsNone(leaf())

  def test_random_swaps_and_cancels_mix_nothing(self):
    rng = np.random.default_rng(5)
    driver = driver_of(old_weights=2, block_size=8, prefix_cache_tokens=256)
    futures, step = [], 10
    for i in range(60):
      prompt = small.prompt_of(i % 4, 10 + 5 * (i % 4))
      futures.append((prompt, driver.submit(prompt, spec(i, 1 + i % 20))))
      if rng.random() < 0.2:
        futures[int(rng.integers(len(futures)))][1].cancel()
      if rng.random() < 0.15:
        step = int(rng.integers(11, 14))
        publish(driver, step)
      for _ in range(int(rng.integers(3))):
        driver.step()
    driver.run_until_idle()
    driver.engine.check_books()
    pure = [
      (prompt, future.result(0))
      for prompt, future in futures
      if not future.cancelled() and len(set(future.result(0).version)) == 1
    ]
    self.assertGreater(len(pure), 30)
    for prompt, answer in pure:
      self.check_logprobs(prompt, answer)

  def check_logprobs(self, prompt, answer):
    tokens = np.concatenate([prompt, answer.sampled])
    logits = small.teacher_logits(answer.version[0], tokens)
    rows = small.log_softmax(logits[len(prompt) - 1 : -1])
    expected = rows[np.arange(len(rows)), answer.sampled]
    np.testing.assert_allclose(answer.raw_logprob, expected, atol=1e-4)


if __name__ == "__main__":
  unittest.main()
