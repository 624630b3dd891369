"""Tests of the ruler: what is exact has full marks, and noise has none."""

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from studies.credit import __main__ as credit
from studies.credit import curves as credit_curves
from studies.credit import exact as credit_exact
from studies.credit import scores as credit_scores
from studies.credit.estimators import (
  ESTIMATORS,
  Batch,
  estimate,
  trajectory_arrays,
)
from tests.studies.credit.exact_test import policy_of, rules_of

REWARDS = ({"reward": "success"}, {"reward": "questions"})


def batches_of(reward, *, attempts=40, number=4):
  policy = policy_of(rules_of(reward))
  rng = np.random.default_rng(3)
  return [
    Batch(policy, credit_exact.play(policy, attempts=attempts, rng=rng), seed)
    for seed in range(number)
  ]


class ScoresTest(parameterized.TestCase):
  @parameterized.parameters(*REWARDS)
  def test_exact_advantages_have_full_marks(self, reward):
    found = credit_scores.score("exact", batches_of(reward))
    self.assertAlmostEqual(found.marginal.rank, 1.0)
    self.assertEqual(found.marginal.sign, 1.0)
    self.assertAlmostEqual(found.marginal.error, 0.0)
    self.assertAlmostEqual(found.cosine_turns, 1.0)
    secret = credit_scores.score("exact given secret", batches_of(reward))
    self.assertAlmostEqual(secret.secret.rank, 1.0)
    self.assertEqual(secret.secret.sign, 1.0)

  @parameterized.parameters(*REWARDS)
  def test_noise_has_none(self, reward):
    found = credit_scores.score("random", batches_of(reward, attempts=400))
    for each in (found.marginal, found.secret):
      self.assertAlmostEqual(each.rank, 0.0, delta=0.05)
      self.assertAlmostEqual(each.sign, 0.5, delta=0.05)
      self.assertGreater(each.error, 0.98)
    self.assertLess(abs(found.cosine_turns), 0.3)

  @parameterized.parameters("exact", "exact given secret")
  def test_both_readings_lead_to_the_exact_gradient(self, name):
    """With many episodes: neither is biased."""
    batches = batches_of("success", attempts=20_000, number=2)
    found = credit_scores.score(name, batches)
    self.assertGreater(found.cosine_of_mean, 0.995)

  @parameterized.parameters("returns", "rloo", "turn_gae secret, lambda 0")
  @pytest.mark.slow
  def test_unbiased_estimators_lead_there_too(self, name):
    batches = batches_of("success", attempts=20_000, number=2)
    self.assertGreater(credit_scores.score(name, batches).cosine_of_mean, 0.98)

  @parameterized.parameters(*REWARDS)
  def test_a_step_of_a_critic_with_the_secret_is_exact(self, reward):
    (batch,) = batches_of(reward, number=1)
    advantage_NUK = estimate("turn_gae secret, lambda 0", batch)
    played = batch.episodes.played_NU
    np.testing.assert_allclose(
      advantage_NUK[played][:, 0], batch.secret_NU()[played], atol=1e-5
    )

  @parameterized.parameters(*REWARDS)
  def test_a_step_of_a_critic_without_it_is_exact_on_average(self, reward):
    """Over the things that are possible, the mean is A(h, a)."""
    (batch,) = batches_of(reward, attempts=20_000, number=1)
    played, episodes = batch.episodes.played_NU, batch.episodes
    found_W = estimate("turn_gae exact, lambda 0", batch)[played][:, 0]
    shape = batch.policy.rules.shape
    key = np.ravel_multi_index(
      (
        np.broadcast_to(np.arange(3), played.shape)[played],
        episodes.set_NU[played],
        episodes.call_NU[played],
      ),
      shape,
    )
    count = np.bincount(key, minlength=np.prod(shape))
    often = count >= 1000
    mean = np.bincount(key, found_W, np.prod(shape))[often] / count[often]
    exact = batch.policy.exact.advantage_UXA.ravel()[often]
    np.testing.assert_allclose(mean, exact, atol=0.1)

  @parameterized.parameters(*ESTIMATORS)
  def test_every_estimator_is_finite_and_0_where_not_played(self, name):
    (batch,) = batches_of("success", attempts=8, number=1)
    advantage_NUK = estimate(name, batch)
    self.assertTrue(np.isfinite(advantage_NUK).all())
    self.assertFalse(advantage_NUK[~batch.episodes.played_NU].any())
    self.assertTrue(advantage_NUK.any())

  def test_the_gradient_of_two_tokens_is_that_of_the_call(self):
    (batch,) = batches_of("success", attempts=8, number=1)
    advantage_NUK = estimate("exact", batch)
    expected_UXA = np.zeros(batch.policy.rules.shape)
    for n, u in zip(*np.nonzero(batch.episodes.played_NU), strict=True):
      x, a = batch.episodes.set_NU[n, u], batch.episodes.call_NU[n, u]
      score_A = np.eye(expected_UXA.shape[-1])[a]
      score_A = score_A - batch.policy.probability_UXA[u, x]
      expected_UXA[u, x] += advantage_NUK[n, u, 0] * score_A
    np.testing.assert_allclose(
      batch.gradient(advantage_NUK), expected_UXA, atol=1e-9
    )

  def test_states_are_replies_or_sets(self):
    (batch,) = batches_of("success", attempts=8, number=1)
    played = batch.episodes.played_NU
    reply, by_set = (
      trajectory_arrays(batch.episodes, states=s) for s in ("reply", "set")
    )
    self.assertEqual(set(reply.state_NU[played]), {0, 1, 2})
    for group in range(3):
      members = batch.episodes.group_N == group
      pairs = {
        (state, u, x)
        for state, u, x in zip(
          by_set.state_NU[members][played[members]],
          np.nonzero(played[members])[1],
          batch.episodes.set_NU[members][played[members]],
          strict=True,
        )
      }
      self.assertLen({state for state, _, _ in pairs}, len(pairs))


class FitTest(absltest.TestCase):
  def test_an_estimate_of_0_is_half_right(self):
    found = credit_scores.fit(np.zeros(3), np.array([1.0, -1.0, 0.0]))
    self.assertEqual((found.rank, found.sign, found.error), (0.0, 0.5, 1.0))

  def test_scale_does_not_matter(self):
    exact = np.array([1.0, -1.0, 0.5])
    found = credit_scores.fit(7 * exact, exact)
    self.assertAlmostEqual(found.error, 0.0)


class CurvesTest(parameterized.TestCase):
  def test_exact_gradients_learn_and_noise_does_not(self):
    rules = rules_of("success")
    best = credit.best_return(rules)
    start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))
    found = {
      arm: credit_curves.learn(
        start, arm, seed=0, updates=[60], attempts=40, learning_rate=0.1
      )[0]
      for arm in (credit_curves.GRADIENT, "exact", "rloo", "random")
    }
    for arm in (credit_curves.GRADIENT, "exact"):
      self.assertGreater(found[arm], 0.9 * best)
    self.assertLess(found["random"], 0.6 * best)
    self.assertGreater(found["rloo"], found["random"])

  def test_policies_are_where_they_say(self):
    rules = rules_of("success")
    policies = credit.make_policies(rules, seed=0)
    start, half, end = (p.exact.expected_return for p in policies.values())
    best = credit.best_return(rules)
    self.assertGreaterEqual(half, start + 0.5 * (best - start))
    self.assertBetween(end, start + 0.95 * (best - start), best)
