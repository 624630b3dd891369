"""Tests of `losses.value`: the critic's loss and explained variance."""

import functools

import chex
import hypothesis
import numpy as np
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.compiled import functions_of, grad, value_and_grad
from tests.reference import value as reference

value = functions_of(losses.value)
B, T = 4, 5
ALL = np.ones((B, T), bool)


def _critic(seed: int):
  """(value, old value, return, mask); NaN off the mask."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  arrays = rng.normal(size=(3, B, T))
  return *(np.where(mask_BT, x_BT, np.nan) for x_BT in arrays), mask_BT


slope_of_loss = grad(
  lambda *arrays: value.clipped_value_loss(*arrays, clip=0.2).sum()
)


class ClippedValueLossTest(parameterized.TestCase):
  def test_before_the_first_step_the_clip_changes_nothing(self):
    value_BT, _, return_BT, _ = (np.nan_to_num(x) for x in _critic(seed=3))
    chex.assert_trees_all_equal(
      *(
        value_and_grad(
          lambda v, clip=clip: value.clipped_value_loss(
            v, value_BT, return_BT, ALL, clip=clip
          ).sum()
        )(value_BT)
        for clip in (0.1, None)
      )
    )

  @parameterized.named_parameters(
    ("near", 0.1, -0.9),
    ("towards_the_return_beyond_the_clip", 0.5, 0.0),
    ("away_from_the_return", -0.5, -1.5),
    ("far_past_the_return", 3.0, 2.0),
  )
  def test_gradient_stops_only_where_the_step_was_taken(self, moved, slope):
    one_BT = np.ones((1, 1))
    gradient_BT = slope_of_loss(moved * one_BT, 0 * one_BT, one_BT, one_BT == 1)
    np.testing.assert_allclose(gradient_BT, [[slope]], atol=1e-6)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(
    numbers=st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3)
  )
  def test_is_never_less_than_half_the_squared_error(self, numbers):
    arrays = [np.full((1, 1), x, np.float32) for x in numbers]
    arrays.append(np.ones((1, 1), bool))
    self.assertGreaterEqual(
      value.clipped_value_loss(*arrays, clip=0.5).item(),
      value.clipped_value_loss(*arrays, clip=None).item(),
    )


class ExplainedVarianceTest(parameterized.TestCase):
  def test_micro_batches_add_up_even_far_from_zero(self):
    value_BT, _, return_BT, mask_BT = _critic(seed=5)
    # float32 squares of a thousand have no digits left for a variance of 1
    batch = [x.astype(np.float32) for x in (value_BT + 1e3, return_BT + 1e3)]
    parts = [
      value.explained_variance(
        *(x[b : b + 1] for x in batch), mask_BT[b : b + 1]
      )
      for b in range(B)
    ]
    np.testing.assert_allclose(
      functools.reduce(value.ExplainedVariance.__add__, parts).value(),
      reference.explained_variance(*batch, mask_BT),
      rtol=1e-3,
    )

  def test_one_for_a_perfect_critic_and_nothing_for_one_that_knows_the_mean(
    self,
  ):
    return_BT = np.random.default_rng(6).normal(size=(B, T))
    mask_BT = np.ones((B, T), bool)
    for value_BT, expected in (
      (return_BT, 1),
      (return_BT + 5, 1),
      (np.zeros((B, T)), 0),
      (2 * return_BT, 0),
      (-return_BT, -3),
    ):
      explained = value.explained_variance(value_BT, return_BT, mask_BT)
      np.testing.assert_allclose(explained.value(), expected, atol=1e-5)

  @parameterized.parameters((B, False), (0, True), (1, True))
  def test_returns_that_do_not_vary_cannot_be_explained(self, rows, trained):
    explained = value.explained_variance(
      np.zeros((rows, T)), np.ones((rows, T)), np.full((rows, T), trained)
    )
    self.assertEqual((explained + explained).value(), 0)
