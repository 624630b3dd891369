"""Tests of exact values: against sampled games, sums, finite differences."""

import numpy as np
from absl.testing import parameterized

from studies.credit import exact as credit_exact
from studies.credit.game import GuessingGame

THINGS = (("red", "star"), ("red", "circle"), ("blue", "star"))
GAME = GuessingGame(("colour", "shape"), THINGS, secret=0)
REWARDS = ({"reward": "success"}, {"reward": "questions"})


def rules_of(reward, num_turns=3):
  return credit_exact.make_rules(GAME, num_turns=num_turns, reward=reward)


def policy_of(rules, seed=0):
  """A policy that is alike in no two histories."""
  logit_UXA = np.random.default_rng(seed).normal(size=rules.shape)
  return credit_exact.TablePolicy(rules, logit_UXA)


class RulesTest(parameterized.TestCase):
  def test_sets_are_what_answers_leave(self):
    rules = rules_of("success")
    sets = {tuple(np.flatnonzero(row)) for row in rules.possible_XC}
    self.assertEqual(sets, {(0, 1, 2), (0, 1), (0, 2), (0,), (1,), (2,)})
    self.assertTrue(rules.possible_XC[0].all())


class ExactTest(parameterized.TestCase):
  @parameterized.parameters(*REWARDS)
  def test_values_are_the_means_of_sampled_returns(self, reward):
    rules = rules_of(reward)
    policy = policy_of(rules)
    episodes = credit_exact.play(
      policy, attempts=30_000, rng=np.random.default_rng(2)
    )
    return_NU = episodes.reward_NU[:, ::-1].cumsum(axis=1)[:, ::-1]
    key = tuple(
      np.broadcast_to(x, return_NU.shape)[episodes.played_NU]
      for x in (
        np.arange(3),
        episodes.set_NU,
        episodes.secret_N[:, None],
        episodes.call_NU,
      )
    )
    return_W = return_NU[episodes.played_NU]
    exact = policy.exact
    self._compare(key, return_W, exact.secret_action_value_UXCA)
    self._compare(key[:3], return_W, exact.secret_value_UXC)
    self._compare((*key[:2], key[3]), return_W, exact.action_value_UXA)
    self._compare(key[:2], return_W, exact.value_UX)
    self.assertAlmostEqual(
      return_NU[:, 0].mean(), exact.expected_return, delta=0.02
    )

  def _compare(self, key, return_W, exact):
    """Compares cells of 400 samples or more, within five deviations."""
    flat_W = np.ravel_multi_index(key, exact.shape)
    count = np.bincount(flat_W, minlength=exact.size)
    total = np.bincount(flat_W, return_W, exact.size)
    square = np.bincount(flat_W, return_W**2, exact.size)
    often = count >= 400
    self.assertGreater(often.sum(), 3)
    n = count[often]
    mean = total[often] / n
    spread = np.sqrt(np.maximum(square[often] / n - mean**2, 0) / n)
    wrong = np.abs(mean - exact.ravel()[often]) > 5 * spread + 1e-3
    self.assertFalse(wrong.any())

  @parameterized.parameters(*REWARDS)
  def test_the_policys_mean_advantage_is_0(self, reward):
    policy = policy_of(rules_of(reward))
    mean_UX = (policy.probability_UXA * policy.exact.advantage_UXA).sum(-1)
    np.testing.assert_allclose(mean_UX, 0, atol=1e-12)
    mean_UXC = np.einsum(
      "uxa,uxca->uxc",
      policy.probability_UXA,
      policy.exact.secret_advantage_UXCA,
    )
    np.testing.assert_allclose(mean_UXC, 0, atol=1e-12)

  @parameterized.parameters(*REWARDS)
  def test_the_gradient_is_that_of_finite_differences(self, reward):
    rules = rules_of(reward)
    policy, step = policy_of(rules), 1e-5

    def expected_return(change_UXA):
      changed = credit_exact.TablePolicy(rules, policy.logit_UXA + change_UXA)
      return changed.exact.expected_return

    difference_UXA = np.zeros(rules.shape)
    for place in np.ndindex(rules.shape):
      change_UXA = np.zeros(rules.shape)
      change_UXA[place] = step
      difference_UXA[place] = (
        expected_return(change_UXA) - expected_return(-change_UXA)
      ) / (2 * step)
    np.testing.assert_allclose(
      policy.exact.gradient_UXA, difference_UXA, atol=1e-9
    )

  def test_visits_are_chances(self):
    policy = policy_of(rules_of("success"))
    visit_U = policy.exact.visit_UX.sum(axis=1)
    self.assertAlmostEqual(visit_U[0], 1.0)
    self.assertTrue((np.diff(visit_U) < 0).all())  # guesses end some games
