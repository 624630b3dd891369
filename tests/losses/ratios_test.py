"""Tests of `losses.ratios`: what it masks, bounds and differentiates."""

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import ratios
from tests.reference import finite_difference
from tests.reference import ratios as reference

B, T = 3, 6


def _inputs(seed: int):
  """NaN wherever the mask is off; the last row is all off."""
  rng = np.random.default_rng(seed)
  policy_BT, behavior_BT = rng.normal(-2, 1, size=(2, B, T)).astype(np.float32)
  mask_BT = rng.random((B, T)) < 0.6
  mask_BT[-1] = False
  assert mask_BT.any()
  policy_BT[~mask_BT] = np.nan
  behavior_BT[~mask_BT] = np.nan
  return policy_BT, behavior_BT, mask_BT


class LogRatioTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference_and_hides_nan(self):
    inputs = _inputs(seed=0)
    np.testing.assert_allclose(
      self.variant(ratios.log_ratio)(*inputs),
      reference.log_ratio(*inputs),
      atol=1e-6,
    )

  @chex.variants(with_jit=True, without_jit=True)
  def test_gradient_is_the_mask(self):
    policy_BT, behavior_BT, mask_BT = _inputs(seed=1)

    def total(policy_BT, behavior_BT):
      return jnp.exp(ratios.log_ratio(policy_BT, behavior_BT, mask_BT)).sum()

    to_policy_BT, to_behavior_BT = self.variant(
      jax.grad(total, argnums=(0, 1))
    )(policy_BT, behavior_BT)
    difference_BT = np.where(mask_BT, policy_BT - behavior_BT, 0)
    np.testing.assert_allclose(
      to_policy_BT, np.where(mask_BT, np.exp(difference_BT), 0), rtol=1e-5
    )
    np.testing.assert_array_equal(to_behavior_BT, np.zeros((B, T)))

  def test_gradient_matches_finite_differences(self):
    policy_BT, behavior_BT, mask_BT = _inputs(seed=2)
    policy_BT[~mask_BT] = 0.0  # NaN has no neighbours to compare
    weight_BT = np.random.default_rng(3).normal(size=(B, T))

    def weighted(log_ratio, policy_BT):
      return (weight_BT * log_ratio(policy_BT, behavior_BT, mask_BT)).sum()

    np.testing.assert_allclose(
      jax.grad(lambda x: weighted(ratios.log_ratio, x))(policy_BT),
      finite_difference.gradient(
        lambda x: weighted(reference.log_ratio, x), policy_BT
      ),
      atol=1e-5,
    )

  @parameterized.parameters(
    (0.0, -60.0, 20.0),
    (0.0, -np.inf, 20.0),
    (-60.0, 0.0, -20.0),
    (-np.inf, -1.0, -20.0),
  )
  def test_holds_the_extremes_and_stops_their_gradient(
    self, policy, behavior, expected
  ):
    def log_ratio(policy):
      return ratios.log_ratio(
        jnp.full((1, 1), policy),
        jnp.full((1, 1), behavior),
        jnp.ones((1, 1), bool),
      )[0, 0]

    value, gradient = jax.value_and_grad(log_ratio)(policy)
    self.assertEqual(value, expected)
    self.assertEqual(gradient, 0)

  def test_limit_can_be_moved(self):
    log_ratio_BT = ratios.log_ratio(
      jnp.array([[5.0, -5.0, 1.0]]),
      jnp.zeros((1, 3)),
      jnp.ones((1, 3), bool),
      limit=2.0,
    )
    np.testing.assert_array_equal(log_ratio_BT, [[2, -2, 1]])

  def test_without_a_limit_nothing_is_held(self):
    policy_BT = jnp.array([[90.0, -90.0]])
    for limit in (None, np.inf):
      value_BT, gradient_BT = jax.value_and_grad(
        lambda x, limit=limit: (
          ratios.log_ratio(
            x, jnp.zeros((1, 2)), jnp.ones((1, 2), bool), limit=limit
          )[0]
          @ jnp.array([1.0, 2.0])
        )
      )(policy_BT)
      self.assertEqual(value_BT, -90.0)
      np.testing.assert_array_equal(gradient_BT, [[1, 2]])

  def test_the_limit_itself_still_has_its_gradient(self):
    gradient_BT = jax.grad(
      lambda x: ratios.log_ratio(
        x, jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
      ).sum()
    )(jnp.array([[20.0, -20.0]]))
    np.testing.assert_array_equal(gradient_BT, [[1, 1]])

  def test_nan_on_the_mask_is_not_hidden(self):
    policy_BT, behavior_BT, mask_BT = _inputs(seed=4)
    log_ratio_BT = ratios.log_ratio(
      policy_BT, behavior_BT, np.ones_like(mask_BT)
    )
    np.testing.assert_array_equal(np.isnan(log_ratio_BT), ~mask_BT)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_swapping_policies_turns_the_sign(self, seed):
    policy_BT, behavior_BT, mask_BT = _inputs(seed)
    np.testing.assert_array_equal(
      ratios.log_ratio(policy_BT, behavior_BT, mask_BT),
      -ratios.log_ratio(behavior_BT, policy_BT, mask_BT),
    )

  def test_subtracts_in_float32(self):
    # In bfloat16 their difference would be rounded to 8 bits.
    policy_BT = jnp.full((1, 1), -1.0078125, jnp.bfloat16)
    behavior_BT = jnp.full((1, 1), -130.0, jnp.bfloat16)
    log_ratio_BT = ratios.log_ratio(
      policy_BT, behavior_BT, jnp.ones((1, 1), bool), limit=1000.0
    )
    self.assertEqual(log_ratio_BT.dtype, jnp.float32)
    self.assertEqual(log_ratio_BT[0, 0], 130 - 1.0078125)

  def test_refuses_a_mask_that_is_not_bool(self):
    policy_BT, behavior_BT, mask_BT = _inputs(seed=5)
    with self.assertRaises(AssertionError):
      ratios.log_ratio(policy_BT, behavior_BT, mask_BT.astype(np.float32))


if __name__ == "__main__":
  absltest.main()
