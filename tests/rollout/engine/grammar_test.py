"""Answers that follow a grammar: their tokens and log-probabilities."""

import dataclasses

import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.errors import ConfigError, GrammarFault
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from tests.rollout import small, small_grammars
from tests.rollout.drivers.contract import (
  DRIVERS,
  SHORT,
  WAIT_S,
  DriverTestCase,
  driver_on,
)

STOP = small_grammars.STOP


def spec_of(name: str, **changes) -> SamplingParams:
  """Makes the spec of a request with a grammar."""
  changes = dict(stop_tokens=(STOP,), max_tokens=40) | changes
  return SamplingParams(grammar=small_grammars.GRAMMARS[name], **changes)


def mixed_requests(number: int, *, seed: int = 3, share: float = 0.6):
  """Yields prompts, sampling params and the grammars' names, "" for none."""
  rng = np.random.default_rng(seed)
  for i in range(number):
    name = (
      rng.choice(list(small_grammars.GRAMMARS)) if rng.random() < share else ""
    )
    spec = SamplingParams(
      policy_slot=int(rng.integers(2)),
      temperature=float(rng.choice([0.0, 0.7, 1.0, 1.3])),
      top_k=int(rng.choice([0, 0, 2, 5])),
      top_p=float(rng.choice([1.0, 1.0, 0.8])),
      min_p=float(rng.choice([0.0, 0.0, 0.1])),
      max_tokens=int(rng.choice([1, 2, 3, 30, 30, 30])),
      stop_tokens=(STOP, 3) if i % 5 == 0 else (STOP,),
      seed=int(rng.integers(2**63)),
      grammar=small_grammars.GRAMMARS.get(name, ""),
    )
    yield small.prompt_of(100 + i, int(rng.integers(1, 50))), spec, str(name)


class GrammarTest(DriverTestCase):
  def open(self, kind="local", **changes):
    engine = small.engine_of(grammars=small_grammars.grammars(), **changes)
    driver = driver_on(kind, engine)
    self.addCleanup(driver.close)
    return driver

  def ask(self, driver, requests):
    futures = [driver.submit(prompt, spec) for prompt, spec, *_ in requests]
    return self.settle(driver, futures)

  @parameterized.parameters(
    *DRIVERS, *(("local", cache) for cache in small.KINDS if cache != "plain")
  )
  @pytest.mark.slow
  def test_answers_are_drawn_from_allowed_tokens(self, kind, cache="plain"):
    self.enterContext(small.kind_of(cache))
    driver, requests = self.open(kind), list(mixed_requests(200))
    answers = self.ask(driver, requests)
    errors, ended = [], 0
    for (prompt, spec, name), answer in zip(requests, answers, strict=True):
      ended += self.check_text(spec, name, answer) if name else 0
      errors.append(self.check_logprobs(prompt, spec, answer))
    self.assertLess(np.hstack(errors).mean(), 1e-5)
    self.assertGreater(ended, 40)
    bound = sum(
      len(a.sampled) for a, r in zip(answers, requests, strict=True) if r[2]
    )
    self.assertEqual(sum(driver.engine.stats().num_constrained), bound)
    self.check_empty(driver)

  def check_text(self, spec, name, answer) -> bool:
    """Checks an answer; returns whether its text is complete."""
    small_grammars.grammars().masks(spec.grammar, answer.sampled)  # raises
    stops = np.flatnonzero(np.isin(answer.sampled, spec.stop_tokens))
    if len(answer.sampled) < spec.max_tokens:
      self.assertEqual(stops.tolist(), [len(answer.sampled) - 1])
    if int(answer.sampled[-1]) != STOP:
      return False
    text = small_grammars.text_of(answer.sampled)
    self.assertTrue(small_grammars.is_complete(name, text), text)
    return True

  def check_logprobs(self, prompt, spec, answer):
    """Returns the errors against log-probabilities of the whole sequence."""
    tokens = np.concatenate([prompt, answer.sampled])
    step = (10, 20)[spec.policy_slot]
    logits = small.teacher_logits(step, tokens)[len(prompt) - 1 : -1]
    allowed = True
    if spec.grammar:
      allowed = small_grammars.allowed(spec.grammar, answer.sampled)
    errors = small.logprob_errors(answer, spec, logits, allowed)
    self.assertLess(np.max(errors), 1e-4)
    return errors

  @pytest.mark.slow
  def test_answers_depend_only_on_the_request(self):
    requests = list(mixed_requests(30, seed=4))
    together = self.ask(self.open(), requests)
    sizes = dict(
      num_slot_sizes=2, slots=(5, 3), lengths=(16, 48), steps_per_sync=1
    )
    alone = self.open(**sizes)
    threads = self.open("jetstream", steps_per_sync=8)
    others = {
      "other slots": self.ask(self.open(**sizes), requests[::-1])[::-1],
      "alone": [self.ask(alone, [request])[0] for request in requests],
      "jetstream, more steps": self.ask(threads, requests),
    }
    for name, answers in others.items():
      for first, other in zip(together, answers, strict=True):
        with self.subTest(name):
          small.assert_same(first, other)

  @parameterized.parameters(*DRIVERS)
  def test_requests_without_a_grammar_are_not_affected(self, kind):
    requests = list(mixed_requests(60, seed=5))
    free = [one for one in requests if not one[2]]
    among = self.ask(self.open(kind), requests)
    among = [a for a, one in zip(among, requests, strict=True) if not one[2]]
    apart = self.ask(self.open(kind), free)
    for first, second in zip(among, apart, strict=True):
      small.assert_same(first, second, atol=1e-5)

  @pytest.mark.slow
  def test_next_turn_reuses_constrained_tokens(self):
    driver = self.open(slots=(1, 1), steps_per_sync=4)
    prompt, ask = small.prompt_of(6, 30), spec_of("digits", max_tokens=8)
    (answer,) = self.ask(driver, [(prompt, spec_of("json", seed=1))])
    held = len(prompt) + len(answer.sampled) - 1
    next_prompt = small.conversation(prompt, answer, [4, 5])
    (again,) = self.ask(driver, [(next_prompt, ask)])
    self.assertGreaterEqual(again.num_reused, held)
    (fresh,) = self.ask(self.open(), [(next_prompt, ask)])
    np.testing.assert_array_equal(again.sampled, fresh.sampled)

  @pytest.mark.slow
  def test_a_swap_during_an_answer(self):
    driver = self.open()
    spec = spec_of("json", seed=2)
    asked = [(small.prompt_of(8, 9), spec), (small.prompt_of(9, 5), SHORT)]
    futures = [driver.submit(*one) for one in asked]
    driver.step()
    driver.step()
    driver.engine.versions.publish(small.params(30), 30)
    futures += [driver.submit(*one) for one in asked]
    answers = self.settle(driver, futures)
    for answer in answers[::2]:
      self.check_text(spec, "json", answer)
    versions = [set(answer.version) for answer in answers]
    self.assertEqual(versions, [{10, 30}, {10, 30}, {30}, {30}])
    (fresh,) = self.ask(self.open(steps=(30, 20)), asked[:1])
    np.testing.assert_array_equal(answers[2].sampled, fresh.sampled)

  @parameterized.parameters(*DRIVERS)
  @pytest.mark.slow
  def test_cancelling_frees_the_slot(self, kind):
    driver = self.open(kind, slots=(1, 1))
    chunks = []
    spec = dataclasses.replace(spec_of("json"), temperature=1.3)

    def listen(chunk):
      chunks.append(chunk)
      if len(chunks) == 3:
        doomed.cancel()

    doomed = driver.submit([5], spec, listen)
    request = (small.prompt_of(1, 9), spec_of("digits", seed=9))
    (answer,) = self.ask(driver, [request])
    self.assertTrue(doomed.cancelled())
    self.assertGreaterEqual(len(chunks), 3)
    (alone,) = self.ask(self.open(), [request])
    np.testing.assert_array_equal(answer.sampled, alone.sampled)
    self.check_empty(driver)

  def test_a_listener_is_called_for_each_token(self):
    driver, chunks = self.open(), []
    future = driver.submit([1], spec_of("json"), chunks.append)
    (answer,) = self.settle(driver, [future])
    self.assertLen(chunks, len(answer.sampled))
    np.testing.assert_array_equal(
      np.concatenate([chunk.sampled for chunk in chunks]), answer.sampled
    )

  @parameterized.parameters(*DRIVERS)
  @pytest.mark.slow
  def test_a_dead_end_fails_its_own_request(self, kind):
    driver = self.open(kind)
    dead = dataclasses.replace(
      spec_of("json"), grammar=small_grammars.DEAD_END, max_tokens=20
    )
    requests = list(mixed_requests(12, seed=8))
    futures = []
    for prompt, spec, _ in requests:
      futures.append(driver.submit(prompt, spec))
      doomed = driver.submit([2], dead)
    answers = self.settle(driver, futures)
    error = doomed.exception(WAIT_S)
    self.assertIsInstance(error, GrammarFault)
    self.assertRegex(str(error), "no token goes on: NoExtensionBias$")
    self.assertIsInstance(error.__cause__, GrammarFault)
    expected = self.ask(self.open(), requests)
    for answer, wanted in zip(answers, expected, strict=True):
      np.testing.assert_array_equal(answer.sampled, wanted.sampled)
    self.check_empty(driver)

  @parameterized.parameters(*DRIVERS)
  def test_an_answer_without_a_beginning_decodes_nothing(self, kind):
    driver = self.open(kind)
    dead = dataclasses.replace(spec_of("json"), grammar='start: "É"')
    doomed = driver.submit([2], dead)
    answers = self.ask(driver, [([n], SHORT) for n in range(3)])
    self.assertIsInstance(doomed.exception(WAIT_S), GrammarFault)
    sampled = sum(len(answer.sampled) for answer in answers)
    self.assertEqual(driver.engine.stats().num_sampled, (sampled, 0))
    self.check_empty(driver)

  def test_a_budget_ends_an_answer_where_it_stands(self):
    # "ab" is there as one token, and nothing comes after it.
    for grammar, budget in ((small_grammars.DEAD_END, 1), ('start: "abab"', 1)):
      spec = dataclasses.replace(
        spec_of("json"), grammar=grammar, max_tokens=budget
      )
      (answer,) = self.ask(self.open(), [([1], spec)])
      self.assertEqual(small_grammars.text_of(answer.sampled), "ab")

  def test_what_is_refused(self):
    plain = LocalDriver(small.engine_of())
    self.addCleanup(plain.close)
    with self.assertRaisesRegex(ConfigError, "knows no tokenizer"):
      plain.submit([1], spec_of("json"))
    driver = self.open()
    with self.assertRaisesRegex(ConfigError, r"add \[60\]"):
      driver.submit([1], spec_of("json", stop_tokens=(5,)))
    broken = dataclasses.replace(spec_of("json"), grammar="start: what")
    with self.assertRaisesRegex(ConfigError, "no grammar can be made of"):
      driver.submit([1], broken)
    self.check_empty(driver)
