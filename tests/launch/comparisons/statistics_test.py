"""Intervals and tests of few seeds, against scipy's and by hand."""

import math

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from scipy import stats

from launch.comparisons.statistics import (
  binomial_variance,
  mean_and_interval,
  paired_difference,
  pass_at_k,
  with_holm,
)


class PairedDifferenceTest(absltest.TestCase):
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
    (found,) = with_holm([paired_difference([0.1], [0.9])])
    self.assertAlmostEqual(found.mean, 0.8)
    self.assertTrue(math.isnan(found.p))
    self.assertFalse(found.is_different)

  def test_equal_seeds_have_no_spread_and_no_error(self):
    self.assertEqual(paired_difference([0.5, 0.5], [0.5, 0.5]).p, 1.0)
    found = paired_difference([0.5, 0.25], [0.75, 0.5])
    self.assertEqual((found.p, found.low, found.high), (0.0, 0.25, 0.25))

  def test_the_episodes_alone_are_the_least_that_an_interval_holds(self):
    for scores in ([0.5, 0.5, 0.5], [0.49, 0.5, 0.51]):
      error = math.sqrt(2 * 3 * 0.25 / 64) / 3
      found = paired_difference([0.4, 0.4, 0.4], scores, error)
      self.assertAlmostEqual(found.high - found.mean, 1.96 * error, places=4)
      self.assertAlmostEqual(found.p, 2 * stats.norm.sf(0.1 / error))
    seeds = [0.5, 0.7, 0.3]  # these differ by more than their episodes do
    few, many = (paired_difference([0.4] * 3, seeds, e) for e in (0.01, 0.0))
    self.assertEqual((few.low, few.p), (many.low, many.p))

  def test_holm_corrects_the_smallest_p_the_most(self):
    tests = [paired_difference([0.0] * 3, [x, 0.1, 0.2]) for x in (0, 0.1, 0.3)]
    tests.append(paired_difference([0.0], [0.5]))
    found = with_holm(tests)
    order = np.argsort([each.p for each in tests[:3]])
    first, second, third = (tests[i].p for i in order)
    expected = [3 * first, max(3 * first, 2 * second)]
    expected.append(max(expected[1], third))
    np.testing.assert_allclose([found[i].holm for i in order], expected)
    self.assertTrue(math.isnan(found[3].holm))


class LevelTest(absltest.TestCase):
  def level(self, shares, n=64):
    variance = math.fsum(binomial_variance(x, n) for x in shares)
    return mean_and_interval(shares, math.sqrt(variance) / len(shares))

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

  def test_bounds_are_shares(self):
    found = self.level([1.0, 0.6], 8)
    self.assertEqual((found.low, found.high), (0.0, 1.0))


class PassAtKTest(parameterized.TestCase):
  @parameterized.parameters((10, 3, 1), (10, 3, 4), (8, 0, 2), (8, 8, 8))
  @pytest.mark.slow
  def test_is_the_share_of_draws_with_a_success(self, n, c, k):
    random = np.random.default_rng(0)
    attempts = np.arange(n) < c
    draws = [random.permutation(attempts)[:k].any() for _ in range(4000)]
    self.assertAlmostEqual(pass_at_k(n, c, k), np.mean(draws), delta=0.025)
