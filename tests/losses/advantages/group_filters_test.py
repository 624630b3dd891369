"""Tests of `losses.advantages.group_filters`."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax.losses.advantages import group_advantages, group_filters
from tests.losses.advantages.random_inputs import few_examples, random_attempts

# For properties, of which many batches are tried: compiled once.
compiled_has_signal, compiled_advantage = (
  jax.jit(function, static_argnames="num_groups")
  for function in (
    group_filters.group_has_signal,
    group_advantages.group_advantage,
  )
)
compiled_loosest = tuple(
  jax.jit(functools.partial(keep, **setting), static_argnames="num_groups")
  for keep, setting in (
    (group_filters.keep_groups_above, {"threshold": 0.0}),
    (group_filters.keep_top_signal, {"share": 1.0}),
  )
)


class GroupHasSignalTest(parameterized.TestCase):
  def test_alone_empty_equal_and_unequal(self):
    signal_M = group_filters.group_has_signal(
      jnp.array([1.0, 0.3, 0.3, 1.0, 0.0, 0.0]),
      jnp.array([0, 2, 2, 3, 3, 4]),
      5,
      jnp.ones(6, bool),
    )
    np.testing.assert_array_equal(signal_M, [False, False, False, True, False])

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_is_where_some_advantage_of_a_real_group_is_not_zero(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    advantage_N = np.asarray(
      compiled_advantage(reward_N, group_N, num_groups=6, valid_N=valid_N)
    )
    signal_M = compiled_has_signal(reward_N, group_N, 6, valid_N)
    for group in range(6):
      members = advantage_N[(group_N == group) & valid_N]
      if len(members) > 1:
        self.assertEqual(bool(signal_M[group]), bool(members.any()))


class GroupStdTest(parameterized.TestCase):
  @parameterized.parameters(1e-30, 1.0, 1e20, 1e38)
  def test_the_square_of_a_reward_may_exceed_float32(self, unit):
    std_M = group_filters.group_std(
      unit * jnp.array([1.0, 0.0, 0.0, 1.0]),
      jnp.zeros(4, int),
      num_groups=1,
      valid_N=jnp.ones(4, bool),
    )
    np.testing.assert_allclose(std_M, unit * np.sqrt(1 / 3), rtol=1e-6)


loosest = parameterized.parameters(
  (group_filters.keep_groups_above, {"threshold": 0.0}),
  (group_filters.keep_top_groups, {"share": 1.0}),
  (group_filters.keep_top_signal, {"share": 1.0}),
  (group_filters.keep_top_softmax, {"share": 1.0}),
)
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
    signal_M = compiled_has_signal(reward_N, group_N, 6, valid_N)
    for keep in compiled_loosest:
      np.testing.assert_array_equal(
        keep(reward_N, group_N, num_groups=6, valid_N=valid_N), signal_M
      )

  @pytest.mark.slow
  def test_ties_go_to_the_first(self):
    reward_N, group_N = jnp.array([0.0, 1.0] * 4), jnp.arange(8) // 2
    for keep in SHARES:
      keep_M = keep(
        reward_N, group_N, num_groups=4, valid_N=jnp.ones(8, bool), share=0.5
      )
      np.testing.assert_array_equal(keep_M, [True, True, False, False])

  @pytest.mark.slow
  def test_rounding_breaks_no_tie(self):
    rng = np.random.default_rng(0)
    reward = rng.choice([-0.2, 0.0, 0.3, 1.0], size=7)
    reward_N = np.concatenate([rng.permutation(reward) for _ in range(40)])
    groups = {
      "group_N": jnp.repeat(jnp.arange(40), 7),
      "num_groups": 40,
      "valid_N": jnp.ones(280, bool),
    }
    reward_N = jnp.asarray(reward_N, jnp.float32)
    std_M = group_filters.group_std(reward_N, **groups)
    self.assertGreater(len(np.unique(std_M)), 1)  # but for rounding, one
    for keep in SHARES:
      keep_M = keep(reward_N, share=0.49, **groups)
      num_kept = int(keep_M.sum())
      self.assertIn(num_kept, (19, 20))
      np.testing.assert_array_equal(keep_M, np.arange(40) < num_kept)

  @pytest.mark.slow
  def test_a_share_is_of_the_groups_that_are_there(self):
    group_N = jnp.repeat(jnp.arange(100), 2)
    for x64 in (False, True):
      # In float64, 0.29 * 100 = 28.999999999999996.
      with jax.enable_x64(x64):
        keep_M = group_filters.keep_top_groups(
          jnp.arange(200.0) % 2,
          group_N,
          num_groups=150,
          valid_N=jnp.ones(200, bool),
          share=0.29,
        )
      np.testing.assert_array_equal(keep_M, np.arange(150) < 29)

  def test_all_signal_includes_the_faintest(self):
    keep_M = group_filters.keep_top_signal(
      jnp.array([0.0, 1e6, 0.0, 1e-3, 0.0, 0.0]),
      jnp.arange(6) // 2,
      num_groups=3,
      valid_N=jnp.ones(6, bool),
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
      keep_M = keep(
        jnp.asarray(np.stack([-half, half], axis=1).ravel(), jnp.float32),
        jnp.arange(16) // 2,
        num_groups=8,
        valid_N=jnp.ones(16, bool),
        share=0.9,
      )
      self.assertEqual(int(keep_M.sum()), number)
      # Those that are left out never have more signal than those kept.
      left, kept = np.array(std)[~keep_M], np.array(std)[keep_M]
      self.assertLessEqual(max(left, default=0), min(kept, default=np.inf))

  def test_a_softmax_is_over_the_groups_that_are_there(self):
    keep_M = group_filters.keep_top_softmax(
      jnp.array([0.0, 1.0, 0.0, 0.0, jnp.nan, jnp.nan]),
      jnp.array([0, 0, 1, 1, 2, 2]),
      num_groups=5,
      valid_N=jnp.array([True] * 4 + [False] * 2),
      share=0.6,
    )
    np.testing.assert_array_equal(keep_M, [True, False, False, False, False])

  @loosest
  def test_groups_with_nan_are_kept(self, keep, settings):
    reward_N = jnp.array([0.0, 1.0, 0.0, jnp.nan, 0.0, 3.0])
    keep_M = keep(
      reward_N,
      jnp.array([0, 0, 1, 1, 2, 2]),
      num_groups=3,
      valid_N=jnp.ones(6, bool),
      **settings,
    )
    np.testing.assert_array_equal(keep_M, [True, True, True])
