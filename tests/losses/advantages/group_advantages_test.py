"""Tests of `losses.advantages.group_advantages`."""

import functools

import hypothesis
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples, random_attempts
from tests.losses.compiled import functions_of
from tests.reference.advantages import group_advantages as reference

pytestmark = pytest.mark.smoke


advantages = functions_of(losses.advantages.group_advantages)


def _advantage(rewards, groups=None, valid=None, **settings):
  """The advantages of a few rewards, of one group unless told otherwise."""
  groups = [0] * len(rewards) if groups is None else groups
  valid = [True] * len(rewards) if valid is None else valid
  return advantages.group_advantage(
    np.array(rewards, np.float32),
    np.array(groups, int),
    num_groups=max(groups, default=0) + 1,
    valid_N=np.array(valid, bool),
    **settings,
  )


class GroupAdvantageTest(parameterized.TestCase):
  def test_a_worked_example(self):
    # Mean 1/3; deviations 2/3, -1/3, -1/3; unbiased std sqrt(1/3).
    np.testing.assert_allclose(
      _advantage([1, 0, 0]), np.array([2, -1, -1]) / np.sqrt(3), rtol=1e-5
    )

  @parameterized.parameters(0.1, -0.2, 0.7, 1.0, 0.0)
  def test_equal_rewards_give_exactly_nothing(self, reward):
    for size in range(2, 12):
      advantage_N = _advantage([reward] * 12, valid=np.arange(12) < size)
      np.testing.assert_array_equal(advantage_N, np.zeros(12))
    np.testing.assert_array_equal(
      _advantage([reward] * 3, epsilon=0.0), np.zeros(3)
    )

  @parameterized.parameters(0, 1)
  def test_a_group_of_one_keeps_its_reward(self, ddof):
    np.testing.assert_allclose(
      _advantage([1.0, -0.2], groups=[0, 1], ddof=ddof), [1.0, -0.2], rtol=1e-5
    )
    np.testing.assert_allclose(
      _advantage([1.0], epsilon=0.25, ddof=ddof), [0.8], rtol=1e-6
    )
    np.testing.assert_array_equal(
      _advantage([0.3], scale_by_std=False, ddof=ddof), np.float32([0.3])
    )

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_order_does_not_matter(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    order_N = np.random.default_rng(seed).permutation(len(reward_N))
    straight_N = _advantage(reward_N, group_N, valid_N)
    shuffled_N = _advantage(
      reward_N[order_N], group_N[order_N], valid_N[order_N]
    )
    np.testing.assert_allclose(shuffled_N, straight_N[order_N], atol=1e-5)

  @few_examples
  @hypothesis.given(
    seed=st.integers(0, 999), shift=st.integers(-8, 8), factor=st.integers(1, 8)
  )
  def test_neither_shift_nor_unit_of_reward_matters(self, seed, shift, factor):
    reward_N, group_N, valid_N = random_attempts(seed)
    # Groups of one keep their reward, which does shift: leave them out.
    size_M = np.bincount(group_N[valid_N], minlength=6)
    valid_N &= size_M[group_N] > 1
    np.testing.assert_allclose(
      _advantage(factor * reward_N + shift, group_N, valid_N),
      _advantage(reward_N, group_N, valid_N),
      atol=1e-3,
    )

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999), ddof=st.sampled_from([0, 1]))
  def test_groups_with_signal_are_standardised(self, seed, ddof):
    reward_N, group_N, valid_N = random_attempts(seed)
    advantage_N = _advantage(reward_N, group_N, valid_N, ddof=ddof)
    signal_M = reference.group_has_signal(reward_N, group_N, 6, valid_N)
    for group in np.flatnonzero(signal_M):
      members = np.asarray(advantage_N)[(group_N == group) & valid_N]
      np.testing.assert_allclose(members.mean(), 0, atol=1e-5)
      np.testing.assert_allclose(members.std(ddof=ddof), 1, rtol=1e-4)


FUNCTIONS = {
  "group": (advantages.group_advantage, reference.group_advantage),
  "dr_grpo": tuple(
    functools.partial(f, scale_by_std=False)
    for f in (advantages.group_advantage, reference.group_advantage)
  ),
  "leave_one_out": (
    advantages.leave_one_out_advantage,
    reference.leave_one_out_advantage,
  ),
  "best": (
    advantages.best_of_group_advantage,
    reference.best_of_group_advantage,
  ),
  "best_unscaled": tuple(
    functools.partial(f, scale_by_std=False)
    for f in (
      advantages.best_of_group_advantage,
      reference.best_of_group_advantage,
    )
  ),
}
every_function = parameterized.named_parameters(
  (name, *pair) for name, pair in FUNCTIONS.items()
)


class EveryAdvantageTest(parameterized.TestCase):
  @pytest.mark.slow
  @every_function
  def test_invalid_attempts_are_as_if_never_made(self, function, _):
    reward_N, group_N, valid_N = random_attempts(seed=2)
    advantage_N = function(reward_N, group_N, num_groups=6, valid_N=valid_N)
    np.testing.assert_array_equal(advantage_N[~valid_N], 0)
    np.testing.assert_allclose(
      advantage_N[valid_N],
      function(
        reward_N[valid_N],
        group_N[valid_N],
        num_groups=6,
        valid_N=valid_N[valid_N],
      ),
      atol=1e-6,
    )

  @pytest.mark.slow
  @every_function
  def test_equal_rewards_give_exactly_nothing(self, function, _):
    for size in (2, 7, 11):
      advantage_N = function(
        np.full(12, -0.2),
        np.zeros(12, int),
        num_groups=1,
        valid_N=np.arange(12) < size,
      )
      np.testing.assert_array_equal(advantage_N, np.zeros(12))

  @pytest.mark.slow
  @every_function
  def test_a_broken_reward_is_not_hidden(self, function, _):
    for place in range(3):
      reward_N = np.ones(6, np.float32)
      reward_N[place] = np.nan
      advantage_N = function(
        reward_N,
        np.array([0, 0, 0, 1, 1, 1]),
        num_groups=2,
        valid_N=np.ones(6, bool),
      )
      np.testing.assert_array_equal(np.isnan(advantage_N), np.arange(6) < 3)

  @every_function
  def test_a_group_out_of_range_is_not_hidden(self, function, _):
    for group in (-1, 2, 100):
      advantage_N = function(
        np.array([1.0, 0.0, 1.0]),
        np.array([0, 0, group]),
        num_groups=2,
        valid_N=np.ones(3, bool),
      )
      np.testing.assert_array_equal(np.isnan(advantage_N), [False, False, True])


class LeaveOneOutAdvantageTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_is_dr_grpo_in_other_units(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    size_N = np.bincount(group_N[valid_N], minlength=6)[group_N]
    units_N = np.where(size_N > 1, size_N / np.maximum(size_N - 1, 1), 1)
    np.testing.assert_allclose(
      advantages.leave_one_out_advantage(
        reward_N, group_N, num_groups=6, valid_N=valid_N
      ),
      units_N * _advantage(reward_N, group_N, valid_N, scale_by_std=False),
      atol=1e-6,
    )

  def test_a_group_of_one_keeps_its_reward(self):
    advantage_N = advantages.leave_one_out_advantage(
      np.array([0.3, 1.0, 0.0]),
      np.array([0, 1, 1]),
      num_groups=2,
      valid_N=np.ones(3, bool),
    )
    np.testing.assert_array_equal(advantage_N, np.float32([0.3, 1, -1]))


class BestOfGroupAdvantageTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_at_most_one_of_a_group_gets_anything(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    advantage_N = advantages.best_of_group_advantage(
      reward_N, group_N, num_groups=6, valid_N=valid_N
    )
    self.assertGreaterEqual(np.min(advantage_N), 0)
    winners_M = np.bincount(group_N[np.asarray(advantage_N) > 0], minlength=6)
    self.assertLessEqual(winners_M.max(), 1)

  def test_shared_best_and_group_of_one_get_zero(self):
    advantage_N = advantages.best_of_group_advantage(
      np.array([1.0, 1.0, 0.0, 1.0]),
      np.array([0, 0, 0, 1]),
      num_groups=2,
      valid_N=np.ones(4, bool),
      epsilon=0.0,
    )
    np.testing.assert_array_equal(advantage_N, np.zeros(4))
