"""Tests of the bench of filters: its gradient, and what luck does to it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from studies.bandit_filters import (
  ARMS,
  GROUP_SIZE,
  SURE,
  gradient,
  is_raised,
  learn,
)


def push_of(arm, *, chance, scale_by_std=False, x=0.0):
  """Returns the mean gradient of many batches, and its standard error."""
  play = functools.partial(
    gradient,
    jnp.float32(x),
    keep=ARMS[arm],
    chance=chance,
    scale_by_std=scale_by_std,
  )
  each, _, _ = jax.jit(jax.vmap(play))(
    jax.random.split(jax.random.key(3), 4096)
  )
  return float(each.mean()), float(each.std() / np.sqrt(each.size))


class BanditFiltersTest(absltest.TestCase):
  @pytest.mark.slow
  def test_without_filter_and_std_it_is_the_policy_gradient(self):
    """The baseline has the attempt itself: a factor (n - 1) / n."""
    for chance, x in ((0.25, 0.0), (0.04, 0.0), (0.25, 1.0)):
      q = 1 / (1 + np.exp(-x))
      exact = (1 - 1 / GROUP_SIZE) * q * (1 - q) * (chance - SURE)
      found, error = push_of("all", chance=chance, x=x)
      self.assertLess(abs(found - exact), 5 * error)

  def test_the_widest_groups_are_the_lucky_ones(self):
    """The filter turns the gradient around where luck is rare."""
    unfiltered, _ = push_of("all", chance=0.04)
    filtered, error = push_of("top_share", chance=0.04)
    self.assertLess(unfiltered, 0)
    self.assertGreater(filtered, 5 * error)

  @pytest.mark.slow
  def test_what_is_learned_follows_the_push(self):
    settings = {
      "chance": 0.25,
      "scale_by_std": False,
      "num_updates": 60,
      "learning_rate": 0.1,
      "seeds": 8,
    }
    found = learn(ARMS["all"], **settings)
    self.assertGreater(found.success_S.mean(), 0.8)
    self.assertEqual(found.kept, 1.0)

  def test_the_alarm_is_that_of_training(self):
    self.assertTrue(is_raised([0.4] * 10 + [0.01] * 10))
    self.assertFalse(is_raised([0.4] * 10 + [0.01] * 9 + [0.4]))
