"""Tests of `losses.group_advantages`: attempts against their siblings."""

import functools

import chex
import hypothesis
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import group_advantages as advantages
from tests.reference import advantages as reference

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=20
)


def _groups(seed: int, num_trajectories: int = 24, num_groups: int = 6):
  """Rewards as agents get them; the last group is empty, invalid are NaN."""
  rng = np.random.default_rng(seed)
  group_N = rng.integers(num_groups - 1, size=num_trajectories)
  reward_N = rng.choice([-0.2, 0.0, 0.3, 1.0], size=num_trajectories)
  valid_N = rng.random(num_trajectories) < 0.8
  reward_N[~valid_N] = np.nan
  return reward_N.astype(np.float32), group_N, valid_N


def _advantage(rewards, groups=None, valid=None, **settings):
  """The advantages of a few rewards, of one group unless told otherwise."""
  groups = [0] * len(rewards) if groups is None else groups
  valid = [True] * len(rewards) if valid is None else valid
  return advantages.group_advantage(
    jnp.array(rewards, jnp.float32),
    jnp.array(groups, int),
    num_groups=max(groups, default=0) + 1,
    valid_N=jnp.array(valid, bool),
    **settings,
  )


class GroupAdvantageTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(
    scale_by_std=(True, False), ddof=(0, 1), epsilon=(1e-6, 0.1)
  )
  def test_matches_reference_and_hides_nan(self, **settings):
    reward_N, group_N, valid_N = _groups(seed=0)
    expected_N = reference.group_advantage(
      reward_N, group_N, valid_N=valid_N, **settings
    )
    self.assertGreater(np.abs(expected_N).max(), 0.5)
    advantage = functools.partial(
      advantages.group_advantage, num_groups=6, **settings
    )
    np.testing.assert_allclose(
      self.variant(advantage)(reward_N, group_N, valid_N=valid_N),
      expected_N,
      rtol=1e-5,
      atol=1e-6,
    )

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
    reward_N, group_N, valid_N = _groups(seed)
    order_N = np.random.default_rng(seed).permutation(len(reward_N))
    straight_N = _advantage(reward_N, group_N, valid_N)
    shuffled_N = _advantage(
      reward_N[order_N], group_N[order_N], valid_N[order_N]
    )
    np.testing.assert_allclose(shuffled_N, straight_N[order_N], atol=1e-5)

  @few_examples
  @hypothesis.given(
    seed=st.integers(0, 999),
    shift=st.integers(-8, 8),
    factor=st.integers(1, 8),
  )
  def test_neither_shift_nor_unit_of_reward_matters(self, seed, shift, factor):
    reward_N, group_N, valid_N = _groups(seed)
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
    reward_N, group_N, valid_N = _groups(seed)
    advantage_N = _advantage(reward_N, group_N, valid_N, ddof=ddof)
    signal_M = reference.group_has_signal(reward_N, group_N, 6, valid_N)
    for group in np.flatnonzero(signal_M):
      members = np.asarray(advantage_N)[(group_N == group) & valid_N]
      np.testing.assert_allclose(members.mean(), 0, atol=1e-5)
      np.testing.assert_allclose(members.std(ddof=ddof), 1, rtol=1e-4)

  @parameterized.parameters(0, 1, 2)
  def test_invalid_attempts_are_as_if_never_made(self, seed):
    reward_N, group_N, valid_N = _groups(seed)
    advantage_N = np.asarray(_advantage(reward_N, group_N, valid_N))
    np.testing.assert_array_equal(advantage_N[~valid_N], 0)
    np.testing.assert_allclose(
      advantage_N[valid_N],
      _advantage(reward_N[valid_N], group_N[valid_N]),
      atol=1e-5,
    )

  def test_unscaled_is_a_leave_one_out_baseline_in_other_units(self):
    rewards = np.array([1.0, 0.0, 0.3, -0.2])
    size = len(rewards)
    others = (rewards.sum() - rewards) / (size - 1)
    np.testing.assert_allclose(
      _advantage(rewards, scale_by_std=False) * size / (size - 1),
      rewards - others,
      rtol=1e-5,
    )

  def test_nothing_valid_gives_nothing(self):
    np.testing.assert_array_equal(
      _advantage([np.nan] * 3, [0, 0, 1], [False] * 3), np.zeros(3)
    )
    self.assertEqual(_advantage([]).shape, (0,))

  def test_a_broken_reward_is_not_hidden(self):
    advantage_N = _advantage([1.0, np.nan, 0.0, 1.0], groups=[0, 0, 1, 1])
    np.testing.assert_array_equal(
      np.isnan(advantage_N), [True, True, False, False]
    )

  @parameterized.parameters(-1, 2, 100)
  def test_a_group_out_of_range_is_not_hidden(self, group):
    advantage_N = advantages.group_advantage(
      jnp.array([1.0, 0.0, 1.0]),
      jnp.array([0, 0, group]),
      num_groups=2,
      valid_N=jnp.ones(3, bool),
    )
    np.testing.assert_array_equal(np.isnan(advantage_N), [False, False, True])

  def test_refuses_masks_that_are_not_bool_and_other_lengths(self):
    for valid_N in (jnp.ones(3), jnp.ones(2, bool)):
      with self.assertRaises(AssertionError):
        advantages.group_advantage(
          jnp.zeros(3), jnp.zeros(3, int), num_groups=1, valid_N=valid_N
        )


if __name__ == "__main__":
  absltest.main()
