"""Tests of `report.numbers`: what a person reads is what was measured."""

import unittest

from launch.reports import numbers


class NumbersTest(unittest.TestCase):
  def test_shares(self):
    self.assertEqual(numbers.percent(0.4312), "43.1\N{NO-BREAK SPACE}%")
    self.assertEqual(numbers.interval(0.4, 0.455), "40.0 to 45.5")

  def test_differences_always_have_a_sign(self):
    for difference, written in (
      (0.431, "+43.1"),
      (-0.05, "−5.0"),
      (0.0, "+0.0"),
      (-0.0001, "+0.0"),
    ):
      with self.subTest(difference=difference):
        self.assertEqual(numbers.points(difference), written)
    self.assertEqual(numbers.signed_interval(-0.1, 0.2), "−10.0 to +20.0")

  def test_durations_never_show_sixty(self):
    for seconds, written in (
      (0.04, "0.0\N{NO-BREAK SPACE}s"),
      (59.94, "59.9\N{NO-BREAK SPACE}s"),
      (59.96, "1:00"),
      (185.4, "3:05"),
      (3599.6, "1:00:00"),
      (7207, "2:00:07"),
      (float("nan"), "unknown"),
    ):
      with self.subTest(seconds=seconds):
        self.assertEqual(numbers.duration(seconds), written)

  def test_moments_are_in_utc(self):
    self.assertEqual(numbers.moment(0), "1970-01-01 00:00 UTC")

  def test_stages_read_as_words(self):
    self.assertEqual(numbers.stage_name("warm_start"), "warm start")
    self.assertEqual(numbers.stage_name("rl"), "RL")
    self.assertEqual(numbers.stage_name("rl_evaluation"), "RL evaluation")
