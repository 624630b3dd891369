"""Tests of REINFORCE++ and its variant with a baseline."""

import hypothesis
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples, random_attempts
from tests.losses.compiled import functions_of

normalisation = functions_of(losses.advantages.normalisation)


class BaselineAdvantageTest(parameterized.TestCase):
  @pytest.mark.slow
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_of_one_group_and_task_it_is_the_reward_normalised(self, seed):
    reward_N, _, valid_N = random_attempts(seed)
    num_tokens_N = np.random.default_rng(seed).integers(1, 9, size=24)
    zeros_N = np.zeros(24, int)
    np.testing.assert_allclose(
      normalisation.reinforce_plus_plus_baseline_advantage(
        reward_N, zeros_N, num_tokens_N, num_groups=1, valid_N=valid_N
      ),
      normalisation.task_normalise_weighted(
        reward_N, zeros_N, num_tokens_N, valid_N, num_tasks=1
      ),
      atol=1e-4,
    )

  @pytest.mark.slow
  def test_groups_without_spread_give_exactly_nothing(self):
    advantage_N = normalisation.reinforce_plus_plus_baseline_advantage(
      np.array([-0.2] * 7 + [0.7] * 5),
      np.array([0] * 7 + [1] * 5),
      np.arange(12),
      num_groups=2,
      valid_N=np.ones(12, bool),
    )
    np.testing.assert_array_equal(advantage_N, np.zeros(12))
