"""Tests of `losses.kl`: estimates, and the direction of their gradients."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.compiled import functions_of, grad, value_and_grad

pytestmark = pytest.mark.smoke

kl = functions_of(losses.kl)
B, T, V = 3, 5, 6


def _log_ratio(seed: int, scale: float = 1.0):
  rng = np.random.default_rng(seed)
  return rng.normal(scale=scale, size=(B, T)).astype(np.float32)


def _divergence(from_logprob_V, to_logprob_V):
  return jnp.sum(jnp.exp(from_logprob_V) * (from_logprob_V - to_logprob_V))


class EstimatorsTest(parameterized.TestCase):
  @hypothesis.settings(deadline=None, database=None, max_examples=30)
  @hypothesis.given(x=st.floats(-20, 20, width=32))
  def test_k2_and_k3_are_never_negative_and_k3_stays_within_its_limit(self, x):
    log_ratio_BT = np.full((1, 1), x)
    self.assertGreaterEqual(kl.k2(log_ratio_BT).item(), 0)
    self.assertGreaterEqual(kl.k3(log_ratio_BT).item(), 0)
    self.assertLessEqual(kl.k3(log_ratio_BT, limit=10.0).item(), 10)

  def test_k3_is_k2_close_by(self):
    # Small enough that exp(-x) - 1 + x would be nothing but rounding.
    log_ratio_BT = _log_ratio(seed=2, scale=1e-4)
    np.testing.assert_allclose(
      kl.k3(log_ratio_BT), kl.k2(log_ratio_BT), rtol=2e-2
    )

  def test_k3_has_no_gradient_at_its_limit(self):
    gradient_BT = grad(lambda x: kl.k3(x, limit=10.0).sum())(
      np.array([[-20.0, -3.0, -1.0, 1.0, 12.0]])
    )
    np.testing.assert_array_equal(
      np.asarray(gradient_BT) != 0, [[False, False, True, True, False]]
    )


class ExpectationTest(parameterized.TestCase):
  """Sums over a whole vocabulary, where sampling leaves no noise."""

  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    policy_V, reference_V = rng.normal(size=(2, V)).astype(np.float32)
    self.policy_V = jnp.asarray(policy_V)
    self.reference_V = jax.nn.log_softmax(reference_V)

  def _expected(self, estimator, logits_V):
    """E over tokens from the policy, which are not differentiated through."""
    logprob_V = jax.nn.log_softmax(logits_V)
    sampled_V = jax.lax.stop_gradient(jnp.exp(logprob_V))
    log_ratio_1V = (logprob_V - self.reference_V)[None]
    return jnp.sum(sampled_V * estimator(log_ratio_1V)[0])

  def test_reverse_kl_is_what_they_estimate_and_descend(self):
    reference_11V = self.reference_V[None, None]

    def reverse(logits_V):
      return kl.reverse_kl(logits_V[None, None], reference_11V)[0, 0]

    value, slope_V = value_and_grad(reverse)(self.policy_V)
    expected = jax.jit(functools.partial(self._expected, kl.k1))
    np.testing.assert_allclose(value, expected(self.policy_V), rtol=1e-5)
    k2_V = grad(lambda z: self._expected(kl.k2, z))(self.policy_V)
    np.testing.assert_allclose(slope_V, k2_V, atol=1e-6)

  def test_reverse_kl_of_excluded_entries(self):
    """As of a smaller vocabulary, in value and gradient."""
    logits_11V, other_11V = (
      self.policy_V[None, None],
      self.reference_V[None, None],
    )
    excluded_11V = logits_11V.at[..., 2:].set(-np.inf)
    both_11V = other_11V.at[..., 2:].set(-np.inf)

    def total(z, q):
      return kl.reverse_kl(z, q, 0.7).sum()

    value, slope = value_and_grad(total)(excluded_11V, both_11V)
    wanted, wanted_slope = value_and_grad(total)(
      logits_11V[..., :2], other_11V[..., :2]
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(slope[..., :2], wanted_slope, atol=1e-6)
    np.testing.assert_array_equal(slope[..., 2:], 0)

  @parameterized.named_parameters(("k1", kl.k1), ("k3", kl.k3))
  def test_k1_and_k3_are_unbiased(self, estimator):
    np.testing.assert_allclose(
      jax.jit(functools.partial(self._expected, estimator))(self.policy_V),
      _divergence(jax.nn.log_softmax(self.policy_V), self.reference_V),
      rtol=1e-5,
    )

  def test_gradients_are_those_the_docstring_promises(self):
    to_reference_V = grad(
      lambda z: _divergence(jax.nn.log_softmax(z), self.reference_V)
    )(self.policy_V)
    from_reference_V = grad(
      lambda z: _divergence(self.reference_V, jax.nn.log_softmax(z))
    )(self.policy_V)
    self.assertGreater(np.abs(to_reference_V - from_reference_V).max(), 1e-2)
    for estimator, expected_V in (
      (kl.k1, np.zeros(V)),
      (kl.k2, to_reference_V),
      (kl.k3, from_reference_V),
      (
        lambda x_1V: kl.with_gradient_of(kl.k3(x_1V), kl.k2(x_1V)),
        to_reference_V,
      ),
    ):
      with self.subTest(estimator.__name__):
        np.testing.assert_allclose(
          grad(functools.partial(self._expected, estimator))(self.policy_V),
          expected_V,
          atol=1e-6,
        )


slope_of_unbiased = grad(lambda x_BT, y_BT: kl.unbiased_kl(x_BT, y_BT).sum())


class UnbiasedTest(parameterized.TestCase):
  def test_keeps_digits_that_the_product_loses(self):
    """The product's gradient is off by 0.1 here, in float32."""
    x_BT = np.array([[-14.7]])
    gradient_BT = slope_of_unbiased(x_BT, np.zeros((1, 1)))
    np.testing.assert_allclose(gradient_BT, x_BT, rtol=1e-6)
    product_BT = grad(lambda x: (jnp.exp(x + 14.7) * kl.k3(x)).sum())(x_BT)
    self.assertGreater(abs(product_BT.item() - x_BT.item()), 1e-2)

  @parameterized.named_parameters(("on_policy", True), ("off_policy", False))
  def test_over_a_vocabulary_it_is_the_divergence_and_its_gradient(
    self, on_policy
  ):
    rng = np.random.default_rng(2)
    logits_V, behavior_V, reference_V = rng.normal(size=(3, V))
    with jax.enable_x64(True):
      reference_V = jax.nn.log_softmax(reference_V)
      behavior_V = jax.nn.log_softmax(logits_V if on_policy else behavior_V)

      def divergence(logits_V):
        return _divergence(jax.nn.log_softmax(logits_V), reference_V)

      def expected(logits_V):
        logprob_V = jax.nn.log_softmax(logits_V)
        estimate_1V = kl.unbiased_kl(
          (logprob_V - reference_V)[None], (logprob_V - behavior_V)[None]
        )
        return jnp.exp(behavior_V) @ estimate_1V[0]

      chex.assert_trees_all_close(
        value_and_grad(expected)(logits_V),
        value_and_grad(divergence)(logits_V),
        atol=1e-12,
      )

  def test_on_policy_it_is_k3_with_the_gradient_of_k2(self):
    x_BT = np.random.default_rng(3).normal(size=(B, T))
    chex.assert_trees_all_close(
      jax.vjp(lambda x: kl.unbiased_kl(x, np.zeros((B, T))), x_BT)[1](x_BT),
      jax.vjp(kl.k2, x_BT)[1](x_BT),
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(x=st.floats(-20, 20), y=st.floats(-20, 20))
  def test_is_never_negative_and_pulls_towards_the_reference(self, x, y):
    x_11, y_11 = np.full((1, 1), x), np.full((1, 1), y)
    self.assertGreaterEqual(kl.unbiased_kl(x_11, y_11).item(), 0)
    self.assertGreaterEqual(slope_of_unbiased(x_11, y_11).item() * x, 0)


class StraightThroughTest(parameterized.TestCase):
  def test_an_infinite_gradient_leaves_the_value_alone(self):
    value, gradient = value_and_grad(
      lambda x: kl.with_gradient_of(jnp.float32(2.0), x)
    )(np.inf)
    self.assertEqual(value, 2)
    self.assertEqual(gradient, 0)

  def test_nan_is_not_hidden(self):
    one, nan = jnp.float32(1), jnp.float32(np.nan)
    self.assertTrue(np.isnan(kl.with_gradient_of(nan, one)))
    self.assertTrue(np.isnan(kl.with_gradient_of(one, nan)))


class PenalisedRewardTest(parameterized.TestCase):
  def test_a_penalty_in_the_reward_descends_the_divergence(self):
    """Sums over a vocabulary: REINFORCE on it is a step on KL(pi || ref)."""
    logits_V, reference_V = np.random.default_rng(7).normal(size=(2, V))
    reference_V = jax.nn.log_softmax(reference_V)

    def divergence(logits_V):
      return _divergence(jax.nn.log_softmax(logits_V), reference_V)

    def policy_gradient(logits_V):
      logprob_V = jax.nn.log_softmax(logits_V)
      reward_1V = kl.kl_penalised_reward(
        np.zeros((1, V)),
        (logprob_V - reference_V)[None],
        np.ones((1, V), bool),
        coefficient=1.0,
      )
      sampled_V = jax.lax.stop_gradient(jnp.exp(logprob_V))
      return -jnp.sum(sampled_V * logprob_V * reward_1V[0])

    np.testing.assert_allclose(
      grad(policy_gradient)(logits_V), grad(divergence)(logits_V), atol=1e-6
    )
