"""Tests of `losses.kl`: estimates, and what their gradients really descend."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import kl
from tests.reference import finite_difference
from tests.reference import kl as reference

B, T, V = 3, 5, 6
ESTIMATORS = (
  ("k1", kl.k1, reference.k1),
  ("k2", kl.k2, reference.k2),
  ("k3", kl.k3, reference.k3),
  (
    "k3_limited",
    functools.partial(kl.k3, limit=1.0),
    functools.partial(reference.k3, limit=1.0),
  ),
)


def _log_ratio(seed: int, scale: float = 1.0):
  rng = np.random.default_rng(seed)
  return rng.normal(scale=scale, size=(B, T)).astype(np.float32)


def _divergence(from_logprob_V, to_logprob_V):
  return jnp.sum(jnp.exp(from_logprob_V) * (from_logprob_V - to_logprob_V))


class EstimatorsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*ESTIMATORS)
  def test_matches_reference(self, estimator, expected):
    for scale in (1e-4, 1.0, 3.0):
      log_ratio_BT = _log_ratio(seed=0, scale=scale)
      np.testing.assert_allclose(
        self.variant(estimator)(log_ratio_BT),
        expected(log_ratio_BT),
        rtol=1e-5,
        atol=1e-6 * scale,  # exp(-x) - 1 would be off by 6e-8
      )
    with jax.enable_x64(True):
      np.testing.assert_allclose(
        self.variant(estimator)(log_ratio_BT.astype(np.float64)),
        expected(log_ratio_BT),
        rtol=1e-12,
      )

  @parameterized.named_parameters(*ESTIMATORS)
  def test_gradient_matches_finite_differences(self, estimator, expected):
    log_ratio_BT = _log_ratio(seed=1, scale=2.0)
    with jax.enable_x64(True):
      gradient_BT = jax.grad(lambda x: estimator(x).sum())(
        log_ratio_BT.astype(np.float64)
      )
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(lambda x: expected(x).sum(), log_ratio_BT),
      rtol=1e-8,
      atol=1e-8,
    )

  @parameterized.named_parameters(*ESTIMATORS)
  def test_equal_policies_are_at_no_distance(self, estimator, _):
    np.testing.assert_array_equal(estimator(jnp.zeros((B, T))), 0)

  @parameterized.named_parameters(*ESTIMATORS)
  def test_refuses_another_rank(self, estimator, _):
    with self.assertRaises(AssertionError):
      estimator(jnp.zeros(T))

  @hypothesis.settings(deadline=None, database=None, max_examples=30)
  @hypothesis.given(x=st.floats(-20, 20, width=32))
  def test_k2_and_k3_are_never_negative_and_k3_stays_within_its_limit(self, x):
    log_ratio_BT = jnp.full((1, 1), x)
    self.assertGreaterEqual(kl.k2(log_ratio_BT)[0, 0], 0)
    self.assertGreaterEqual(kl.k3(log_ratio_BT)[0, 0], 0)
    self.assertLessEqual(kl.k3(log_ratio_BT, limit=10.0)[0, 0], 10)

  def test_k3_is_k2_close_by(self):
    log_ratio_BT = _log_ratio(seed=2, scale=1e-2)
    np.testing.assert_allclose(
      kl.k3(log_ratio_BT), kl.k2(log_ratio_BT), rtol=2e-2
    )

  def test_k3_has_no_gradient_at_its_limit(self):
    gradient_BT = jax.grad(lambda x: kl.k3(x, limit=10.0).sum())(
      jnp.array([[-20.0, -3.0, -1.0, 1.0, 12.0]])
    )
    np.testing.assert_array_equal(
      gradient_BT != 0, [[False, False, True, True, False]]
    )

  def test_refuses_a_limit_that_is_not_positive(self):
    with self.assertRaisesRegex(ValueError, "limit=0 must be positive"):
      kl.k3(jnp.zeros((B, T)), limit=0)


class ExpectationTest(parameterized.TestCase):
  """Sums over a whole vocabulary, where sampling leaves no noise."""

  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    policy_V, reference_V = rng.normal(size=(2, V)).astype(np.float32)
    self.policy_V = policy_V
    self.reference_V = jax.nn.log_softmax(reference_V)

  def _expected(self, estimator, logits_V):
    """E over tokens from the policy, which are not differentiated through."""
    logprob_V = jax.nn.log_softmax(logits_V)
    sampled_V = jax.lax.stop_gradient(jnp.exp(logprob_V))
    log_ratio_1V = (logprob_V - self.reference_V)[None]
    return jnp.sum(sampled_V * estimator(log_ratio_1V)[0])

  @parameterized.named_parameters(("k1", kl.k1), ("k3", kl.k3))
  def test_k1_and_k3_are_unbiased(self, estimator):
    np.testing.assert_allclose(
      self._expected(estimator, self.policy_V),
      _divergence(jax.nn.log_softmax(self.policy_V), self.reference_V),
      rtol=1e-5,
    )

  def test_gradients_are_those_the_docstring_promises(self):
    def gradient(function):
      return jax.grad(function)(self.policy_V)

    to_reference_V = gradient(
      lambda z: _divergence(jax.nn.log_softmax(z), self.reference_V)
    )
    from_reference_V = gradient(
      lambda z: _divergence(self.reference_V, jax.nn.log_softmax(z))
    )
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
          gradient(functools.partial(self._expected, estimator)),
          expected_V,
          atol=1e-6,
        )


if __name__ == "__main__":
  absltest.main()
