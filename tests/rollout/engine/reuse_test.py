"""Reused keys and values, wherever they were cached, change no answer."""

import dataclasses

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine.engine import RolloutEngine, ServedWeights
from tests import eight_devices
from tests.rollout import small
from tests.settings import compute_config

PREFIX_CACHE = dict(block_size=8, prefix_cache_tokens=768)
TINY = dict(block_size=8, prefix_cache_tokens=64)  # less than two conversations
TIERS = TINY | dict(prefix_cache_host_tokens=768)
WIDE = dict(block_size=8, prefix_cache_tokens=1600)
# A conversation that leaves a slot and one that comes, and little more.
TIGHT = dict(
  block_size=8, prefix_cache_tokens=176, prefix_cache_host_tokens=1600
)


def driver_of(*, slots=2, **changes):
  return LocalDriver(small.engine_of((10,), slots=(slots,), **changes))


def ask(driver, *requests):
  futures = [driver.submit(prompt, spec) for prompt, spec in requests]
  driver.run_until_idle()
  driver.engine.check_invariants()
  return [future.result(0) for future in futures]


def play(driver, *, seed, swap_at=()):
  """Plays conversations of different lengths, of which some are alike."""
  rng, answers = np.random.default_rng(seed), []
  prompts = [small.prompt_of(i % 3, 20 + 3 * (i % 3)) for i in range(7)]
  for round_ in range(12):
    if round_ in swap_at:
      driver.engine.versions.publish(small.params(round_), round_)
    chosen = rng.choice(len(prompts), rng.integers(1, 5), replace=False)
    requests = [
      (prompts[i], spec_of(round_ * 100 + int(i), int(rng.integers(1, 9))))
      for i in chosen
    ]
    answered = ask(driver, *requests)
    for i, answer in zip(chosen, answered, strict=True):
      observed = small.prompt_of(round_, int(rng.integers(1, 7)))
      longer = small.conversation(prompts[i], answer, observed)
      prompts[i] = longer if len(longer) < 80 else prompts[i][:20]
    answers += answered
  return answers


def spec_of(seed, max_tokens):
  temperature = (0.0, 1.0)[seed % 2]
  return SamplingParams(
    seed=seed, max_tokens=max_tokens, temperature=temperature
  )


class ReuseTest(parameterized.TestCase):
  def assert_same(self, answers, expected):
    for answer, other in zip(answers, expected, strict=True):
      small.assert_same(answer, other)

  @parameterized.named_parameters(
    ("in_slots", {}),
    ("in_the_prefix_cache", PREFIX_CACHE),
    ("in_a_tiny_prefix_cache", TINY),
    ("on_the_host", TIERS),
  )
  def test_random_conversations_are_answered_as_without_reuse(self, kept):
    plain, driver = driver_of(reuse=False), driver_of(**kept)
    self.assert_same(
      play(driver, seed=1, swap_at=(5, 8)), play(plain, seed=1, swap_at=(5, 8))
    )
    fed = driver.engine.stats().num_prefilled[0]
    self.assertLess(fed, 0.8 * plain.engine.stats().num_prefilled[0])
    self.assertEqual(plain.engine.stats().num_reused, (0,))

  @pytest.mark.slow
  def test_blocks_on_the_host_are_not_prefilled_again(self):
    drivers = [
      driver_of(slots=3, **kept) for kept in (TIGHT, WIDE, dict(reuse=False))
    ]
    tight, wide, plain = (play(driver, seed=2) for driver in drivers)
    self.assert_same(tight, plain)
    self.assert_same(wide, plain)
    fed = [driver.engine.stats().num_prefilled[0] for driver in drivers]
    self.assertEqual(fed[0], fed[1])

  @pytest.mark.slow
  def test_a_block_is_needed_in_the_step_that_offloads_it(self):
    driver = driver_of(
      block_size=8, prefix_cache_tokens=112, prefix_cache_host_tokens=800
    )
    x, y, z, v = ((small.prompt_of(n, 36), spec_of(n, 5)) for n in range(4))
    w = (small.prompt_of(4, 12), spec_of(4, 5))
    (first, _) = ask(driver, x, y)
    ask(driver, z, w)  # of 14 blocks, x and y take 10
    next_prompt = small.conversation(x[0], first, [1, 2]), spec_of(5, 9)
    # To make room for v, z is saved and the end of x is offloaded.
    _, answer = ask(driver, v, next_prompt)
    self.assertEqual(answer.num_reused, 40)
    self.assert_same([answer], ask(driver_of(reuse=False), next_prompt))

  @pytest.mark.slow
  def test_a_shrunk_cache_grows_for_restored_blocks(self):
    driver = driver_of(lengths=(64,), **PREFIX_CACHE)
    prompt = small.prompt_of(1, 72)
    (first,) = ask(driver, (prompt, spec_of(1, 9)))
    for n in range(14):  # of 17 steps each
      ask(driver, (small.prompt_of(2 + n % 2, 10), spec_of(n % 2, 51)))
    (scheduler,) = driver.engine._schedulers
    self.assertEqual(scheduler.cache_length, 64)
    next_prompt = small.conversation(prompt, first, [1, 2, 3])
    (answer,) = ask(driver, (next_prompt, spec_of(3, 9)))
    self.assertEqual(answer.num_reused, 80)
    (fresh,) = ask(driver_of(), (next_prompt, spec_of(3, 9)))
    self.assert_same([answer], [fresh])

  def test_bits_do_not_depend_on_the_tier(self):
    prompt, others = small.prompt_of(1, 45), [2, 3, 4, 5]
    answers = {}
    for name, kept, between in (
      ("slot", {}, 0),
      ("prefix cache", PREFIX_CACHE, 4),
      ("host", TIERS, 4),
    ):
      driver = driver_of(**kept)
      (first,) = ask(driver, (prompt, spec_of(1, 9)))
      for other in others[:between]:
        ask(driver, (small.prompt_of(other, 50), spec_of(other, 9)))
      next_prompt = small.conversation(prompt, first, [1, 2, 3])
      (answers[name],) = ask(driver, (next_prompt, spec_of(3, 9)))
      stats = driver.engine.stats()
      self.assertEqual(stats.num_reused[0], 53)
      self.assertEqual(stats.num_restored[0], 53 if between else 0)
    for name in ("prefix cache", "host"):
      small.assert_same(answers[name], answers["slot"], atol=0)

  def test_the_prompt_of_a_group_is_stored_once(self):
    driver, prompt = driver_of(**PREFIX_CACHE), small.prompt_of(1, 48)
    ask(driver, *[(prompt, spec_of(seed, 8)) for seed in (1, 3)])
    others = [(small.prompt_of(n, 40), spec_of(n, 2)) for n in (2, 3)]
    ask(driver, *others)
    # 55 tokens in each of two slots, of which 6 blocks of 8 are the prompt.
    self.assertEqual(driver.engine.stats().num_stored[0], 55 + 7)

  def test_slots_that_are_not_reassigned_are_not_stored(self):
    driver = driver_of(**PREFIX_CACHE)
    prompts = [small.prompt_of(n, 20) for n in (1, 2)]
    for turn in range(3):
      requests = [(prompt, spec_of(turn, 5)) for prompt in prompts]
      answers = ask(driver, *requests)
      prompts = [
        small.conversation(prompt, answer, [1, 2])
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    self.assertEqual(driver.engine.stats().num_stored, (0,))

  @parameterized.named_parameters(
    (
      "publication",
      lambda engine: engine.versions.publish(small.params(11), 11),
    ),
    ("reset", lambda engine: engine.reset()),
  )
  def test_the_prefix_cache_is_emptied_by_a(self, empty):
    driver, prompt = driver_of(**PREFIX_CACHE), small.prompt_of(1, 40)
    ask(driver, *[(small.prompt_of(n, 40), spec_of(n, 2)) for n in (1, 2, 3)])
    empty(driver.engine)
    (answer,) = ask(driver, (prompt, spec_of(1, 2)))
    self.assertEqual(answer.num_reused, 0)

  def test_blocks_of_a_failed_copy_are_prefilled_again(self):
    """Deletes arrays, so that the programs fail that copy them."""
    driver, plain = driver_of(**TIERS), driver_of(reuse=False)
    requests = [(small.prompt_of(n, 45), spec_of(n, 9)) for n in (1, 2, 3)]
    for round_ in range(3):
      if round_ == 1:
        pool = driver.engine._schedulers[0]._cache._pool
        for array in jax.tree.leaves(pool._pool):
          array.delete()
        with self.assertLogs("agentrl_jax.rollout", "ERROR") as logs:
          answered = ask(driver, *requests)
        self.assertIn("the prefix cache could not copy", logs.output[0])
      else:
        answered = ask(driver, *requests)
      self.assert_same(answered, ask(plain, *requests))
    self.assertEqual(driver.engine.stats().num_store_failures, (1,))
    self.assertGreater(driver.engine.stats().num_restored[0], 0)


HEADS = small.policy().config.num_kv_heads
HOST_BLOCKS = 30


@pytest.mark.full
class ShardedCacheTest(absltest.TestCase):
  @pytest.mark.timeout(300)
  def test_answers_and_reuse_are_those_of_one_device(self):
    one, two = eight_devices.run("tests.rollout.engine.sharded_cache_program")
    for key in ("sampled", "reused", "counts", "moved"):
      self.assertEqual(two[key], one[key], key)
    self.assertEqual(one["shards"], [[HEADS, 1]])
    self.assertEqual(two["shards"], [[HEADS // 2, 2]])
    self.assertEqual(two["failures"], 0)
    moved = two["moved"]
    self.assertGreater(moved["uploads"], 0)
    # More blocks were offloaded than the host has room for: some are evicted.
    self.assertGreater(moved["offloads"] - moved["uploads"], HOST_BLOCKS)


class WindowsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("rows", {}),
    ("kernel", {"context": 128}),
    ("pages", {"page_size": 8, "cache_tokens": (192,)}),
    ("drafts", {"draft_tokens": 3, "draft_cost": 0.01}),
    ("prefix_cache", PREFIX_CACHE),
  )
  @pytest.mark.slow
  def test_layers_see_a_window_and_sinks(self, changes):
    """Conversations grow past the window, and their prompts are reused."""
    compute = compute_config(
      cache_attention="ragged" if "context" in changes else "auto"
    )
    model = dataclasses.replace(
      small.policy().config,
      num_layers=3,
      window=7,
      window_period=2,
      local_rope_theta=50.0,
      sinks=True,
    )
    policy, store = Policy(model, compute), ServedWeights(1)
    params = small.attentive(policy.init(jax.random.key(0)))
    params["layers"]["attention"]["sinks"] += 1.0
    store.publish(params, 0)
    config = small.engine_of((10,), slots=(2,), **changes).config
    driver = LocalDriver(RolloutEngine(policy, config, store))
    prompt: list[int] = []
    for turn in range(4):
      prompt += small.prompt_of(turn, 9).tolist()
      (answer, other) = ask(
        driver, (prompt, spec_of(turn, 8)), (prompt[:-2], spec_of(turn, 5))
      )
      for said, asked in ((answer, prompt), (other, prompt[:-2])):
        row = np.concatenate([asked, said.sampled])[None]
        position = np.arange(row.shape[1])[None]
        logits = policy.logits(params, row, position, position * 0 + 1)
        logits = np.asarray(logits[0, len(asked) - 1 : -1], np.float64)
        errors = small.logprob_errors(said, spec_of(turn, 8), logits)
        self.assertLess(errors.max(), 1e-4)
      prompt += answer.sampled.tolist()
