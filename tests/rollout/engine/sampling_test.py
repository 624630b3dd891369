"""Samples against the distribution that they are drawn from."""

import unittest
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.rollout.api import SamplingParams
from agentrl_jax.rollout.engine import sampling
from tests.rollout import small

SPECS = (
  SamplingParams(),
  SamplingParams(temperature=0.0),
  SamplingParams(temperature=0.5),
  SamplingParams(temperature=1.7, top_k=3),
  SamplingParams(top_p=0.6),
  SamplingParams(temperature=1.3, top_k=9, top_p=0.7),
  SamplingParams(top_k=1),
  SamplingParams(top_p=1e-6),
  SamplingParams(top_k=1000),
  SamplingParams(temperature=1.5, min_p=0.2),
  SamplingParams(top_k=9, top_p=0.9, min_p=0.05),
  SamplingParams(min_p=1.0),
)
V = 23
_sample, _slot_keys = jax.jit(sampling.sample), jax.jit(sampling.slot_keys)
_truncate = jax.jit(sampling.truncate)


def settings(specs):
  return {
    "temperature_B": np.array([s.temperature for s in specs], np.float32),
    "top_k_B": np.array([s.top_k for s in specs], np.int32),
    "top_p_B": np.array([s.top_p for s in specs], np.float32),
    "min_p_B": np.array([s.min_p for s in specs], np.float32),
  }


def keys(seed, positions):
  high = np.zeros(len(positions), np.int32)
  return _slot_keys(high, high + seed, np.asarray(positions, np.int32))


def logits_of(seed, rows):
  rng = np.random.default_rng(seed)
  return rng.normal(scale=2.0, size=(rows, V)).astype(np.float32)


class SampleTest(unittest.TestCase):
  def test_logprobs_match_the_reference(self):
    logits_BV = logits_of(0, len(SPECS))
    for seed in range(20):
      drawn = _sample(
        logits_BV, key_B=keys(seed, range(len(SPECS))), **settings(SPECS)
      )
      self.check_logprobs(drawn, logits_BV)

  def check_logprobs(self, drawn, logits_BV, allowed_BV=None):
    """Compares log-probabilities of the drawn tokens with the reference."""
    drawn = jax.tree.map(np.asarray, drawn)
    for b, spec in enumerate(SPECS):
      token, row = int(drawn.token_B[b]), logits_BV[b].astype(np.float64)
      masked = row
      if allowed_BV is not None:
        self.assertTrue(allowed_BV[b, token])
        masked = np.where(allowed_BV[b], row, -np.inf)
      behavior = small.behavior(masked, spec)[token], drawn.behavior_logprob_B
      raw = small.log_softmax(row)[token], drawn.raw_logprob_B
      for expected, logprob_B in (behavior, raw):
        np.testing.assert_allclose(logprob_B[b], expected, atol=1e-5)

  @pytest.mark.slow
  def test_a_grammar_masks_before_anything_else(self):
    logits_BV = logits_of(3, len(SPECS))
    rng = np.random.default_rng(4)
    for seed in range(20):
      allowed_BV = rng.random(logits_BV.shape) < rng.random()
      allowed_BV[np.arange(len(SPECS)), rng.integers(V, size=len(SPECS))] = True
      padded_BV = np.pad(allowed_BV, ((0, 0), (0, 32 - V)), constant_values=1)
      packed = np.packbits(padded_BV, axis=1, bitorder="little")
      drawn = _sample(
        logits_BV,
        key_B=keys(seed, range(len(SPECS))),
        allowed_BW=packed.view(np.uint32),
        **settings(SPECS),
      )
      self.check_logprobs(drawn, logits_BV, allowed_BV)

  @pytest.mark.slow
  def test_frequencies_are_the_probabilities(self):
    number = 20_000
    row = logits_of(1, 1)[0]
    for spec in (SPECS[0], SPECS[5]):
      drawn = _sample(
        jnp.broadcast_to(row, (number, V)),
        key_B=keys(3, np.arange(number)),
        **settings([spec] * number),
      )
      share_V = np.bincount(drawn.token_B, minlength=V) / number
      expected_V = np.exp(small.behavior(row.astype(np.float64), spec))
      error_V = np.sqrt(expected_V * (1 - expected_V) / number)
      self.assertTrue(np.all(np.abs(share_V - expected_V) <= 5 * error_V))

  @pytest.mark.slow
  def test_frequencies_in_a_vocabulary_of_several_blocks(self):
    """Checks the shares of blocks, and of the tokens within them."""
    number, size = 20_000, 3 * sampling._BLOCK - 7
    row = np.random.default_rng(5).normal(size=size).astype(np.float32)
    row[sampling._BLOCK : 2 * sampling._BLOCK] = -np.inf  # never drawn
    row[[3, size - 1]] += 4
    drawn = _sample(
      jnp.broadcast_to(row, (number, size)),
      key_B=keys(4, np.arange(number)),
      **settings([SPECS[0]] * number),
    )
    share_V = np.bincount(drawn.token_B, minlength=size) / number
    expected_V = np.exp(small.behavior(row.astype(np.float64), SPECS[0]))
    error_V = np.sqrt(expected_V * (1 - expected_V) / number)
    # For such rare tokens a single draw is a few standard errors.
    error_V = np.maximum(error_V, 1 / number)
    self.assertEqual(len(share_V), size)
    self.assertTrue(np.all(np.abs(share_V - expected_V) <= 5 * error_V))
    self.assertEqual(share_V[sampling._BLOCK : 2 * sampling._BLOCK].sum(), 0)

  @pytest.mark.slow
  def test_the_last_tokens_of_blocks_are_drawn(self):
    """Tokens of equal weight each get an equal part of the unit interval."""
    size = 2 * sampling._BLOCK
    number = 64 * size
    uniform_N = (np.arange(number) + 0.5) / number
    with mock.patch.object(
      jax.random, "uniform", lambda key: key.astype(jnp.float32)
    ):
      token_N = sampling._invert_cdf(jnp.zeros((number, size)), uniform_N)
    np.testing.assert_array_equal(token_N, np.arange(number) // 64)

  def test_keys_depend_on_both_seed_halves_and_position(self):
    halves = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]
    keys_of_halves = [
      _slot_keys(*(np.array([x], np.int32) for x in half)) for half in halves
    ]
    data = {jax.random.key_data(key).tobytes() for key in keys_of_halves}
    self.assertEqual(len(data), 4)

  def test_a_token_of_probability_zero_is_never_drawn(self):
    logits_BV = np.full((len(SPECS), V), -np.inf, np.float32)
    logits_BV[:, [4, V - 1]] = [0.0, -1.0]
    tokens = set()
    for seed in range(40):
      drawn = _sample(
        logits_BV,
        key_B=keys(seed, range(len(SPECS))),
        **settings([SPECS[0]] * len(SPECS)),
      )
      tokens.update(np.asarray(drawn.token_B).tolist())
      self.assertTrue(np.all(np.isfinite(drawn.behavior_logprob_B)))
    self.assertEqual(tokens, {4, V - 1})


class TruncateTest(unittest.TestCase):
  def truncated(self, row, top_k=0, top_p=1.0, min_p=0.0):
    return np.asarray(
      _truncate(
        np.array([row], np.float32),
        np.array([top_k], np.int32),
        np.array([top_p], np.float32),
        np.array([min_p], np.float32),
      )
    )[0]

  def test_ties_with_the_last_one_kept_are_kept(self):
    row = [1.0, 3.0, 2.0, 2.0]
    kept = np.isfinite(self.truncated(row, top_k=2))
    np.testing.assert_array_equal(kept, [False, True, True, True])

  @pytest.mark.slow
  def test_negative_and_positive_scores_are_ordered(self):
    row = [-5.0, -0.5, 0.5, -2.0]
    for top_k in (1, 2, 3, 4):
      kept = np.isfinite(self.truncated(row, top_k=top_k))
      best = np.argsort(row)[::-1][:top_k]
      self.assertEqual(set(np.flatnonzero(kept)), set(best))

  def test_top_p_applies_after_top_k(self):
    row = np.log([0.4, 0.3, 0.2, 0.1])
    # Of all, 0.7 weighs enough for 0.65; of the first three, 7/9 for 0.75.
    for top_k, top_p, number in (
      (0, 0.65, 2),
      (0, 0.75, 3),
      (3, 0.75, 2),
      (3, 0.8, 3),
    ):
      kept = np.isfinite(self.truncated(row, top_k, top_p))
      self.assertEqual(kept.sum(), number, (top_k, top_p))

  def test_top_p_applies_after_min_p(self):
    row = np.log([0.4, 0.3, 0.2, 0.1])
    for min_p, top_p, number in ((0.0, 0.75, 3), (0.3, 0.75, 2), (0.3, 0.8, 3)):
      kept = np.isfinite(self.truncated(row, top_p=top_p, min_p=min_p))
      self.assertEqual(kept.sum(), number, (min_p, top_p))
