"""Tests of `losses.advantages.returns` over tokens."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples, random_episodes
from tests.losses.compiled import compiled

discounted_returns, gae = map(compiled, (losses.discounted_returns, losses.gae))


class GaeTest(parameterized.TestCase):
  def test_a_reward_in_bfloat16_is_as_good_as_its_value(self):
    batch = random_episodes(seed=2)
    reward_BT = np.array(batch.reward_BT, jnp.bfloat16)
    advantage_BT, _ = gae(reward_BT, *batch[1:3], discount=0.9, gae_lambda=0.7)
    self.assertEqual(advantage_BT.dtype, jnp.float32)

  @few_examples
  @hypothesis.given(
    seed=st.integers(0, 999), discount=st.sampled_from([0.0, 0.5, 1.0])
  )
  def test_without_trace_decay_it_is_the_return_less_the_value(
    self, seed, discount
  ):
    batch = random_episodes(seed)
    settings = {"discount": discount, "segment_BT": batch.segment_BT}
    advantage_BT, return_BT = gae(*batch[:3], gae_lambda=1.0, **settings)
    plain_BT = discounted_returns(batch.reward_BT, batch.mask_BT, **settings)
    value_BT = np.where(batch.mask_BT, batch.value_BT, 0)
    np.testing.assert_allclose(return_BT, plain_BT, atol=1e-5)
    np.testing.assert_allclose(advantage_BT, plain_BT - value_BT, atol=1e-5)

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_a_critic_that_knows_all_leaves_no_advantage(self, seed):
    batch = random_episodes(seed)
    settings = {"discount": 0.9, "segment_BT": batch.segment_BT}
    return_BT = discounted_returns(batch.reward_BT, batch.mask_BT, **settings)
    advantage_BT, _ = gae(
      batch.reward_BT, return_BT, batch.mask_BT, gae_lambda=0.5, **settings
    )
    np.testing.assert_allclose(advantage_BT, np.zeros((5, 12)), atol=1e-5)

  @pytest.mark.slow
  def test_observations_are_as_if_not_there(self):
    batch = random_episodes(seed=3)
    settings = {"discount": 0.9, "gae_lambda": 0.7}
    found = gae(*batch[:3], segment_BT=batch.segment_BT, **settings)
    for b in range(5):
      at = np.flatnonzero(batch.mask_BT[b])
      row = [x[b : b + 1, at] for x in batch]
      squeezed = gae(*row[:3], segment_BT=row[4], **settings)
      for x_BT, row_BT in zip(found, squeezed, strict=True):
        np.testing.assert_allclose(x_BT[b, at], row_BT[0], atol=1e-6)

  def test_a_broken_value_reaches_its_own_past_only(self):
    value_BT = np.zeros((2, 6), np.float32)
    value_BT[0, 4] = np.nan
    advantage_BT, return_BT = gae(
      np.zeros((2, 6), np.float32),
      value_BT,
      np.ones((2, 6), bool),
      discount=0.9,
      gae_lambda=0.7,
      segment_BT=np.array([[0, 0, 1, 1, 1, 2]] * 2),
    )
    broken_BT = np.zeros((2, 6), bool)
    broken_BT[0, 2:5] = True
    np.testing.assert_array_equal(np.isnan(advantage_BT), broken_BT)
    np.testing.assert_array_equal(np.isnan(return_BT), broken_BT)

  def test_rows_without_tokens_give_nothing(self):
    empty_BT = np.zeros((2, 0))
    for x_BT in gae(
      empty_BT, empty_BT, empty_BT == 0, discount=0.9, gae_lambda=0.7
    ):
      self.assertEqual(x_BT.shape, (2, 0))


class DiscountedReturnsTest(parameterized.TestCase):
  def test_a_worked_example(self):
    return_BT = discounted_returns(
      np.array([[0.0, 9.0, 0.0, 1.0, 2.0]]),
      np.array([[True, False, True, True, True]]),
      discount=0.5,
      segment_BT=np.array([[0, 0, 0, 0, 1]]),
    )
    np.testing.assert_array_equal(return_BT, [[0.25, 0, 0.5, 1, 2]])

  def test_the_discount_may_be_traced(self):
    batch = random_episodes(seed=6)
    traced = jax.jit(
      lambda discount: losses.discounted_returns(
        batch.reward_BT, batch.mask_BT, discount=discount
      )
    )
    np.testing.assert_allclose(
      traced(0.9),
      discounted_returns(batch.reward_BT, batch.mask_BT, discount=0.9),
      rtol=1e-6,
    )
