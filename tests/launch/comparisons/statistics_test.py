"""Intervals hold what they promise, and nothing is not taken for something."""

import math

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from scipy import stats

from launch.comparisons.statistics import (
  binomial_spread,
  bootstrap,
  detectable_difference,
  interquartile_interval,
  interquartile_mean,
  paired_difference,
  pass_at_k,
)


class PairedDifferenceTest(parameterized.TestCase):
  def test_is_students_paired_t(self):
    random = np.random.default_rng(0)
    before, after = random.random(6), random.random(6)
    found = paired_difference(before.tolist(), after.tolist())
    expected = stats.ttest_rel(after, before)
    self.assertAlmostEqual(found.p, expected.pvalue)
    interval = expected.confidence_interval(0.95)
    self.assertAlmostEqual(found.low, interval.low)
    self.assertAlmostEqual(found.high, interval.high)

  def test_one_seed_shows_nothing(self):
    found = paired_difference([0.1], [0.9])
    self.assertAlmostEqual(found.mean, 0.8)
    self.assertTrue(math.isnan(found.p))
    self.assertFalse(found.is_different)

  def test_equal_seeds_have_no_spread_and_no_error(self):
    self.assertEqual(paired_difference([0.5, 0.5], [0.5, 0.5]).p, 1.0)
    found = paired_difference([0.5, 0.25], [0.75, 0.5])
    self.assertEqual((found.p, found.low, found.high), (0.0, 0.25, 0.25))

  def test_arms_must_be_paired(self):
    with self.assertRaisesRegex(ValueError, "2, 3"):
      paired_difference([0.1, 0.2], [0.1, 0.2, 0.3])
    with self.assertRaisesRegex(ValueError, "0, 0"):
      paired_difference([], [])

  @pytest.mark.slow
  def test_arms_that_differ_in_nothing_are_not_different(self):
    """Of 1,000 pairs with seeds of their own skill, 5 % and no more."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(1000):
      skill = random.normal(0.5, 0.1, 5)
      before, after = (
        random.binomial(64, np.clip(skill + random.normal(0, 0.05, 5), 0, 1))
        / 64
        for _ in range(2)
      )
      wrong += paired_difference(before.tolist(), after.tolist()).is_different
    # Beyond 70 of 1,000 a level of 5 % has a chance of 0.3 %.
    self.assertLessEqual(wrong, 70)


class BootstrapTest(parameterized.TestCase):
  @parameterized.parameters(3, 5, 10)
  @pytest.mark.slow
  def test_the_interval_holds_the_truth_as_often_as_it_says(self, seeds):
    random = np.random.default_rng(2)
    holds = 0
    for _ in range(400):
      skills = np.clip(random.normal(0.5, 0.1, seeds), 0, 1)
      shares = random.binomial(64, skills) / 64
      found = bootstrap([(share, 64) for share in shares], random)
      holds += found.low <= 0.5 <= found.high
    self.assertBetween(holds / 400, 0.91, 0.985)

  def test_one_seed_has_the_interval_of_its_episodes(self):
    found = bootstrap([(0.5, 100)], np.random.default_rng(0))
    self.assertBetween(found.low, 0.38, 0.42)
    self.assertBetween(found.high, 0.58, 0.62)

  def test_few_seeds_are_stretched_to_the_width_of_students_t(self):
    """The spread of resampled means times sqrt(n / (n - 1)) t / z."""
    for n in (3, 10):
      shares = 0.5 + 0.01 * np.arange(n)
      found = bootstrap([(x, 64) for x in shares], np.random.default_rng(0))
      error = shares.std(ddof=1) / math.sqrt(n)
      reach = stats.t.ppf(0.975, n - 1) * error
      self.assertBetween((found.high - found.low) / (2 * reach), 0.85, 1.1)

  def test_bounds_are_shares(self):
    found = bootstrap([(1.0, 8), (0.6, 8)], np.random.default_rng(0))
    self.assertBetween(found.low, 0.0, 0.8)
    self.assertEqual(found.high, 1.0)


class InterquartileTest(absltest.TestCase):
  def test_outliers_do_not_count(self):
    self.assertEqual(interquartile_mean([0.0, 0.4, 0.6, 1.0]), 0.5)
    self.assertEqual(interquartile_mean([-9.0, 0.4, 0.6, 99.0]), 0.5)

  def test_one_seed_has_no_interval(self):
    found = interquartile_interval(
      np.array([[0.2, 0.4]]), np.random.default_rng(0)
    )
    self.assertTrue(math.isnan(found.low))


class PassAtKTest(parameterized.TestCase):
  @parameterized.parameters((10, 3, 1), (10, 3, 4), (8, 0, 2), (8, 8, 8))
  @pytest.mark.slow
  def test_is_the_share_of_draws_with_a_success(self, n, c, k):
    random = np.random.default_rng(0)
    attempts = np.arange(n) < c
    draws = [random.permutation(attempts)[:k].any() for _ in range(4000)]
    self.assertAlmostEqual(pass_at_k(n, c, k), np.mean(draws), delta=0.025)

  def test_needs_k_attempts(self):
    with self.assertRaisesRegex(ValueError, "needs 9 attempts.* there are 8"):
      pass_at_k(8, 4, 9)


class DetectableDifferenceTest(parameterized.TestCase):
  @parameterized.parameters(3, 5, 10)
  @pytest.mark.slow
  def test_is_found_four_times_in_five(self, seeds):
    random = np.random.default_rng(3)
    size = detectable_difference(1.0, seeds)
    found = [
      paired_difference(
        [0.0] * seeds, random.normal(size, 1.0, seeds).tolist()
      ).is_different
      for _ in range(2000)
    ]
    self.assertAlmostEqual(np.mean(found), 0.8, delta=0.05)

  def test_one_seed_detects_nothing(self):
    self.assertEqual(detectable_difference(0.1, 1), math.inf)

  def test_certain_tasks_have_no_spread(self):
    self.assertEqual(binomial_spread(1.0, 64), 0.0)
    self.assertAlmostEqual(binomial_spread(0.5, 50), 0.1)


if __name__ == "__main__":
  absltest.main()
