"""Tests of `losses.advantages.step_groups`: steps from the same state."""

import hypothesis
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples
from tests.losses.compiled import compiled, functions_of

N, U = 9, 5
COUNTS = {"num_groups": 4, "num_states": 3}
step_groups = functions_of(losses.advantages.step_groups)
group_advantage = compiled(losses.group_advantage)
discounted_returns = compiled(losses.discounted_returns)


def _steps(seed: int):
  """Three groups and an empty one; off the mask NaN and absurd; one not valid.

  Group 0 earns the same everywhere.
  """
  rng = np.random.default_rng(seed)
  group_N = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
  state_NU = rng.integers(3, size=(N, U))
  reward_NU = rng.choice([-0.2, 0.0, 1.0], size=(N, U)).astype(np.float32)
  reward_NU[:3] = 0.0
  valid_NU = np.arange(U)[None] < rng.integers(1, U + 1, size=(N, 1))
  valid_NU[4] = False
  reward_NU[~valid_NU] = np.nan
  state_NU[~valid_NU] = rng.choice([-5, 99])
  return reward_NU, state_NU, group_N, valid_NU


def _returns(seed: int):
  reward_NU, *rest, valid_NU = _steps(seed)
  return_NU = discounted_returns(reward_NU, valid_NU, discount=0.9)
  return np.where(valid_NU, return_NU, np.nan), *rest, valid_NU


class GigpoAdvantageTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_without_weight_on_steps_it_is_grpo(self):
    reward_NU, state_NU, group_N, valid_NU = _steps(seed=4)
    advantage_NU = step_groups.gigpo_advantage(
      reward_NU,
      state_NU,
      group_N,
      valid_NU=valid_NU,
      discount=0.9,
      step_weight=0.0,
      **COUNTS,
    )
    advantage_N = group_advantage(
      np.sum(reward_NU, axis=1, where=valid_NU),
      group_N,
      num_groups=4,
      valid_N=valid_NU.any(axis=1),
    )
    np.testing.assert_allclose(
      advantage_NU,
      np.where(valid_NU, np.asarray(advantage_N)[:, None], 0),
      atol=1e-6,
    )


class StepAdvantageTest(parameterized.TestCase):
  @pytest.mark.slow
  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_if_no_state_is_special_it_is_grpo_of_steps(self, seed):
    return_NU, state_NU, group_N, valid_NU = _returns(seed)
    size_M = np.bincount(np.repeat(group_N, U)[valid_NU.ravel()], minlength=4)
    valid_NU &= (size_M[group_N] > 1)[:, None]
    step_NU = step_groups.step_advantage(
      return_NU, np.zeros_like(state_NU), group_N, valid_NU=valid_NU, **COUNTS
    )
    np.testing.assert_allclose(
      step_NU.reshape(-1),
      group_advantage(
        return_NU.reshape(-1),
        np.repeat(group_N, U),
        num_groups=4,
        valid_N=valid_NU.reshape(-1),
      ),
      atol=1e-5,
    )

  @pytest.mark.slow
  def test_the_same_number_in_two_groups_names_two_states(self):
    advantage_NU = step_groups.step_advantage(
      np.array([[1.0], [0.0], [7.0], [5.0]]),
      np.zeros((4, 1), int),
      np.array([0, 0, 1, 1]),
      valid_NU=np.ones((4, 1), bool),
      scale_by_std=False,
      **COUNTS,
    )
    np.testing.assert_array_equal(advantage_NU[:, 0], [0.5, -0.5, 1, -1])

  @pytest.mark.slow
  def test_a_step_alone_in_its_state_gets_nothing(self):
    advantage_NU = step_groups.step_advantage(
      np.array([[1.0, 0.3]]),
      np.array([[0, 1]]),
      np.array([0]),
      valid_NU=np.ones((1, 2), bool),
      **COUNTS,
    )
    np.testing.assert_array_equal(advantage_NU, [[0, 0]])

  @pytest.mark.slow
  def test_broken_returns_and_ids_are_not_hidden(self):
    advantage_NU = step_groups.step_advantage(
      np.array([[1.0, np.nan, 0.0, 1.0], [0.5, np.nan, 0.0, 2.0]]),
      np.array([[0, 0, 1, 3], [1, 2, 1, -1]]),
      np.array([0, 1]),
      valid_NU=np.ones((2, 4), bool),
      num_groups=2,
      num_states=3,
    )
    np.testing.assert_array_equal(
      np.isnan(advantage_NU),
      [[True, True, False, True], [False, True, False, True]],
    )
    advantage_NU = step_groups.step_advantage(
      np.array([[1.0, 0.0]] * 2),
      np.zeros((2, 2), int),
      np.array([0, 4]),
      valid_NU=np.ones((2, 2), bool),
      **COUNTS,
    )
    np.testing.assert_array_equal(
      np.isnan(advantage_NU), [[False] * 2, [True] * 2]
    )
