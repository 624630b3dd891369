"""Tests of `losses.supervised`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from agentrl_jax.losses import policy_gradient
from agentrl_jax.losses.logprobs import logits
from tests.reference import finite_difference
from tests.reference import supervised as reference

B, T, V = 2, 4, 5


class NegativeLogLikelihoodTest(chex.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    self.logprob_BT = -rng.exponential(size=(B, T)).astype(np.float32)

  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference(self):
    np.testing.assert_allclose(
      self.variant(policy_gradient.negative_log_likelihood)(self.logprob_BT),
      reference.negative_log_likelihood(self.logprob_BT),
      rtol=1e-6,
    )

  def test_gradient_is_reinforce_on_policy_with_advantage_one(self):
    gradient_BT = jax.grad(
      lambda x: policy_gradient.negative_log_likelihood(x).sum()
    )(self.logprob_BT)
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(
        lambda x: reference.negative_log_likelihood(x).sum(), self.logprob_BT
      ),
      rtol=1e-5,
    )
    reinforce_BT = jax.grad(
      lambda x: policy_gradient.reinforce(x, jnp.ones((B, T))).sum()
    )(jnp.zeros((B, T)))
    np.testing.assert_array_equal(gradient_BT, reinforce_BT)

  def test_its_expectation_under_the_policy_is_the_entropy(self):
    logits_11V = jax.random.normal(jax.random.key(0), (1, 1, V))
    logprob_1V = jax.nn.log_softmax(logits_11V[0])
    np.testing.assert_allclose(
      jnp.sum(
        jnp.exp(logprob_1V)
        * policy_gradient.negative_log_likelihood(logprob_1V)
      ),
      logits.entropy(logits_11V)[0, 0],
      rtol=1e-5,
    )

  def test_refuses_another_rank(self):
    with self.assertRaises(AssertionError):
      policy_gradient.negative_log_likelihood(self.logprob_BT[0])


if __name__ == "__main__":
  absltest.main()
