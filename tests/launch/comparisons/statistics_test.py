"""Intervals hold what they promise, and nothing is not taken for something."""

import math

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from scipy import stats

from launch.comparisons.statistics import (
  SeedNoise,
  binomial_spread,
  binomial_variance,
  detectable_difference,
  interquartile_mean,
  max_t_p,
  mean_over_seeds,
  paired_difference,
  paired_power,
  pass_at_k,
  pooled_difference,
  pooled_noise,
)


class PairedDifferenceTest(parameterized.TestCase):
  def test_the_spread_is_that_of_the_interval(self):
    values = [0.1, 0.15, 0.02, 0.2]
    found = paired_difference([0.0] * 4, values)
    self.assertAlmostEqual(found.spread, np.std(values, ddof=1))
    by_episodes = paired_difference([0.0] * 4, values, episode_error=0.5)
    self.assertGreater(by_episodes.spread, found.spread)
    self.assertTrue(math.isnan(paired_difference([0.0], [0.1]).spread))

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

  def test_the_episodes_alone_are_the_least_that_an_interval_holds(self):
    for scores in ([0.5, 0.5, 0.5], [0.49, 0.5, 0.51]):
      error = math.sqrt(2 * 3 * 0.25 / 64) / 3
      found = paired_difference([0.4, 0.4, 0.4], scores, episode_error=error)
      self.assertAlmostEqual(found.high - found.mean, 1.96 * error, places=4)
      self.assertAlmostEqual(found.p, 2 * stats.norm.sf(0.1 / error))
      self.assertFalse(found.is_different)
    seeds = [0.5, 0.7, 0.3]  # these differ by more than their episodes do
    few, many = (
      paired_difference([0.4] * 3, seeds, episode_error=e) for e in (0.01, 0.0)
    )
    self.assertEqual((few.low, few.p), (many.low, many.p))

  @parameterized.parameters(3, 8)
  def test_the_power_is_that_of_the_test(self, n):
    """Also where the episodes decide, and seeds that hardly differ."""
    random, sd, size = np.random.default_rng(0), 0.02, 0.05
    drawn = [
      paired_difference(
        [0.0] * n,
        (size + random.normal(0, sd, n)).tolist(),
        episode_error=sd / math.sqrt(n),
      )
      for _ in range(2000)
    ]
    shown = np.mean([found.is_different for found in drawn])
    spread = min(found.spread for found in drawn)
    chance = paired_power(size, spread, n, level=0.05)
    self.assertLess(chance, shown + 0.05)

  def test_another_level_is_that_of_as_many_tests(self):
    scores = ([0.4, 0.41, 0.42], [0.45, 0.47, 0.46])
    for error in (0.0, 0.02):
      found = paired_difference(*scores, episode_error=error)
      of_two = paired_difference(*scores, episode_error=error, num_tests=2)
      self.assertAlmostEqual(found.at(0.975).low, of_two.low)
      self.assertEqual(found.at(0.95), found)

  def test_bonferroni_widens_both_intervals(self):
    for error, spread in ((0.05, 0.0), (0.0, 0.1)):
      scores = [0.5 - spread, 0.5, 0.5 + spread]
      one, five = (
        paired_difference(
          [0.4] * 3, scores, episode_error=error, num_tests=tests
        )
        for tests in (1, 5)
      )
      self.assertAlmostEqual(five.p, min(5 * one.p, 1))
      self.assertLess(five.low, one.low)


class LargestOfSeveralTest(parameterized.TestCase):
  @parameterized.parameters(
    # Dunnett (1964), two-sided, 5 %: comparisons, degrees of freedom, value.
    (2, 10, 2.57),
    (5, 10, 2.99),
    (5, 20, 2.73),
    (9, 30, 2.86),
    (2, math.inf, 2.21),
    (5, math.inf, 2.51),
  )
  def test_is_dunnetts_table(self, num_tests, degrees, value):
    for edge, compare in (
      (-0.006, self.assertGreater),
      (0.006, self.assertLess),
    ):
      compare(max_t_p(value + edge, num_tests, degrees, 0.5), 0.05)

  @parameterized.parameters(
    (2, 4, 0.5, 3.0), (4, 8, 0.5, 2.0), (6, 3, 0.0, 2.5)
  )
  def test_is_the_multivariate_t(self, num_tests, degrees, correlation, t):
    shape = np.full((num_tests, num_tests), correlation)
    np.fill_diagonal(shape, 1.0)
    of = stats.multivariate_t(shape=shape, df=degrees, seed=0)
    bounds = np.full(num_tests, t)
    expected = 1 - of.cdf(bounds, lower_limit=-bounds)
    found = max_t_p(t, num_tests, degrees, correlation)
    self.assertAlmostEqual(found, expected, places=3)

  @parameterized.parameters(2, 5, 40)
  def test_one_is_students_t(self, degrees):
    for correlation in (0.0, 0.5):
      for t in (0.0, 1.0, 3.0, 9.0):
        self.assertAlmostEqual(
          max_t_p(t, 1, degrees, correlation),
          2 * stats.t.sf(t, degrees),
          places=4,
        )


def by_seed(rows):
  """Returns scores by arm and seed; None is a seed that the arm lacks."""
  return {
    arm: {seed: x for seed, x in enumerate(row) if x is not None}
    for arm, row in rows.items()
  }


class PooledTest(parameterized.TestCase):
  def test_the_noise_is_that_of_arms_in_blocks(self):
    random = np.random.default_rng(0)
    x = random.random((4, 5)) + 10 * random.random(5)
    rest = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    found = pooled_noise(by_seed(dict(zip("abcd", x.tolist(), strict=True))))
    self.assertEqual((found.arms, found.degrees), (frozenset("abcd"), 12))
    self.assertAlmostEqual(found.variance, (rest**2).sum() / 12)

  def test_arms_may_lack_seeds(self):
    rows = {
      "a": [1, 2.2, 3, 4],
      "b": [2.1, 3.5, 3.8, 5.2],
      "c": [None, None, 3.3, 4],
    }
    found = pooled_noise(by_seed(rows))
    # c has its own mean and adds one degree, as much as its two seeds differ.
    self.assertEqual(found.degrees, 4)
    self.assertGreater(found.variance, 0)
    self.assertEqual(pooled_noise(by_seed({"a": [1], "b": [2]})).degrees, 0)

  def test_two_arms_are_the_paired_t(self):
    before, after = [0.1, 0.4, 0.2, 0.5], [0.3, 0.5, 0.5, 0.4]
    noise = pooled_noise(by_seed({"a": before, "b": after}))
    found = pooled_difference(
      before, after, noise, num_tests=1, is_many_to_one=True
    )
    expected = paired_difference(before, after)
    for name in ("mean", "low", "high", "p", "n"):
      self.assertAlmostEqual(
        getattr(found, name), getattr(expected, name), places=4
      )

  def test_an_arm_that_is_unstable_is_left_out(self):
    rows = {
      "a": [0.80, 0.82, 0.81, 0.79],
      "b": [0.81, 0.81, 0.82, 0.78],
      "c": [0.79, 0.82, 0.80, 0.80],
      "wild": [0.80, 0.10, 0.50, 0.90],
    }
    found = pooled_noise(by_seed(rows))
    self.assertEqual(found.arms, frozenset("abc"))
    self.assertLess(found.variance, 1e-3)
    # Seeds that agree by luck are no measure of what is unstable.
    self.assertEqual(
      pooled_noise(by_seed(rows), episode_variance=0.05).arms,
      frozenset([*"abc", "wild"]),
    )

  def test_the_episodes_alone_are_the_least_here_too(self):
    noise = SeedNoise(frozenset("abc"), 0.0, 4)
    found = pooled_difference(
      [0.4, 0.4],
      [0.5, 0.5],
      noise,
      num_tests=5,
      is_many_to_one=True,
      episode_error=0.05,
    )
    self.assertAlmostEqual(found.high - found.mean, 2.51 * 0.05, places=3)
    self.assertGreater(found.p, 0.05)

  def test_sides_that_are_not_many_to_one_have_wider_intervals(self):
    noise = SeedNoise(frozenset("abc"), 0.01, 8)
    one, any_two = (
      pooled_difference(
        [0.4, 0.4], [0.5, 0.5], noise, num_tests=3, is_many_to_one=is_one
      )
      for is_one in (True, False)
    )
    self.assertLess(any_two.low, one.low)
    self.assertLess(any_two.high / one.high, 1.05)


class LevelTest(parameterized.TestCase):
  def level(self, shares, n=64):
    return mean_over_seeds(shares, [binomial_variance(x, n) for x in shares])

  def test_is_students_t(self):
    shares = [0.3, 0.5, 0.6, 0.8]
    found = self.level(shares)
    low, high = stats.t.interval(0.95, 3, np.mean(shares), stats.sem(shares))
    self.assertAlmostEqual(found.low, low)
    self.assertAlmostEqual(found.high, high)

  def test_seeds_that_agree_have_the_interval_of_their_episodes(self):
    for share in (0.094, 0.5, 0.0, 1.0):
      found = self.level([share] * 3)
      width = 2 * 1.9599 * math.sqrt(share * (1 - share) / (3 * 64))
      self.assertGreater(found.high - found.low, max(width, 0.02))
      self.assertBetween(found.low, 0.0, share)
      self.assertBetween(found.high, share, 1.0)

  def test_one_seed_has_the_interval_of_its_episodes(self):
    found = self.level([0.5], 100)
    self.assertAlmostEqual(found.low, 0.402, places=3)
    self.assertAlmostEqual(found.high, 0.598, places=3)

  def test_bounds_are_shares(self):
    found = self.level([1.0, 0.6], 8)
    self.assertEqual((found.low, found.high), (0.0, 1.0))


class InterquartileTest(absltest.TestCase):
  def test_outliers_do_not_count(self):
    self.assertEqual(interquartile_mean([0.0, 0.4, 0.6, 1.0]), 0.5)
    self.assertEqual(interquartile_mean([-9.0, 0.4, 0.6, 99.0]), 0.5)


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
