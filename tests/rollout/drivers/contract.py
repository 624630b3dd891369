"""The contract of all drivers, and base classes of tests on drivers."""

import dataclasses
import threading

import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import (
  ConfigError,
  GeneratorFault,
  PromptTooLong,
  ServerFull,
)
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from tests.rollout import small

DRIVERS = ("local", "jetstream")
WAIT_S = 120.0
SHORT = SamplingParams(max_tokens=20)
# Less than the slots would fill, so that pages are evicted and given up.
FEW_PAGES = dict(page_size=8, cache_tokens=(160, 160))


def driver_on(kind, engine, **options):
  """Makes a driver by its name in `DRIVERS`."""
  if kind == "local":
    return LocalDriver(engine, **options)
  pytest.importorskip("jetstream", reason="google-jetstream is missing")
  from agentrl_jax.rollout.drivers import jetstream as jetstream_driver

  return jetstream_driver.JetStreamDriver(engine, **options)


def mixed_requests(number: int):
  """Yields prompts with sampling params of every kind, on both policy slots."""
  rng = np.random.default_rng(7)
  for i in range(number):
    spec = SamplingParams(
      policy_slot=int(rng.integers(2)),
      temperature=float(rng.choice([0.0, 0.7, 1.0, 1.3])),
      top_k=int(rng.choice([0, 0, 5])),
      top_p=float(rng.choice([1.0, 1.0, 0.8])),
      min_p=float(rng.choice([0.0, 0.0, 0.1])),
      max_tokens=int(rng.integers(1, 40)),
      stop_tokens=((), (3,), (3, 11, 40, 7))[rng.integers(3)],
      seed=int(rng.integers(2**63)),
    )
    yield small.prompt_of(100 + i, int(rng.integers(1, 50))), spec


class DriverTestCase(parameterized.TestCase):
  """Waits for either driver, and checks that it is empty."""

  def settle(self, driver, futures):
    if isinstance(driver, LocalDriver):
      driver.run_until_idle()
    return [future.result(WAIT_S) for future in futures]

  def check_empty(self, driver):
    """Checks that no request is left after one more step."""
    self.settle(driver, [driver.submit([3], SHORT)])
    self.assert_empty(driver)

  def assert_empty(self, driver):
    stats = driver.engine.stats()
    self.assertEqual((stats.num_active, stats.num_pending), ((0, 0), (0, 0)))
    self.assertEqual((driver.num_inside, driver.num_waiting), ((0, 0), (0, 0)))
    driver.engine.check_invariants()


class DriverContract:
  """Tests to mix into a `DriverTestCase`, for the driver of a `kind`."""

  kind: str  # in `DRIVERS`
  settings = {}  # of the engine

  def ask(self, driver, requests):
    return self.settle(driver, [driver.submit(p, s) for p, s in requests])

  def open(self, *args, driver_options=None, **changes):
    engine = small.engine_of(*args, **(self.settings | changes))
    driver = driver_on(self.kind, engine, **(driver_options or {}))
    self.addCleanup(driver.close)
    return driver

  def test_logprobs_are_those_of_the_distribution_drawn_from(self):
    requests = list(mixed_requests(40))
    answers = self.ask(self.open(), requests)
    for (prompt, spec), answer in zip(requests, answers, strict=True):
      step = (10, 20)[spec.policy_slot]
      self.assertEqual(set(answer.version), {step})
      self.assertEqual(answer.policy_slot, spec.policy_slot)
      tokens = np.concatenate([prompt, answer.sampled])
      logits = small.teacher_logits(step, tokens)[len(prompt) - 1 : -1]
      self.check_answer(spec, logits, answer)

  def check_answer(self, spec, logits, answer):
    self.assertLess(np.max(small.logprob_errors(answer, spec, logits)), 1e-4)
    self.assertLessEqual(len(answer.sampled), spec.max_tokens)
    stops = np.flatnonzero(np.isin(answer.sampled, spec.stop_tokens))
    if len(answer.sampled) < spec.max_tokens:
      self.assertEqual(stops.tolist(), [len(answer.sampled) - 1])
    else:
      self.assertIn(stops.tolist(), [[], [len(answer.sampled) - 1]])

  def test_greedy_is_the_argmax(self):
    prompt = small.prompt_of(1, 20)
    spec = SamplingParams(temperature=0.0, max_tokens=30)
    (answer,) = self.ask(self.open(), [(prompt, spec)])
    tokens = np.concatenate([prompt, answer.sampled])
    best = small.teacher_logits(10, tokens).argmax(-1)
    np.testing.assert_array_equal(answer.sampled, best[19:-1])
    np.testing.assert_array_equal(answer.behavior_logprob, np.zeros(30))

  def test_samples_depend_only_on_the_request(self):
    requests = list(mixed_requests(30))
    together = self.ask(self.open(), requests)
    shuffled = self.ask(self.open(), requests[::-1])[::-1]
    shapes = self.open(num_slot_sizes=2, prefill_chunks=(8,), steps_per_sync=2)
    one_by_one = [self.ask(shapes, [request])[0] for request in requests]
    for first, second, third in zip(
      together, shuffled, one_by_one, strict=True
    ):
      np.testing.assert_array_equal(first.sampled, second.sampled)
      np.testing.assert_array_equal(first.sampled, third.sampled)

  def test_seeds_differ_in_all_64_bits(self):
    prompt = small.prompt_of(2, 5)
    driver = self.open()
    specs = [
      SamplingParams(max_tokens=12, seed=seed) for seed in (5, 5, 6, 5 + 2**40)
    ]
    answers = self.ask(driver, [(prompt, spec) for spec in specs])
    first, again, low, high = (tuple(answer.sampled) for answer in answers)
    self.assertEqual(first, again)
    self.assertEqual(len({first, low, high}), 3)

  def test_next_turn_prefills_only_new_tokens(self):
    spec = SamplingParams(max_tokens=12, temperature=0.9, seed=3)
    driver = self.open()
    prompt, turns = small.prompt_of(3, 30), []
    for turn in range(3):
      (answer,) = self.ask(driver, [(prompt, spec)])
      turns.append((prompt, answer))
      prompt = small.conversation(prompt, answer, small.prompt_of(50 + turn, 6))
    # The last sampled token was never computed.
    num_cached = len(turns[0][0]) + 12 - 1
    self.assertEqual(turns[1][1].num_reused, num_cached)
    stats = driver.engine.stats()
    self.assertEqual(
      stats.num_prefilled[0] + stats.num_reused[0],
      sum(len(prompt) - 1 for prompt, _ in turns),
    )
    for prompt, answer in turns:
      (fresh,) = self.ask(self.open(), [(prompt, spec)])
      self.assertEqual(fresh.num_reused, 0)
      small.assert_same(answer, fresh)

  def test_episodes_of_a_group_share_their_prompt(self):
    prompt = small.prompt_of(4, 60)
    driver = self.open()
    requests = [
      (prompt, SamplingParams(max_tokens=9, seed=seed)) for seed in range(6)
    ]
    answers = self.ask(driver, requests)
    self.assertEqual(sorted(a.num_reused for a in answers), [0] + [59] * 5)
    self.assertEqual(driver.engine.stats().num_prefilled[0], 59)
    for request, answer in zip(requests, answers, strict=True):
      (alone,) = self.ask(self.open(), [request])
      np.testing.assert_array_equal(answer.sampled, alone.sampled)

  def test_more_conversations_than_slots_change_no_answer(self):
    driver, plain = self.open(), LocalDriver(small.engine_of())
    self.addCleanup(plain.close)
    prompts = [small.prompt_of(i % 4, 18 + i) for i in range(10)]
    for turn in range(5):
      requests = [
        (prompt, SamplingParams(max_tokens=4, seed=turn * 10 + i))
        for i, prompt in enumerate(prompts)
      ]
      if turn == 3:
        for each in (driver, plain):
          each.engine.versions.publish(small.params(30), 30)
      answers, expected = self.ask(driver, requests), []
      for request in requests:
        plain.engine.reset()  # it reuses nothing
        expected += self.ask(plain, [request])
      for answer, other in zip(answers, expected, strict=True):
        np.testing.assert_array_equal(answer.sampled, other.sampled)
        np.testing.assert_array_equal(answer.version, other.version)
      prompts = [
        small.conversation(prompt, answer, small.prompt_of(turn, 3))
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    if self.settings:
      self.assertGreater(driver.engine.stats().num_evicted[0], 0)

  def test_versions_share_no_keys_and_values(self):
    prompt = small.prompt_of(5, 40)
    driver = self.open()
    for policy_slot in (0, 1):
      spec = SamplingParams(policy_slot=policy_slot, max_tokens=4)
      (answer,) = self.ask(driver, [(prompt, spec)])
      self.assertEqual(answer.num_reused, 0)
    driver.engine.versions.publish(small.params(30), 30)
    (answer,) = self.ask(driver, [(prompt, SamplingParams(max_tokens=4))])
    self.assertEqual(answer.num_reused, 0)
    self.assertEqual(set(answer.version), {30})
    # Weights published under the same step again may be different.
    driver.engine.versions.publish(small.params(31), 30)
    (answer,) = self.ask(driver, [(prompt, SamplingParams(max_tokens=4))])
    self.assertEqual(answer.num_reused, 0)

  def test_a_prompt_too_long_is_refused(self):
    driver = self.open()
    with self.assertRaisesRegex(PromptTooLong, "97.*context=96"):
      driver.submit(small.prompt_of(6, 90), SamplingParams(max_tokens=7))
    self.ask(driver, [(small.prompt_of(6, 90), SamplingParams(max_tokens=6))])
    self.assert_empty(driver)

  def test_an_invalid_request_is_refused(self):
    driver = self.open()
    good = SamplingParams()
    for changes, name in (
      (dict(policy_slot=2), "policy_slot=2"),
      (dict(temperature=-1.0), "temperature"),
      (dict(temperature=float("nan")), "temperature"),
      (dict(top_p=0.0), "top_p"),
      (dict(top_p=1e-46), "top_p"),
      (dict(top_k=-1), "top_k"),
      (dict(top_k=2**31), "top_k"),
      (dict(stop_tokens=(3, 2**31)), "stop_tokens"),
      (dict(min_p=1.5), "min_p"),
      (dict(max_tokens=0), "max_tokens"),
      (dict(seed=0.5), "seed"),
    ):
      with self.assertRaisesRegex(ConfigError, name):
        driver.submit([1], dataclasses.replace(good, **changes))
    for prompt in ([], [small.VOCAB], [-1], [[1]]):
      with self.assertRaises(ConfigError):
        driver.submit(prompt, good)

  def test_requests_beyond_the_queue_are_refused(self):
    driver = self.open(driver_options=dict(max_waiting=2))
    spec = SamplingParams(max_tokens=90)
    futures = [driver.submit([1], spec) for _ in range(4 + 4 + 2)]
    with self.assertRaisesRegex(ServerFull, "max_waiting=2"):
      for _ in range(10):
        futures.append(driver.submit([1], spec))
    other = driver.submit([1], SamplingParams(policy_slot=1, max_tokens=5))
    self.settle(driver, [*futures, other])
    self.assert_empty(driver)

  def test_closing_fails_requests_without_an_answer(self):
    before = threading.active_count()
    driver = self.open()
    futures = [
      driver.submit([1], SamplingParams(max_tokens=90, seed=i))
      for i in range(60)
    ]
    driver.close()
    for future in futures:
      self.assertTrue(future.done())
      if future.exception() is not None:
        self.assertIsInstance(future.exception(), GeneratorFault)
    with self.assertRaises(GeneratorFault):
      driver.submit([1], SHORT)
    driver.close()
    self.assertEqual(threading.active_count(), before)
