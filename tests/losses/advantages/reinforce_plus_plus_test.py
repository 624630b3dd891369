"""Tests of REINFORCE++ and its variant with a baseline."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from agentrl_jax.losses.advantages import normalisation
from agentrl_jax.losses.advantages.normalisation import task_normalise_weighted
from tests.losses.advantages.random_inputs import (
  random_attempts,
  random_episodes,
)
from tests.reference.advantages import task_moments as reference

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=20
)


class AdvantageTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference_and_hides_nan(self):
    advantage = self.variant(
      functools.partial(
        normalisation.reinforce_plus_plus_advantage, discount=0.9
      )
    )
    batch = random_episodes(seed=0)
    for segment_BT in (batch.segment_BT, None):
      np.testing.assert_allclose(
        advantage(batch.reward_BT, batch.mask_BT, segment_BT=segment_BT),
        reference.reinforce_plus_plus_advantage(
          batch.reward_BT, batch.mask_BT, discount=0.9, segment_BT=segment_BT
        ),
        rtol=1e-5,
        atol=1e-6,
      )

  @pytest.mark.slow
  def test_twelve_digits_in_float64(self):
    batch = random_episodes(seed=1)
    arguments = (batch.reward_BT / np.float64(3), batch.mask_BT)
    with jax.enable_x64(True):
      advantage_BT = normalisation.reinforce_plus_plus_advantage(
        *arguments, discount=0.9
      )
    np.testing.assert_allclose(
      advantage_BT,
      reference.reinforce_plus_plus_advantage(*arguments, discount=0.9),
      rtol=1e-12,
      atol=1e-13,
    )

  @pytest.mark.slow
  def test_nothing_trained_gives_nothing(self):
    for num_rows in (0, 2):
      advantage_BT = normalisation.reinforce_plus_plus_advantage(
        jnp.full((num_rows, 3), jnp.nan),
        jnp.zeros((num_rows, 3), bool),
        discount=1.0,
      )
      np.testing.assert_array_equal(advantage_BT, np.zeros((num_rows, 3)))


class BaselineAdvantageTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference_and_hides_nan(self):
    advantage = self.variant(
      functools.partial(
        normalisation.reinforce_plus_plus_baseline_advantage,
        num_groups=6,
      )
    )
    for seed in range(3):
      reward_N, group_N, valid_N = random_attempts(seed)
      num_tokens_N = np.random.default_rng(seed).integers(1, 9, size=24)
      np.testing.assert_allclose(
        advantage(reward_N, group_N, num_tokens_N, valid_N=valid_N),
        reference.reinforce_plus_plus_baseline_advantage(
          reward_N, group_N, num_tokens_N, valid_N=valid_N
        ),
        rtol=1e-5,
        atol=1e-6,
      )

  @pytest.mark.slow
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_of_one_group_and_task_it_is_the_reward_normalised(self, seed):
    reward_N, _, valid_N = random_attempts(seed)
    num_tokens_N = np.random.default_rng(seed).integers(1, 9, size=24)
    zeros_N = jnp.zeros(24, int)
    np.testing.assert_allclose(
      normalisation.reinforce_plus_plus_baseline_advantage(
        reward_N, zeros_N, num_tokens_N, num_groups=1, valid_N=valid_N
      ),
      task_normalise_weighted(
        reward_N, zeros_N, num_tokens_N, valid_N, num_tasks=1
      ),
      atol=1e-4,
    )

  @pytest.mark.slow
  def test_groups_without_spread_give_exactly_nothing(self):
    advantage_N = normalisation.reinforce_plus_plus_baseline_advantage(
      jnp.array([-0.2] * 7 + [0.7] * 5),
      jnp.array([0] * 7 + [1] * 5),
      jnp.arange(12),
      num_groups=2,
      valid_N=jnp.ones(12, bool),
    )
    np.testing.assert_array_equal(advantage_N, np.zeros(12))
