"""Answers with drafts are those without, whatever the drafts are."""

import dataclasses
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.drivers.metrics import EngineMetrics
from agentrl_jax.rollout.engine import programs
from tests.rollout import small, small_grammars
from tests.rollout.drivers.contract import DriverTestCase
from tests.rollout.engine import grammar_test, shaping_test

# So cheap that each draft is computed. With more slots the program, which has
# the model once for each number of drafts, would have it more often.
DRAFTS = dict(draft_tokens=3, draft_cost=0.01, slots=(2, 2))
LOG_TOLERANCE = 1e-5
SHORT = SamplingParams(max_tokens=8)


def repetitive(rng, size):
  """A prompt whose tokens repeat, so that drafts are found."""
  period = int(rng.integers(1, 6))
  return np.tile(rng.integers(0, small.VOCAB, period), size)[:size].astype(
    np.int32
  )


def random_requests(number, seed=7):
  """Yields requests of groups: prompts alike, repetitive, or never alike."""
  rng = np.random.default_rng(seed)
  for i in range(number):
    size, group = int(rng.integers(1, 50)), int(rng.integers(0, 6))
    prompt = (
      small.prompt_of(100 + group, size),
      small.prompt_of(1000 + i, size),
      repetitive(rng, size),
    )[rng.integers(3)]
    yield (
      prompt,
      SamplingParams(
        policy_slot=int(rng.integers(2)),
        temperature=float(rng.choice([0.0, 0.2, 0.7, 1.0, 1.5])),
        top_k=int(rng.choice([0, 0, 2, 5])),
        top_p=float(rng.choice([1.0, 1.0, 0.8, 0.3])),
        min_p=float(rng.choice([0.0, 0.0, 0.1])),
        max_tokens=int(rng.choice([1, 2, 3, 4, 5, 9, 40])),
        stop_tokens=((), (3,), (3, 11, 40, 7))[rng.integers(3)],
        seed=int(rng.integers(2**63)),
        conversation=group,
      ),
    )


def looping(max_tokens=40, **changes):
  """A request whose greedy answer soon repeats itself."""
  return np.array([5] * 12, np.int32), SamplingParams(
    temperature=0.0, max_tokens=max_tokens, **changes
  )


class DraftedTest(DriverTestCase):
  def open(self, **changes):
    driver = LocalDriver(small.engine_of(**(DRAFTS | changes)))
    self.addCleanup(driver.close)
    return driver

  def ask(self, driver, requests):
    answers = self.settle(driver, [driver.submit(*r) for r in requests])
    self.assert_empty(driver)
    return answers

  def assert_same(self, answers, expected):
    for answer, other in zip(answers, expected, strict=True):
      small.assert_same(answer, other, atol=LOG_TOLERANCE)

  def assert_drafts(self, driver, *, accepted=1):
    stats = driver.engine.stats()
    self.assertGreaterEqual(sum(stats.num_accepted), accepted)
    self.assertGreaterEqual(sum(stats.num_drafted), sum(stats.num_accepted))

  @pytest.mark.slow
  def test_random_requests_are_answered_as_without_drafts(self):
    requests, driver = list(random_requests(300)), self.open()
    answers = self.ask(driver, requests)
    self.assert_same(answers, small.answers_of(requests))
    stats = driver.engine.stats()
    self.assert_drafts(driver, accepted=300)
    self.assertGreater(sum(stats.num_drafted), 2 * sum(stats.num_accepted))
    self.assertEqual(
      sum(stats.num_sampled), sum(len(a.sampled) for a in answers)
    )

  @pytest.mark.slow
  def test_garbage_in_the_sequences_changes_no_answer(self):
    requests, driver = list(random_requests(60, seed=8)), self.open()
    rng = np.random.default_rng(0)
    futures = [driver.submit(*request) for request in requests]
    while driver.step():
      for scheduler in driver.engine._schedulers:
        drafts = scheduler._decoder._drafts
        index = drafts.arrays.index_OH
        drafts.arrays = drafts.arrays.replace(
          # Tokens that do not exist, too: their embedding would be NaN.
          token_BL=jnp.asarray(
            rng.integers(-5, 2 * small.VOCAB, (2, small.CONTEXT)), jnp.int32
          ),
          length_B=jnp.asarray(rng.integers(0, 99, 2), jnp.int32),
          group_B=jnp.full(2, 3, jnp.int32),
          index_OH=jnp.asarray(
            rng.integers(-9, 4 * small.CONTEXT, index.shape), jnp.int32
          ),
          rate_M=jnp.full(9, 0.9),
        )
    self.assert_same(
      [future.result(0) for future in futures], small.answers_of(requests)
    )

  def test_fewer_steps_are_needed(self):
    (plain,), driver = small.answers_of([looping()]), self.open()
    metrics = EngineMetrics(driver)
    (answer,) = self.ask(driver, [looping()])
    self.assert_same([answer], [plain])
    self.assert_drafts(driver, accepted=15)
    self.assertLess(driver.engine.stats().num_steps, 10)
    report = metrics.report()
    drafted, accepted, share, per_step = (
      report[f"engine/{name}/policy_slot0"]
      for name in (
        "drafted_tokens",
        "accepted_tokens",
        "accepted_share",
        "tokens_per_slot_step",
      )
    )
    self.assertEqual(share, accepted / drafted)
    self.assertEqual(per_step, 40 / (40 - accepted))
    self.assertNotIn("engine/accepted_share/policy_slot1", report)

  def test_attempts_draft_from_each_other(self):
    accepted = {}
    for group in (0, 7):
      driver = self.open()
      spec = SamplingParams(seed=1, max_tokens=40, conversation=group)
      prompt = small.prompt_of(4, 20)
      first, second = (self.ask(driver, [(prompt, spec)])[0] for _ in range(2))
      self.assert_same([second], [first])
      accepted[group] = sum(driver.engine.stats().num_accepted)
    # All but the first tokens of the second answer, by 3 of 4.
    self.assertGreaterEqual(accepted[7], accepted[0] + 25)

  def test_an_answer_ends_at_its_budget_within_a_draft(self):
    for size in (1, 2, 15, 16, 17, 18, 84):
      driver = self.open()
      (answer,) = self.ask(driver, [looping(size)])
      self.assertLen(answer.sampled, size)
      self.assert_same([answer], small.answers_of([looping(size)]))

  def test_an_answer_ends_at_a_stop_token_within_a_draft(self):
    prompt, spec = small.prompt_of(4, 20), SamplingParams(max_tokens=30)
    spec = dataclasses.replace(spec, seed=5, conversation=7)
    driver = self.open()
    (free,) = self.ask(driver, [(prompt, spec)])
    for number in range(2, 14):
      stop = int(free.sampled[number])
      stopped = dataclasses.replace(spec, stop_tokens=(stop,))
      before = driver.engine.stats()
      (answer,) = self.ask(driver, [(prompt, stopped)])
      size = free.sampled.tolist().index(stop) + 1
      self.assertEqual(answer.sampled.tolist(), free.sampled[:size].tolist())
      after = driver.engine.stats()
      self.assertEqual(after.num_sampled[0] - before.num_sampled[0], size)
    self.assert_drafts(driver, accepted=30)

  @pytest.mark.slow
  def test_page_tables_grow_with_drafts(self):
    driver = self.open(lengths=(16, 32, 48))
    requests = [looping(80), looping(30), (small.prompt_of(1, 20), SHORT)]
    answers = self.ask(driver, requests)
    self.assert_same(answers, small.answers_of(requests))

  @pytest.mark.slow
  def test_a_swap_stamps_both_versions(self):
    driver, (prompt, spec) = self.open(), looping(60)
    future = driver.submit(prompt, spec)
    driver.step()
    driver.step()
    driver.engine.versions.publish(small.params(30), 30)
    (answer,) = self.settle(driver, [future])
    self.assertEqual(set(answer.version), {10, 30})
    self.assertTrue((np.diff(answer.version) >= 0).all())
    # Each token of the old version is its likeliest one there.
    logits = small.teacher_logits(10, np.concatenate([prompt, answer.sampled]))
    old = answer.sampled[answer.version == 10]
    best = logits.argmax(-1)[len(prompt) - 1 :][: len(old)]
    np.testing.assert_array_equal(old, best)

  def test_a_cancelled_slot_decodes_no_further(self):
    driver = self.open()
    doomed = [driver.submit(*looping(80)) for _ in range(4)]
    driver.step()
    for future in doomed:
      future.cancel()
    requests = list(random_requests(12, seed=9))
    answers = self.ask(driver, requests)
    self.assert_same(answers, small.answers_of(requests))

  def test_chunks_join_to_the_answer(self):
    driver, chunks = self.open(), []
    future = driver.submit(*looping(50), chunks.append)
    (answer,) = self.settle(driver, [future])
    self.assert_same([Completion.joined(chunks)], [answer])
    self.assertGreater(max(len(chunk.sampled) for chunk in chunks), 3)

  @pytest.mark.slow
  def test_next_turns_reuse_drafted_tokens(self):
    driver, plain = self.open(), LocalDriver(small.engine_of())
    prompts = [looping()[0], small.prompt_of(3, 10), np.array([7] * 9)]
    for turn in range(4):
      requests = [
        (prompt, SamplingParams(temperature=0.1, max_tokens=13, seed=turn))
        for prompt in prompts
      ]
      answers = self.ask(driver, requests)
      plain.engine.reset()  # it reuses nothing
      self.assert_same(answers, self.ask(plain, requests))
      prompts = [
        small.conversation(prompt, answer, [1 + turn])
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    self.assertGreater(driver.engine.stats().num_reused[0], 0)
    self.assert_drafts(driver)

  @pytest.mark.slow
  def test_slots_with_a_grammar_are_not_drafted(self):
    grammars = small_grammars.grammars()
    driver = self.open(grammars=grammars)
    requests = [
      (prompt, dataclasses.replace(spec, conversation=1))
      for prompt, spec, _ in grammar_test.mixed_requests(25)
    ]
    answers = self.ask(driver, requests)
    expected = small.answers_of(requests, grammars=grammars)
    self.assert_same(answers, expected)
    alone = self.open(grammars=grammars)
    self.ask(alone, [r for r in requests if r[1].grammar])
    self.assertEqual(alone.engine.stats().num_drafted, (0, 0))

  @pytest.mark.slow
  def test_shaped_slots_are_not_drafted(self):
    driver = self.open()
    prompt = looping()[0]
    requests = [(prompt, spec) for spec in shaping_test.SPECS.values()]
    answers = self.ask(driver, [*requests, looping(70)])
    self.assert_same(answers, small.answers_of([*requests, looping(70)]))
    self.assert_drafts(driver)  # of the last answer, after the others

  def test_a_reset_engine_repeats_its_drafts(self):
    driver, requests = self.open(), list(random_requests(10, seed=4))
    drafted = []
    for _ in range(2):
      before = driver.engine.stats()
      self.ask(driver, requests)
      driver.engine.reset()
      after = driver.engine.stats()
      drafted.append(np.subtract(after.num_drafted, before.num_drafted))
    np.testing.assert_array_equal(*drafted)

  def test_a_draft_ends_with_the_cache(self):
    """Lets a slot draft in a cache with room for two tokens more."""
    driver = self.open()
    engine, (scheduler, _) = driver.engine, driver.engine._schedulers
    prompt, decoder = [5, 6] * (small.CONTEXT // 2 - 1), scheduler._decoder
    greedy = SamplingParams(temperature=0.0, max_tokens=2)
    decoder.start(0, engine.check(prompt, greedy))
    decoder._patch[0, programs.STATE.index("budget")] = 50
    slot_P = np.arange(2, dtype=np.int32)
    page_PW = np.arange(12, dtype=np.int32).reshape(2, 6)
    with mock.patch.object(scheduler._cache, "table_of", lambda _: page_PW):
      record, drafted = decoder._run(
        engine.versions.get(0),
        slot_P,
        None,
        None,
        plan=engine.config.draft_plan(2),
        num_steps=engine.config.steps_per_sync,
      )
    # Of the first step; a request would never be given the others.
    self.assertEqual(np.asarray(drafted)[0].tolist(), [2, 0])
    is_sampled = np.asarray(record)[: 1 + DRAFTS["draft_tokens"], 0]
    self.assertLessEqual(is_sampled[:, programs.ACTIVE].sum(), 3)
