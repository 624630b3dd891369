"""Tests of `waits`: doubling, the longest pause, and deadlines."""

import math
import time

from absl.testing import absltest

from agentrl_jax.waits import Backoff


class BackoffTest(absltest.TestCase):
  def test_pauses_double_up_to_the_longest(self):
    backoff = Backoff(0.5, 3.0)
    self.assertEqual([backoff.next_s() for _ in range(5)], [0.5, 1, 2, 3, 3])

  def test_pause_past_the_deadline_does_not_fit(self):
    backoff, now = Backoff(100.0, 400.0), time.monotonic()
    self.assertTrue(backoff.fits(math.inf))
    self.assertTrue(backoff.fits(now + 150))
    self.assertFalse(backoff.fits(now + 50))
    backoff.next_s()
    self.assertFalse(backoff.fits(now + 150))
