"""Publications of weights, and running answers at a swap."""

import tempfile
import threading
import unittest
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import CheckpointError, ConfigError, GeneratorFault
from agentrl_jax.model import quantization, sharding
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.snapshots import SnapshotSink
from tests.rollout import small


def params(value=1.0, **more):
  return {"layer": {"kernel": jnp.full((2, 3), value)}} | more


class ServedWeightsTest(unittest.TestCase):
  def setUp(self):
    self.store = ServedWeights(2)
    self.store.publish(params(), 7)

  def versions(self):
    return [served and served.version for served in self.store.served()]

  def test_serves_what_was_published_last(self):
    first = self.store.get(0)
    self.store.publish(params(2.0), 8)
    second = self.store.get(0)
    self.assertEqual((first.version, second.version), (7, 8))
    self.assertEqual(float(second.params["layer"]["kernel"][0, 0]), 2.0)
    self.assertEqual(self.versions(), [8, None])

  def test_publications_are_unique(self):
    publications = {self.store.get(0).publication}
    for policy_slot, step in ((0, 7), (1, 7), (0, 7)):
      self.store.publish(params(), step, policy_slot=policy_slot)
      publications.add(self.store.get(policy_slot).publication)
    self.assertEqual(len(publications), 4)

  def test_a_policy_slot_without_weights_is_reported(self):
    with self.assertRaisesRegex(GeneratorFault, r"policy_slot=1\) first"):
      self.store.get(1)

  def test_other_shapes_are_refused_by_name_and_change_nothing(self):
    before = self.store.get(0)
    other = {"layer": {"kernel": jnp.zeros((2, 4))}}
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params())
    for policy_slot, wrong, said in (
      (0, other, r"layer.*kernel.*float32\[2, 4\].*\[2, 3\]"),
      (1, narrow, r"layer.*kernel.*bfloat16.*float32"),
      (0, params(extra=jnp.zeros(1)), "extra.*not part"),
      (0, {"layer": {}}, "kernel.*is missing"),
    ):
      with self.assertRaisesRegex(CheckpointError, said):
        self.store.publish(wrong, 8, policy_slot=policy_slot)
    self.assertIs(self.store.get(0), before)
    self.assertEqual(self.versions(), [7, None])

  def test_unknown_policy_slots_are_refused(self):
    for policy_slot in (-1, 2):
      with self.assertRaisesRegex(ConfigError, "policy slots are 0 to 1"):
        self.store.get(policy_slot)
      with self.assertRaisesRegex(ConfigError, "policy slots are 0 to 1"):
        self.store.publish(params(), 8, policy_slot=policy_slot)
    with self.assertRaises(ConfigError):
      ServedWeights(0)

  def test_step_and_params_are_read_together(self):
    stop = threading.Event()

    def publish():
      step = 0
      while not stop.is_set():
        step += 1
        self.store.publish(params(float(step)), step)

    self.store.publish(params(0.0), 0)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
      for _ in range(20):
        served = self.store.get(0)
        self.assertEqual(served.params["layer"]["kernel"][0, 0], served.version)
    finally:
      stop.set()
      thread.join(60)


PROMPT = small.prompt_of(8, 30)


def spec(seed, max_tokens=24):
  return SamplingParams(seed=seed, max_tokens=max_tokens)


def driver_of(**changes):
  return LocalDriver(small.engine_of((10,), slots=(4,), **changes))


def publish(driver, step):
  driver.engine.versions.publish(small.params(step), step)


def publish_copy(driver, step) -> weakref.ref:
  """Publishes weights that only the engine holds; refers to one array."""
  params = jax.tree.map(lambda x: x.copy(), small.params(step))
  driver.engine.versions.publish(params, step)
  held = driver.engine.versions.get(0).params  # placed, so others than those
  return weakref.ref(jax.tree.leaves(held)[0])


def finish(driver, futures):
  driver.run_until_idle()
  driver.engine.check_invariants()
  return [future.result(0) for future in futures]


def num_compiled() -> int:
  return programs.decode._cache_size() + programs.prefill._cache_size()


class ProgramsTest(unittest.TestCase):
  def test_programs_are_compiled_once_for_params_of_any_small_mesh(self):
    mesh = sharding.make_mesh({}, jax.devices()[:1])
    replicated = sharding.replicated(mesh)
    plain, driver = small.params(10), driver_of(context=80)
    before = num_compiled()
    for version, params in enumerate(
      (plain, jax.device_put(plain, replicated), plain)
    ):
      driver.engine.versions.publish(params, version)
      for seed in (1, 2):
        driver.engine.reset()
        finish(driver, [driver.submit(PROMPT, spec(seed))])
      self.assertEqual(num_compiled(), before + 2, version)


class SwapTest(parameterized.TestCase):
  def test_an_idle_engine_keeps_no_weights(self):
    driver = driver_of()
    leaf = publish_copy(driver, 20)
    finish(driver, [driver.submit(PROMPT, spec(1, 3))])
    doomed = driver.submit(PROMPT, spec(1, 9))
    driver.step()
    doomed.cancel()
    driver.run_until_idle()
    publish(driver, 30)
    self.assertIsNone(leaf())

  @parameterized.parameters(*small.KINDS)
  @pytest.mark.slow
  def test_random_swaps_and_cancels_mix_nothing(self, kind):
    self.enterContext(small.kind_of(kind))
    rng = np.random.default_rng(5)
    driver = driver_of(page_size=8, cache_tokens=(160,))
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
    driver.engine.check_invariants()
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


class QuantizedTest(parameterized.TestCase):
  @parameterized.parameters(("int8", {}), ("fp8", {"draft_tokens": 2}))
  @pytest.mark.slow
  def test_log_probabilities_are_those_of_the_stored_numbers(self, kind, more):
    store, params = ServedWeights(1), small.params(10)
    config = small.engine_of((10,), weights=kind, **more).config
    Publisher(small.policy(), store, weights=kind).publish(params, 10)
    driver = LocalDriver(RolloutEngine(small.policy(), config, store))
    (answer,) = finish(driver, [driver.submit(PROMPT, spec(seed=1))])
    rounded = jax.tree.map(
      lambda x: quantization.dequantized(x, jnp.float32),
      quantization.quantize(params, kind),
      is_leaf=lambda x: isinstance(x, quantization.Quantized),
    )
    row = np.concatenate([PROMPT, answer.sampled])[None]
    position = np.arange(row.shape[1])[None]
    errors = []
    for learner in (rounded, params):
      logits = small.policy().logits(learner, row, position, position * 0 + 1)
      logits = np.asarray(logits[0, len(PROMPT) - 1 : -1], np.float64)
      errors.append(small.logprob_errors(answer, spec(seed=1), logits).max())
    self.assertLess(errors[0], 2e-5)
    self.assertGreater(errors[1], 1e-3)

  def test_a_server_quantises_full_snapshots(self):
    policy, store = small.policy(), ServedWeights(1)
    with tempfile.TemporaryDirectory() as folder:
      sink = SnapshotSink(folder, max_lag=0, deadline_s=60)
      Publisher(policy, sink, layers_apart=False).publish(small.params(10), 10)
      sink.close()
      follower = SnapshotFollower(folder, policy, store, weights="int8")
      self.assertTrue(follower.look(), follower.trouble)
    wanted = policy.to_decode(quantization.quantize(small.params(10), "int8"))
    jax.tree.map(np.testing.assert_array_equal, store.get(0).params, wanted)
