"""Tests of the observations of learned critics: each arm has its own."""

import argparse
import math

import numpy as np
import pytest
from absl.testing import parameterized

from studies.credit import archer as credit_archer
from studies.credit import exact as credit_exact
from studies.credit import rounds as credit_rounds
from studies.credit import tables as credit_tables
from studies.credit.learned import LEARNED
from tests.studies.credit.exact_test import rules_of

GIVEN = argparse.Namespace(
  reward="success", seeds=2, attempts=4, batches=2, updates=8, rates=[0.3]
)


class TablesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rules = rules_of("success")
    self.start = credit_exact.TablePolicy(rules, np.zeros(rules.shape))

  @pytest.mark.slow
  def test_each_critic_is_scored_at_each_size_with_each_seed(self):
    found = list(credit_tables.score_critics(self.start, GIVEN))
    expected = [(name, 0) for name in credit_tables.COMPARED]
    sizes = [4 * 3 * number for number in credit_tables.FIT_BATCHES]
    expected += [(name, size) for size in sizes for name in LEARNED]
    self.assertEqual(
      [(each["critic"], each["attempts"], each["seed"]) for each in found],
      [(*each, seed) for each in expected for seed in range(2)],
    )
    self.assertAlmostEqual(found[0]["rank"], 1)  # of exact ones

  @pytest.mark.slow
  def test_each_arm_plays_a_round_with_each_seed(self):
    found = list(credit_tables.play_rounds(self.start, GIVEN))
    self.assertEqual(
      [(each["arm"], each["seed"]) for each in found],
      [(arm, seed) for arm in credit_rounds.ROUNDS for seed in range(2)],
    )

  @pytest.mark.slow
  def test_each_arm_learns_online_with_each_seed(self):
    found = list(credit_tables.learn_online(self.start, GIVEN))
    self.assertEqual(
      [(each["arm"], each["seed"]) for each in found],
      [(arm, seed) for arm in credit_archer.ARMS for seed in range(2)],
    )
    by_arm = {each["arm"]: each for each in found}
    self.assertTrue(
      math.isnan(by_arm["exact"]["at_archers"])
    )  # it ended before
    self.assertFalse(math.isnan(by_arm["grpo"]["at_archers"]))

  def test_questions_per_game_are_returns_of_the_other_sign(self):
    questions = argparse.Namespace(reward="questions")
    self.assertEqual(credit_tables._result(-4.0, questions), 4.0)
    self.assertEqual(credit_tables._result(0.5, GIVEN), 0.5)
