"""Tests of a round of preferences: pairs, DPO, costs, and leaks of secrets."""

import dataclasses

import numpy as np
import pytest
from absl.testing import parameterized

from studies.credit import __main__ as credit
from studies.credit import exact as credit_exact
from studies.credit import rounds as credit_rounds
from tests.studies.credit.exact_test import policy_of, rules_of
from tests.studies.credit.learned_test import changed_to, episodes_of

SETTINGS = dict(
  batches=20, attempts=8, critic_steps=150, steps=200, rates=(0.03,)
)


class PairsTest(parameterized.TestCase):
  @parameterized.parameters(*credit_rounds.RANKINGS)
  def test_the_better_half_is_preferred(self, name):
    policy = policy_of(rules_of("success"))
    recorded = credit_rounds.recorded_turns(policy, episodes_of(policy), 0)
    rank = credit_rounds.RANKINGS[name]
    pairs = credit_rounds.answer_pairs(recorded, rank, np.random.default_rng(0))
    number = pairs.call.shape[1]
    self.assertBetween(number, len(recorded.turn_N), 4 * len(recorded.turn_N))
    self.assertTrue((pairs.call[0] != pairs.call[1]).all())
    if name == "ranked by exact advantage":
      of_call = policy.exact.advantage_UXA[pairs.turn, pairs.set, pairs.call]
      self.assertTrue((of_call[0] > of_call[1]).all())

  def test_equal_scores_make_no_pair_and_leave_the_policy_alone(self):
    policy = policy_of(rules_of("success"))
    recorded = credit_rounds.recorded_turns(policy, episodes_of(policy), 0)
    pairs = credit_rounds.answer_pairs(
      recorded,
      lambda recorded, call_NK: np.zeros(call_NK.shape),
      np.random.default_rng(0),
    )
    self.assertEqual(pairs.call.shape[1], 0)
    trained = credit_rounds.train_on_pairs(
      policy, pairs, learning_rate=0.1, steps=5, rng=np.random.default_rng(0)
    )
    self.assertEqual(
      trained.exact.expected_return, policy.exact.expected_return
    )

  def test_attempts_without_a_better_one_leave_the_policy_alone(self):
    policy = policy_of(rules_of("success"))
    episodes = episodes_of(policy)
    equal = changed_to(episodes, reward_NU=0 * episodes.reward_NU)
    self.assertEqual(credit_rounds.attempt_pairs(equal).call.shape[1], 0)

  def test_pairs_hold_nothing_of_the_secret(self):
    """The answers are drawn without it, and pairs are states and calls."""
    policy = policy_of(rules_of("success"))
    recorded = credit_rounds.recorded_turns(policy, episodes_of(policy), 0)
    others = dataclasses.replace(recorded, secret_N=(recorded.secret_N + 1) % 3)
    seen = []

    def rank(recorded, call_NK):
      seen.append(call_NK)
      return credit_rounds.rank_by_exact(recorded, call_NK)

    one, other = (
      credit_rounds.answer_pairs(x, rank, np.random.default_rng(0))
      for x in (recorded, others)
    )
    np.testing.assert_array_equal(*seen)
    for field in dataclasses.fields(one):
      np.testing.assert_array_equal(
        getattr(one, field.name), getattr(other, field.name)
      )
    self.assertEqual(
      {field.name for field in dataclasses.fields(one)},
      {"turn", "set", "call", "mask"},
    )


class RoundTest(parameterized.TestCase):
  @parameterized.parameters(*credit_rounds.ROUNDS)
  def test_no_arm_is_better_than_the_best_policy_without_the_secret(self, arm):
    """With it all games would be won; and noise does not help."""
    rules = rules_of("success")
    start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))
    (found,) = credit_rounds.run_round(start, arm, seed=0, **SETTINGS)
    self.assertLessEqual(
      found.expected_return, credit.best_return(rules) + 1e-9
    )
    self.assertGreater(found.pairs, 0)
    gain = found.expected_return - start.exact.expected_return
    if arm == "ranked at random":
      self.assertLess(abs(gain), 0.1)
    elif arm != "SWEET with secret, mean of all tokens":
      self.assertGreater(gain, 0.05)

  @pytest.mark.slow
  def test_answers_at_recorded_turns_count(self):
    rules = rules_of("success")
    start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))
    rounds = {
      arm: credit_rounds.run_round(start, arm, seed=0, **SETTINGS)[0]
      for arm in (
        credit_rounds.TRAJECTORY,
        credit_rounds.TRAJECTORY_EQUAL,
        "SWEET without",
      )
    }
    plain, equal, sweet = rounds.values()
    self.assertEqual(sweet.attempts, plain.attempts)
    self.assertEqual(sweet.answers, 17 * plain.answers)
    self.assertEqual(equal.attempts, 17 * plain.attempts)
    self.assertAlmostEqual(equal.answers / sweet.answers, 1, delta=0.05)
