"""Answers do not depend on how many pages there are, and who gives them up."""

import dataclasses

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.errors import PromptTooLong
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from tests import eight_devices
from tests.rollout import small, small_grammars
from tests.rollout.drivers.contract import DRIVERS, DriverTestCase, driver_on

# Of eight tokens each, and fewer than the answers want.
ONE_SLOT = dict(steps=(10,), slots=(6,))
TIGHT = ONE_SLOT | dict(page_size=8, cache_tokens=(120,))
ROUND = 100  # requests; those of a later one may go on with earlier answers


def random_spec(rng, seed) -> SamplingParams:
  """Settings of a request; some have a grammar, some penalties and biases."""
  spec = SamplingParams(
    seed=seed,
    temperature=float(rng.choice([0.0, 0.7, 1.0, 1.5])),
    top_k=int(rng.choice([0, 0, 5])),
    top_p=float(rng.choice([1.0, 1.0, 0.8])),
    max_tokens=int(rng.choice([1, 2, 7, 20, 40])),
    stop_tokens=(small_grammars.STOP,),
  )
  kind = rng.random()
  if kind < 0.2:
    name = rng.choice(list(small_grammars.GRAMMARS))
    return dataclasses.replace(spec, grammar=small_grammars.GRAMMARS[name])
  if kind < 0.3:
    return dataclasses.replace(
      spec,
      frequency_penalty=1.5,
      presence_penalty=0.5,
      logit_bias=((3, 2.0), (7, -5.0)),
      num_top=2,
    )
  return spec


def random_prompt(rng, i, earlier) -> np.ndarray:
  """A prompt of a group, one of its own, or an earlier one's next turn."""
  if earlier and rng.random() < 0.4:
    (prompt, _), answer = earlier[-int(rng.integers(1, min(len(earlier), 150)))]
    longer = small.conversation(
      prompt, answer, small.prompt_of(i, int(rng.integers(1, 6)))
    )
    if len(longer) < 50:
      return longer
  own = small.prompt_of(1000 + i, int(rng.integers(1, 12)))
  group = small.prompt_of(100 + int(rng.integers(4)), int(rng.integers(40)))
  return np.concatenate([group, own]).astype(np.int32)


def grammars():
  return dict(grammars=small_grammars.grammars())


def answered_plainly(number, seed=3):
  """Returns requests with their answers from pages for all slots."""
  rng, pairs = np.random.default_rng(seed), []
  driver = LocalDriver(small.engine_of(**ONE_SLOT, **grammars()))
  for start in range(0, number, ROUND):
    requests = [
      (random_prompt(rng, i, pairs[:start]), random_spec(rng, i))
      for i in range(start, min(start + ROUND, number))
    ]
    futures = [driver.submit(*request) for request in requests]
    driver.run_until_idle()
    answers = [future.result(0) for future in futures]
    pairs += zip(requests, answers, strict=True)
  driver.close()
  return pairs


def play(driver, pairs, *, seed=4, is_hostile=True):
  """Sends requests as time goes on, cancels some, and swaps equal weights."""
  rng, futures, step = np.random.default_rng(seed), [], 10
  for (prompt, spec), _ in pairs:
    futures.append(driver.submit(prompt, spec))
    for _ in range(int(rng.choice([0, 0, 1, 3]))):
      driver.step()
    while driver.engine.stats().num_pending[0] + driver.num_waiting[0] > 100:
      driver.step()
    if is_hostile and rng.random() < 0.05:
      # One that runs or waits: the first of them are in slots.
      unfinished = [future for future in futures[-200:] if not future.done()]
      first = int(rng.choice([8, len(unfinished)]))
      for future in unfinished[int(rng.integers(max(first, 1))) :][:1]:
        future.cancel()
    if is_hostile and rng.random() < 0.02:
      step += 1
      driver.engine.versions.publish(small.params(10), step)
    if rng.random() < 0.05:
      driver.engine.check_invariants()
  driver.run_until_idle()
  driver.engine.check_invariants()
  return futures


def assert_equal(answer: Completion, expected: Completion) -> None:
  """Asserts equal tokens, and equal log-probabilities but for rounding."""
  small.assert_same(answer, expected, atol=1e-4, exact=("sampled",))
  if expected.top_token is not None:
    np.testing.assert_allclose(
      answer.top_logprob, expected.top_logprob, atol=1e-4
    )


class PagedTest(DriverTestCase):
  def open(self, kind="local", **changes):
    engine = small.engine_of(**(TIGHT | changes), **grammars())
    driver = driver_on(kind, engine)
    self.addCleanup(driver.close)
    return driver

  def check_hostile(self, number, **changes):
    pairs, driver = answered_plainly(number), self.open(**changes)
    futures, num_cancelled = play(driver, pairs), 0
    for future, (_, expected) in zip(futures, pairs, strict=True):
      if future.cancelled():
        num_cancelled += 1
      else:
        assert_equal(future.result(0), expected)
    stats = driver.engine.stats()
    self.assertGreater(sum(stats.num_preempted), number / 20)
    self.assertGreater(num_cancelled, number / 100)
    self.assertLess(num_cancelled, number / 10)
    self.assertGreater(stats.num_cancelled, number / 200)  # in the engine
    self.assertGreater(sum(stats.num_reused), number)
    self.assertGreater(sum(stats.num_constrained), number / 10)
    self.assertGreater(sum(stats.num_copied), number / 10)
    self.assertTrue(driver.engine.is_idle)
    return stats

  @pytest.mark.slow
  def test_random_traffic_in_a_tight_pool(self):
    self.check_hostile(300)

  @pytest.mark.full
  @pytest.mark.timeout(3600)
  def test_ten_thousand_requests_lose_nothing(self):
    self.check_hostile(10_000)

  @pytest.mark.slow
  @pytest.mark.timeout(600)
  def test_with_drafts(self):
    stats = self.check_hostile(100, draft_tokens=3, draft_cost=0.01)
    self.assertGreater(sum(stats.num_accepted), 10)

  @pytest.mark.slow
  def test_tables_of_several_lengths(self):
    pairs = answered_plainly(60)
    driver = self.open(lengths=(32, 64), num_slot_sizes=2)
    (scheduler,) = driver.engine._schedulers
    table_of, lengths = scheduler._cache.table_of, set()

    def recorded(slot_P):
      table = table_of(slot_P)
      lengths.add(table.shape[1])
      return table

    scheduler._cache.table_of = recorded
    futures = play(driver, pairs, is_hostile=False)
    for future, (_, expected) in zip(futures, pairs, strict=True):
      assert_equal(future.result(0), expected)
    self.assertEqual(lengths, {4, 8, 12})

  @parameterized.parameters(*DRIVERS)
  @pytest.mark.slow
  def test_under_each_driver(self, kind):
    pairs, driver = answered_plainly(60), self.open(kind)
    futures = [driver.submit(*request) for request, _ in pairs]
    answers = self.settle(driver, futures)
    for answer, (_, expected) in zip(answers, pairs, strict=True):
      assert_equal(answer, expected)
    self.assertGreater(sum(driver.engine.stats().num_preempted), 0)


@pytest.mark.full
class ShardedPagesTest(absltest.TestCase):
  @pytest.mark.timeout(600)
  def test_answers_and_reuse_are_those_of_one_device(self):
    one, two = eight_devices.run("tests.rollout.engine.paged_program")
    heads = small.policy().config.num_kv_heads
    for key in ("sampled", "counts"):
      self.assertEqual(two[key], one[key], key)
    self.assertEqual(one["shards"], [[heads, 1]])
    self.assertEqual(two["shards"], [[heads // 2, 2]])
    self.assertGreater(min(two["counts"]), 0)


LONG = dict(max_tokens=40, temperature=1.0)


def spec(seed, **changes):
  return SamplingParams(seed=seed, **(LONG | changes))


SPECS = (spec(1), spec(2))


class PreemptionTest(DriverTestCase):
  """Two answers that want 70 tokens each, in a pool of 120."""

  prompts = (small.prompt_of(1, 30), small.prompt_of(2, 30))

  def open(self, **changes):
    driver = LocalDriver(small.engine_of(**TIGHT | changes))
    self.addCleanup(driver.close)
    return driver

  def preempt(self, driver, specs=SPECS, listener=None):
    """Submits two requests; returns them once the second is preempted."""
    futures = [
      driver.submit(self.prompts[0], specs[0]),
      driver.submit(self.prompts[1], specs[1], listener),
    ]
    while not sum(driver.engine.stats().num_preempted):
      self.assertTrue(driver.step())
    driver.engine.check_invariants()
    stats = driver.engine.stats()
    self.assertEqual((stats.num_active, stats.num_pending), ((1,), (1,)))
    return futures

  def finish(self, driver, futures):
    answers = self.settle(driver, futures)
    driver.engine.check_invariants()
    return answers

  def teacher_logprobs(self, prompt, answer, step):
    sequence = np.concatenate([prompt, answer.sampled])
    logits = small.teacher_logits(step, sequence)[len(prompt) - 1 : -1]
    rows = np.arange(len(answer.sampled))
    return small.log_softmax(logits)[rows, answer.sampled]

  def test_an_answer_goes_on_with_the_same_tokens(self):
    driver = self.open()
    answers = self.finish(driver, self.preempt(driver))
    requests = list(zip(self.prompts, SPECS, strict=True))
    plain = small.answers_of(requests)
    for answer, expected in zip(answers, plain, strict=True):
      assert_equal(answer, expected)
    # Sampled tokens that are prefilled again are not reused prompt tokens.
    self.assertEqual([a.num_reused for a in answers], [0, 0])
    self.assertEqual(driver.engine.stats().num_scheduled, (2,))

  def test_penalties_and_alternatives_are_kept(self):
    shaped = dict(frequency_penalty=2.0, presence_penalty=1.0, num_top=2)
    driver, specs = self.open(), (spec(1), spec(2, **shaped))
    _, answer = self.finish(driver, self.preempt(driver, specs))
    requests = list(zip(self.prompts, specs, strict=True))
    assert_equal(answer, small.answers_of(requests)[1])
    self.assertTrue((answer.top_logprob[:, 0] < 0).all())

  def test_streamed_chunks_join_to_the_answer(self):
    driver, chunks = self.open(), []
    futures = self.preempt(driver, listener=chunks.append)
    _, answer = self.finish(driver, futures)
    small.assert_joined(chunks, answer)

  def test_tokens_of_a_call_before_it_are_dropped(self):
    """They are sampled again, whether or not the slot is the same."""
    driver = self.open()
    (scheduler,) = driver.engine._schedulers
    served = driver.engine.versions.get(0)
    scheduler.admit(driver.engine.check(self.prompts[0], spec(1)))
    (before,) = scheduler.step(served)
    scheduler._requeue(0)
    (after,) = scheduler.step(served)
    table = scheduler._table
    launched = int(table.num_launched[0])
    self.assertEqual(scheduler.read(before.to_host()), [])
    self.assertEqual(scheduler.counts["sampled"], 0)
    self.assertEqual(table.num_launched[0], launched)
    scheduler.read(after.to_host())
    self.assertEqual(scheduler.counts["sampled"], 3)
    scheduler.check()

  def test_a_preempted_request_can_be_cancelled(self):
    driver = self.open()
    first, second = self.preempt(driver)
    second.cancel()
    (answer,) = self.finish(driver, [first])
    self.assertEqual(len(answer.sampled), 40)
    self.assertTrue(driver.engine.is_idle)
    self.assertEqual(driver.engine.stats().num_cancelled, 1)

  def test_new_weights_compute_it_anew(self):
    """After a swap, no key or value of the old weights is left in it."""
    driver = self.open()
    futures = self.preempt(driver)
    driver.engine.versions.publish(small.params(30), 30)
    _, answer = self.finish(driver, futures)
    is_old = answer.version == 10
    self.assertTrue(
      0 < is_old.sum() < 40 and (np.diff(answer.version) >= 0).all()
    )
    for step, rows in ((10, is_old), (30, ~is_old)):
      wanted = self.teacher_logprobs(self.prompts[1], answer, step)
      np.testing.assert_allclose(
        answer.raw_logprob[rows], wanted[rows], atol=1e-4
      )

  def test_a_swap_while_it_is_prefilled_again(self):
    driver = self.open(prefill_tokens=4, prefill_chunks=(4,))
    futures = self.preempt(driver)
    (scheduler,) = driver.engine._schedulers
    # So all of it is prefilled, in a dozen steps.
    scheduler._cache._tree.clear()
    while not futures[0].done() or not scheduler.num_busy:
      self.assertTrue(driver.step())
    self.assertFalse(scheduler._table.is_decoding.any())
    driver.engine.versions.publish(small.params(30), 30)
    _, answer = self.finish(driver, futures)
    is_new = answer.version == 30
    self.assertTrue(is_new.any())
    wanted = self.teacher_logprobs(self.prompts[1], answer, 30)
    np.testing.assert_allclose(
      answer.raw_logprob[is_new], wanted[is_new], atol=1e-4
    )

  def test_the_oldest_request_is_never_preempted(self):
    driver = self.open()
    requests = [driver.submit(small.prompt_of(n, 8), spec(n)) for n in range(9)]
    (scheduler,), done = driver.engine._schedulers, []
    while driver.step():
      waiting = [request.serial for request in scheduler._waiting]
      self.assertEqual(waiting, sorted(waiting))
      done += [f for f in requests if f.done() and f not in done]
    self.assertGreater(sum(driver.engine.stats().num_preempted), 3)
    self.assertIs(done[0], requests[0])
    self.assertEqual([len(f.result(0).sampled) for f in requests], [40] * 9)


class PagesTest(DriverTestCase):
  def open(self, **changes):
    driver = LocalDriver(small.engine_of(**TIGHT | changes))
    self.addCleanup(driver.close)
    return driver

  def held(self, driver):
    (scheduler,) = driver.engine._schedulers
    return 15 - scheduler._cache._pool.num_free

  def test_a_request_larger_than_all_pages_is_refused(self):
    driver = self.open(cache_tokens=(48,))
    prompt = small.prompt_of(1, 30)
    driver.engine.check(prompt, spec(1, max_tokens=18))
    with self.assertRaisesRegex(
      PromptTooLong, r"make 49; .*hold 48 \(engine.cache_tokens\)"
    ):
      driver.submit(prompt, spec(1, max_tokens=19))

  def test_a_group_prefills_and_holds_its_prompt_once(self):
    driver = self.open()
    prompt = small.prompt_of(1, 48)
    futures = [driver.submit(prompt, spec(n, max_tokens=9)) for n in range(3)]
    for _ in range(3):
      driver.step()
    self.assertEqual(driver.engine.stats().num_active, (3,))
    # Five full pages of the prompt, and two of each that go on differently.
    self.assertEqual(self.held(driver), 5 + 3 * 2)
    self.settle(driver, futures)
    self.assertEqual(driver.engine.stats().num_prefilled, (47,))
    self.assertEqual(driver.engine.stats().num_copied, (2 * 7,))

  def test_ended_sequences_make_room(self):
    driver = self.open()
    for n in range(8):
      self.settle(
        driver, [driver.submit(small.prompt_of(n, 40), spec(n, max_tokens=9))]
      )
      driver.engine.check_invariants()
    stats = driver.engine.stats()
    self.assertEqual(stats.num_preempted, (0,))
    self.assertGreater(sum(stats.num_evicted), 8 * 6 - 16)

  def test_a_publication_and_a_reset_reuse_nothing(self):
    driver, prompt = self.open(), small.prompt_of(1, 40)
    for prepare in (
      lambda: None,
      lambda: driver.engine.versions.publish(small.params(11), 11),
      driver.engine.reset,
    ):
      prepare()
      (answer,) = self.settle(
        driver, [driver.submit(prompt, spec(1, max_tokens=2))]
      )
      self.assertEqual(answer.num_reused, 0)
      driver.engine.check_invariants()

  def test_check_finds_a_lost_page(self):
    driver = self.open()
    driver.submit(small.prompt_of(1, 20), spec(1))
    driver.step()
    driver.engine.check_invariants()
    (scheduler,) = driver.engine._schedulers
    scheduler._cache._pool.take(1)
    with self.assertRaises(AssertionError):
      driver.engine.check_invariants()
