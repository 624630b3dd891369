"""Tests of `losses.advantages.group_filters`."""

import hypothesis
import jax
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import advantages as modules
from tests.losses.advantages.random_inputs import few_examples, random_attempts
from tests.losses.compiled import functions_of

group_filters = functions_of(modules.group_filters)
group_advantage = functions_of(modules.group_advantages).group_advantage
LOOSEST = (
  (group_filters.keep_groups_above, {"threshold": 0.0}),
  (group_filters.keep_top_groups, {"share": 1.0}),
  (group_filters.keep_top_signal, {"share": 1.0}),
  (group_filters.keep_top_softmax, {"share": 1.0}),
)


class GroupHasSignalTest(parameterized.TestCase):
  def test_alone_empty_equal_and_unequal(self):
    signal_M = group_filters.group_has_signal(
      np.array([1.0, 0.3, 0.3, 1.0, 0.0, 0.0]),
      np.array([0, 2, 2, 3, 3, 4]),
      5,
      np.ones(6, bool),
    )
    np.testing.assert_array_equal(signal_M, [False, False, False, True, False])

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_is_where_some_advantage_of_a_real_group_is_not_zero(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    advantage_N = np.asarray(
      group_advantage(reward_N, group_N, num_groups=6, valid_N=valid_N)
    )
    signal_M = group_filters.group_has_signal(reward_N, group_N, 6, valid_N)
    for group in range(6):
      members = advantage_N[(group_N == group) & valid_N]
      if len(members) > 1:
        self.assertEqual(bool(signal_M[group]), bool(members.any()))


class GroupStdTest(parameterized.TestCase):
  @parameterized.parameters(1e-30, 1.0, 1e20, 1e38)
  def test_the_square_of_a_reward_may_exceed_float32(self, unit):
    std_M = group_filters.group_std(
      unit * np.array([1.0, 0.0, 0.0, 1.0]),
      np.zeros(4, int),
      num_groups=2,
      valid_N=np.ones(4, bool),
    )
    np.testing.assert_allclose(std_M, [unit * np.sqrt(1 / 3), 0], rtol=1e-6)

  @parameterized.parameters(1e-30, 1.0, 1e20, 1e38)
  def test_a_group_alone_may_have_such_rewards(self, unit):
    # Not compiled: XLA divides by one number for all by way of its reciprocal,
    # which for 1e38 is flushed to 0. Runs compute advantages in float64.
    std_M = modules.group_filters.group_std(
      unit * np.array([1.0, 0.0, 0.0, 1.0]),
      np.zeros(4, int),
      num_groups=1,
      valid_N=np.ones(4, bool),
    )
    np.testing.assert_allclose(std_M, [unit * np.sqrt(1 / 3)], rtol=1e-6)


SHARES = (
  group_filters.keep_top_groups,
  group_filters.keep_top_signal,
  group_filters.keep_top_softmax,
)


class KeepTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_all_signal_and_any_spread_are_the_groups_with_signal(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    signal_M = group_filters.group_has_signal(reward_N, group_N, 6, valid_N)
    for keep, setting in LOOSEST[::2]:
      np.testing.assert_array_equal(
        keep(reward_N, group_N, num_groups=6, valid_N=valid_N, **setting),
        signal_M,
      )

  @pytest.mark.slow
  def test_ties_go_to_the_first(self):
    reward_N, group_N = np.array([0.0, 1.0] * 4), np.arange(8) // 2
    for keep in SHARES:
      keep_M = keep(
        reward_N, group_N, num_groups=4, valid_N=np.ones(8, bool), share=0.5
      )
      np.testing.assert_array_equal(keep_M, [True, True, False, False])

  @pytest.mark.slow
  def test_rounding_breaks_no_tie(self):
    rng = np.random.default_rng(0)
    reward = rng.choice([-0.2, 0.0, 0.3, 1.0], size=7)
    reward_N = np.concatenate([rng.permutation(reward) for _ in range(40)])
    groups = {
      "group_N": np.repeat(np.arange(40), 7),
      "num_groups": 40,
      "valid_N": np.ones(280, bool),
    }
    reward_N = np.asarray(reward_N, np.float32)
    std_M = group_filters.group_std(reward_N, **groups)
    self.assertGreater(len(np.unique(std_M)), 1)  # but for rounding, one
    for keep in SHARES:
      keep_M = keep(reward_N, share=0.49, **groups)
      num_kept = np.sum(keep_M)
      self.assertIn(num_kept, (19, 20))
      np.testing.assert_array_equal(keep_M, np.arange(40) < num_kept)

  @pytest.mark.slow
  def test_a_share_is_of_the_groups_that_are_there(self):
    group_N = np.repeat(np.arange(100), 2)
    for x64 in (False, True):
      # In float64, 0.29 * 100 = 28.999999999999996.
      with jax.enable_x64(x64):
        keep_M = group_filters.keep_top_groups(
          np.arange(200.0) % 2,
          group_N,
          num_groups=150,
          valid_N=np.ones(200, bool),
          share=0.29,
        )
      np.testing.assert_array_equal(keep_M, np.arange(150) < 29)

  def test_all_signal_includes_the_faintest(self):
    keep_M = group_filters.keep_top_signal(
      np.array([0.0, 1e6, 0.0, 1e-3, 0.0, 0.0]),
      np.arange(6) // 2,
      num_groups=3,
      valid_N=np.ones(6, bool),
      share=1.0,
    )
    np.testing.assert_array_equal(keep_M, [True, True, False])

  @parameterized.named_parameters(
    ("half_of_the_groups", [0.5] * 4 + [0.0] * 4, 7, 4),
    ("one_group", [0.0, 0.5] + [0.0] * 6, 8, 1),
    ("no_group", [0.0] * 8, 8, 0),
    # In another unit of reward the softmax is sharp.
    ("one_group_of_large_rewards", [0.0, 50.0] + [0.0] * 6, 1, 1),
  )
  def test_a_softmax_barely_filters(self, std, by_softmax, by_sum):
    """RAGEN's scripts (softmax) and its guide (sum) are two filters."""
    half = np.array(std) / np.sqrt(2)  # of two rewards, so far from their mean
    for keep, number in (
      (group_filters.keep_top_softmax, by_softmax),
      (group_filters.keep_top_signal, by_sum),
    ):
      keep_M = np.asarray(
        keep(
          np.asarray(np.stack([-half, half], axis=1).ravel(), np.float32),
          np.arange(16) // 2,
          num_groups=8,
          valid_N=np.ones(16, bool),
          share=0.9,
        )
      )
      self.assertEqual(int(keep_M.sum()), number)
      # Those that are left out never have more signal than those kept.
      left, kept = np.array(std)[~keep_M], np.array(std)[keep_M]
      self.assertLessEqual(max(left, default=0), min(kept, default=np.inf))

  def test_a_softmax_is_over_the_groups_that_are_there(self):
    keep_M = group_filters.keep_top_softmax(
      np.array([0.0, 1.0, 0.0, 0.0, np.nan, np.nan]),
      np.array([0, 0, 1, 1, 2, 2]),
      num_groups=5,
      valid_N=np.array([True] * 4 + [False] * 2),
      share=0.6,
    )
    np.testing.assert_array_equal(keep_M, [True, False, False, False, False])

  @parameterized.parameters(*LOOSEST)
  def test_groups_with_nan_are_kept(self, keep, settings):
    reward_N = np.array([0.0, 1.0, 0.0, np.nan, 0.0, 3.0])
    keep_M = keep(
      reward_N,
      np.array([0, 0, 1, 1, 2, 2]),
      num_groups=3,
      valid_N=np.ones(6, bool),
      **settings,
    )
    np.testing.assert_array_equal(keep_M, [True, True, True])
