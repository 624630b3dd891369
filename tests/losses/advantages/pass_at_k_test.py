"""Tests of `pass_at_k`: closed forms against all teams, enumerated."""

import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples, random_attempts
from tests.losses.compiled import functions_of, grad

pass_at_k = functions_of(losses.advantages.pass_at_k)
group_advantages = functions_of(losses.advantages.group_advantages)


def _successes(seed: int):
  reward_N, group_N, valid_N = random_attempts(seed)
  return reward_N > 0.5, group_N, valid_N


class PassAtKAdvantageTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_teams_of_one_are_grpo(self, seed):
    success_N, group_N, valid_N = _successes(seed)
    size_M = np.bincount(group_N[valid_N], minlength=6)
    valid_N &= size_M[group_N] > 1  # alone, an attempt of GRPO keeps its reward
    np.testing.assert_allclose(
      pass_at_k.pass_at_k_advantage(
        success_N, group_N, num_groups=6, valid_N=valid_N, k=1
      ),
      group_advantages.group_advantage(
        success_N, group_N, num_groups=6, valid_N=valid_N, ddof=0, epsilon=0.0
      ),
      atol=1e-5,
    )

  @pytest.mark.slow
  def test_large_groups_do_not_overflow(self):
    success_N = np.arange(512) < 1
    advantage_N = pass_at_k.pass_at_k_advantage(
      success_N,
      np.zeros(512, int),
      num_groups=1,
      valid_N=np.ones(512, bool),
      k=256,
    )
    # Half of the teams have the one success: p = 1/2, sigma = 1/2.
    np.testing.assert_allclose(advantage_N[0], 1.0, rtol=1e-4)
    np.testing.assert_allclose(advantage_N[1:], -1 / 511, rtol=1e-2)

  def test_an_attempt_of_no_group_is_nan(self):
    success_N = np.array([True, False, True])
    advantage_N = pass_at_k.pass_at_k_advantage(
      success_N,
      np.array([0, 0, 5]),
      num_groups=2,
      valid_N=np.ones(3, bool),
      k=1,
    )
    np.testing.assert_array_equal(np.isnan(advantage_N), [False, False, True])


class MaxAtKAdvantageTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_teams_of_all_reward_the_best_only(self, seed):
    reward_N, group_N, valid_N = random_attempts(seed)
    settings = {"num_groups": 6, "valid_N": valid_N}
    np.testing.assert_allclose(
      pass_at_k.max_at_k_advantage(reward_N, group_N, k=24, **settings),
      group_advantages.best_of_group_advantage(
        reward_N, group_N, scale_by_std=False, **settings
      ),
      atol=1e-6,
    )

  @pytest.mark.slow
  def test_estimates_the_gradient_of_the_best_of_k_without_bias(self):
    # A policy of three answers; all 3^4 groups of four attempts, weighted.
    reward_3 = np.array([0.0, 0.3, 1.0])

    def best_of_two(logit_3):
      p_3 = jax.nn.softmax(logit_3)
      best_33 = jnp.maximum(reward_3[:, None], reward_3[None])
      return jnp.sum(p_3[:, None] * p_3[None] * best_33)

    logit_3 = np.array([0.2, -0.4, 0.5])
    answer_GN = np.array(list(itertools.product(range(3), repeat=4)))
    group_GN = np.broadcast_to(np.arange(81)[:, None], (81, 4))
    advantage_GN = pass_at_k.max_at_k_advantage(
      reward_3[answer_GN.reshape(-1)],
      np.array(group_GN.reshape(-1)),
      num_groups=81,
      valid_N=np.ones(324, bool),
      k=2,
    ).reshape(81, 4)

    def surrogate(logit_3):
      logprob_GN = jax.nn.log_softmax(logit_3)[answer_GN]
      probability_G = jax.lax.stop_gradient(jnp.exp(logprob_GN.sum(axis=1)))
      return jnp.sum(probability_G * jnp.sum(advantage_GN * logprob_GN, axis=1))

    np.testing.assert_allclose(
      grad(surrogate)(logit_3), grad(best_of_two)(logit_3), atol=1e-6
    )

  @pytest.mark.slow
  def test_other_groups_leave_no_rounding_behind(self):
    reward_N = np.array([1e6, -1e6, 1.0, 0.75])
    advantage_N = pass_at_k.max_at_k_advantage(
      reward_N,
      np.array([0, 0, 1, 1]),
      num_groups=2,
      valid_N=np.ones(4, bool),
      k=2,
    )
    np.testing.assert_array_equal(advantage_N[2:], [0.25, 0])

  def test_broken_rewards_and_ids_are_not_hidden(self):
    for place in range(3):
      reward_N = np.ones(6, np.float32)
      reward_N[place] = np.nan
      advantage_N = pass_at_k.max_at_k_advantage(
        reward_N,
        np.array([0, 0, 0, 1, 1, 7]),
        num_groups=2,
        valid_N=np.ones(6, bool),
        k=2,
      )
      np.testing.assert_array_equal(
        np.isnan(advantage_N), [True, True, True, False, False, True]
      )
