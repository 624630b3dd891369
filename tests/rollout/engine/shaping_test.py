"""Penalties, biases and alternatives in the engine, against float64 numpy."""

import dataclasses
import unittest

import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.engine import programs
from tests.rollout import small

STEPS = (10, 20)
ALL = range(small.VOCAB)
SPECS = {
  "penalties": SamplingParams(
    max_tokens=24,
    temperature=0.9,
    frequency_penalty=1.3,
    presence_penalty=0.7,
    num_top=20,
    top_is_raw=False,
    seed=1,
  ),
  "rewards": SamplingParams(
    max_tokens=24,
    temperature=0.6,
    frequency_penalty=-2.0,
    presence_penalty=-1.5,
    num_top=5,
    seed=2,
    policy_slot=1,
  ),
  "bias": SamplingParams(
    max_tokens=24,
    temperature=1.2,
    top_k=9,
    top_p=0.9,
    logit_bias=((3, 2.5), (7, -100.0), (11, 4.0), (60, 3.25)),
    num_top=12,
    top_is_raw=False,
    seed=3,
  ),
  "greedy": SamplingParams(
    max_tokens=24,
    temperature=0.0,
    frequency_penalty=2.0,
    num_top=3,
    top_is_raw=False,
    seed=4,
    policy_slot=1,
  ),
  "plain": SamplingParams(max_tokens=24, temperature=0.9, seed=5),
  "told": SamplingParams(max_tokens=24, temperature=0.9, num_top=1, seed=5),
}


def shaped(logits: np.ndarray, sampling: SamplingParams, before) -> np.ndarray:
  """Applies OpenAI's formula, one token after the other."""
  shaped_V = logits.copy()
  for token, bias in sampling.logit_bias:
    shaped_V[token] += bias
  for token in ALL:
    count = list(before).count(token)
    shaped_V[token] -= sampling.frequency_penalty * count
    shaped_V[token] -= sampling.presence_penalty * float(count > 0)
  return shaped_V


def likeliest(logprob: np.ndarray, number: int) -> np.ndarray:
  return np.argsort(-logprob, kind="stable")[:number]


class ShapingTest(unittest.TestCase):
  def setUp(self):
    super().setUp()
    self.driver = LocalDriver(small.engine_of(STEPS))
    self.addCleanup(self.driver.close)

  def ask(self, *specs, prompt=None):
    prompt = small.prompt_of(1, 12) if prompt is None else prompt
    asked = [self.driver.submit(prompt, spec) for spec in specs]
    self.driver.run_until_idle()
    self.driver.engine.check_invariants()
    return [answer.result(0) for answer in asked]

  def decoders(self):
    return [s._decoder for s in self.driver.engine._schedulers]

  def agree(self, spec, answer, prompt=None):
    """Checks an answer against the formula applied to reference logits."""
    prompt = small.prompt_of(1, 12) if prompt is None else prompt
    tokens = np.concatenate([prompt, answer.sampled])
    logits_TV = small.teacher_logits(STEPS[spec.policy_slot], tokens)
    for n, token in enumerate(answer.sampled.tolist()):
      raw = logits_TV[len(prompt) + n - 1]
      drawn = small.behavior(shaped(raw, spec, answer.sampled[:n]), spec)
      raw = small.log_softmax(raw)
      np.testing.assert_allclose(answer.raw_logprob[n], raw[token], atol=2e-4)
      np.testing.assert_allclose(
        answer.behavior_logprob[n], drawn[token], atol=2e-4
      )
      if spec.num_top:
        of = raw if spec.top_is_raw else drawn
        top = answer.top_token[n], answer.top_logprob[n]
        expected = of[likeliest(of, spec.num_top)]
        np.testing.assert_allclose(top[1], expected, atol=2e-4)
        np.testing.assert_allclose(of[top[0]], expected, atol=2e-4)
        self.assertEqual(len(set(top[0].tolist())), spec.num_top)

  def test_shaping_follows_the_formula_in_mixed_batches(self):
    answers = self.ask(*SPECS.values())
    for (name, spec), answer in zip(SPECS.items(), answers, strict=True):
      with self.subTest(name):
        self.agree(spec, answer)
        if not spec.num_top:
          self.assertIsNone(answer.top_token)
    # The arrays are dropped, and each request alone gets the same answer.
    self.assertEqual([d.shaping.arrays for d in self.decoders()], [None, None])
    for spec, answer in zip(SPECS.values(), answers, strict=True):
      (alone,) = self.ask(spec)
      np.testing.assert_array_equal(alone.sampled, answer.sampled)
    np.testing.assert_array_equal(answers[-1].sampled, answers[-2].sampled)

  @pytest.mark.slow
  def test_the_next_request_of_a_slot_is_not_affected(self):
    """Asks an engine of one slot, where each request follows another."""
    self.driver.close()
    self.driver = LocalDriver(small.engine_of(STEPS, slots=(1, 1)))
    order = ["penalties", "plain", "bias", "told", "rewards", "penalties"]
    # Submitted at once, so that the arrays are kept between some of them.
    answers = self.ask(*(SPECS[name] for name in order))
    for name, answer in zip(order, answers, strict=True):
      with self.subTest(name):
        self.agree(SPECS[name], answer)
    np.testing.assert_array_equal(answers[0].sampled, answers[-1].sampled)

  @pytest.mark.slow
  def test_a_cancelled_request_affects_no_other(self):
    spec = dataclasses.replace(SPECS["penalties"], max_tokens=80)
    asked = self.driver.submit(small.prompt_of(1, 12), spec)
    keeps = self.driver.submit(small.prompt_of(2, 12), spec)
    self.driver.step()
    asked.cancel()
    self.driver.step()
    (answer,) = self.ask(SPECS["told"])
    self.agree(SPECS["told"], answer)
    self.agree(spec, keeps.result(0), small.prompt_of(2, 12))

  def test_extremes(self):
    plain = dataclasses.replace(SPECS["plain"], max_tokens=8)
    only, none, ends, goes_on = self.ask(
      dataclasses.replace(plain, logit_bias=((13, 100.0),)),
      dataclasses.replace(plain, logit_bias=tuple((n, -100.0) for n in ALL)),
      dataclasses.replace(
        plain, logit_bias=((9, 100.0),), stop_tokens=(9,), max_tokens=50
      ),
      dataclasses.replace(
        plain,
        logit_bias=tuple((n, -100.0) for n in ALL if n != 21),
        stop_tokens=(20,),
      ),
    )
    self.assertEqual(set(only.sampled.tolist()), {13})
    # The same bias for all tokens changes nothing.
    (unbiased,) = self.ask(plain)
    np.testing.assert_array_equal(none.sampled, unbiased.sampled)
    np.testing.assert_allclose(
      none.behavior_logprob, unbiased.behavior_logprob, atol=1e-4
    )
    self.assertEqual(ends.sampled.tolist(), [9])
    self.assertEqual(set(goes_on.sampled.tolist()), {21})

  def test_tokens_of_the_prompt_are_not_counted(self):
    """Counts tokens neither of the prompt, nor of a reused turn."""
    spec = SPECS["penalties"]
    (first,) = self.ask(spec)
    prompt = small.conversation(small.prompt_of(1, 12), first, [5, 6])
    (second,) = self.ask(spec, prompt=prompt)
    self.assertGreater(second.num_reused, 20)
    self.agree(spec, second, prompt)

  @pytest.mark.slow
  def test_chunks_have_their_own_alternatives(self):
    chunks = []
    spec = SPECS["bias"]
    asked = self.driver.submit(small.prompt_of(1, 12), spec, chunks.append)
    self.driver.run_until_idle()
    whole, joined = asked.result(0), chunks[0].joined(chunks)
    self.assertGreater(len(chunks), 2)
    for name in ("sampled", "top_token", "top_logprob"):
      np.testing.assert_array_equal(
        getattr(joined, name), getattr(whole, name), name
      )

  def test_programs_are_not_compiled_per_request(self):
    self.ask(SPECS["plain"])
    before = programs.decode._cache_size()
    self.ask(SPECS["plain"])
    self.assertEqual(programs.decode._cache_size(), before)
    self.ask(SPECS["penalties"])
    compiled = programs.decode._cache_size()
    for name in ("bias", "told", "greedy", "rewards"):
      self.ask(dataclasses.replace(SPECS[name], policy_slot=0))
    self.assertEqual(programs.decode._cache_size(), compiled)

  def test_refusals(self):
    for changes, sentence in (
      (dict(frequency_penalty=2.1), "frequency_penalty=2.1 must be"),
      (dict(presence_penalty=float("nan")), "presence_penalty=nan must be"),
      (dict(num_top=21), "num_top=21 must be 0 to 20"),
      (dict(num_top=-1), "num_top=-1 must be 0 to 20"),
      (dict(logit_bias=((small.VOCAB, 1.0),)), "tokens 0 to 60"),
      (dict(logit_bias=((-1, 1.0),)), "tokens 0 to 60"),
      (dict(logit_bias=((0, 100.5),)), "from -100 to 100"),
      (dict(logit_bias=((0, float("inf")),)), "from -100 to 100"),
      (dict(logit_bias=((0, 1.0), (0, 2.0))), "one per token"),
      (dict(logit_bias=tuple((n, 1.0) for n in range(1025))), "up to 1024"),
    ):
      with (
        self.subTest(sentence),
        self.assertRaisesRegex(ConfigError, sentence),
      ):
        self.driver.submit([1], SamplingParams(**changes))
