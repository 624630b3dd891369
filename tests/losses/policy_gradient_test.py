"""Tests of `losses.policy_gradient` against papers, limits and invariances."""

import functools
import math

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import policy_gradient
from tests.reference import finite_difference
from tests.reference import policy_gradient as reference

B, T = 3, 7
SETTINGS = (
  ("ppo", dict(clip_low=0.2, clip_high=0.2)),
  ("clip_higher", dict(clip_low=0.2, clip_high=0.28)),
  ("narrow", dict(clip_low=1e-3, clip_high=1e-3)),
  ("agentrl", dict(clip_low=0.2, clip_high=0.2, dual_clip=3.0)),
)


def _inputs(seed: int, scale: float = 0.8):
  rng = np.random.default_rng(seed)
  log_ratio_BT = rng.normal(scale=scale, size=(B, T)).astype(np.float32)
  advantage_BT = rng.normal(size=(B, T)).astype(np.float32)
  return log_ratio_BT, advantage_BT


def _gradient(loss, log_ratio_BT, advantage_BT):
  def total(log_ratio_BT):
    return loss(log_ratio_BT, advantage_BT).sum()

  return jax.grad(total)(log_ratio_BT)


class ReinforceTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference(self):
    inputs = _inputs(seed=0)
    np.testing.assert_allclose(
      self.variant(policy_gradient.reinforce)(*inputs),
      reference.reinforce(*inputs),
      rtol=1e-5,
    )

  def test_gradient_weighs_the_advantage_by_the_ratio(self):
    log_ratio_BT, advantage_BT = _inputs(seed=1)
    gradient_BT = _gradient(
      policy_gradient.reinforce, log_ratio_BT, advantage_BT
    )
    np.testing.assert_allclose(
      gradient_BT, -np.exp(log_ratio_BT) * advantage_BT, rtol=1e-5
    )
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(
        lambda x: reference.reinforce(x, advantage_BT).sum(), log_ratio_BT
      ),
      rtol=1e-4,
    )

  def test_advantage_is_a_constant(self):
    log_ratio_BT, advantage_BT = _inputs(seed=2)
    gradient_BT = jax.grad(
      lambda a: policy_gradient.reinforce(log_ratio_BT, a).sum()
    )(advantage_BT)
    np.testing.assert_array_equal(gradient_BT, np.zeros((B, T)))


class ClippedSurrogateTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*SETTINGS)
  def test_matches_reference(self, settings):
    loss = functools.partial(policy_gradient.clipped_surrogate, **settings)
    inputs = _inputs(seed=0)
    np.testing.assert_allclose(
      self.variant(loss)(*inputs),
      reference.clipped_surrogate(*inputs, **settings),
      rtol=1e-5,
    )

  @parameterized.named_parameters(*SETTINGS)
  def test_gradient_matches_finite_differences(self, settings):
    log_ratio_BT, advantage_BT = _inputs(seed=1)
    np.testing.assert_allclose(
      _gradient(
        functools.partial(policy_gradient.clipped_surrogate, **settings),
        log_ratio_BT,
        advantage_BT,
      ),
      finite_difference.gradient(
        lambda x: reference.clipped_surrogate(
          x, advantage_BT, **settings
        ).sum(),
        log_ratio_BT,
      ),
      rtol=1e-4,
      atol=1e-6,
    )

  @parameterized.named_parameters(*SETTINGS)
  def test_on_policy_gradient_is_reinforce(self, settings):
    _, advantage_BT = _inputs(seed=2)
    on_policy_BT = jnp.zeros((B, T))
    np.testing.assert_allclose(
      _gradient(
        functools.partial(policy_gradient.clipped_surrogate, **settings),
        on_policy_BT,
        advantage_BT,
      ),
      _gradient(policy_gradient.reinforce, on_policy_BT, advantage_BT),
      rtol=1e-6,
    )

  @parameterized.named_parameters(
    ("good_token_already_likelier", 1.0, 1.0, True),
    ("good_token_made_rarer", -1.0, 1.0, False),
    ("good_token_far_likelier", 2.0, 1.0, True),
    ("bad_token_already_rarer", -1.0, -1.0, True),
    ("bad_token_made_likelier", 1.0, -1.0, False),
    ("bad_token_beyond_the_dual_clip", 1.2, -1.0, True),
  )
  def test_gradient_stops_only_where_the_step_was_taken(
    self, log_ratio, advantage, stops
  ):
    gradient = _gradient(
      functools.partial(
        policy_gradient.clipped_surrogate,
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
      ),
      jnp.full((1, 1), log_ratio),
      jnp.full((1, 1), advantage),
    )
    expected = 0.0 if stops else -advantage * math.exp(log_ratio)
    np.testing.assert_allclose(gradient, [[expected]], rtol=1e-5)

  def test_at_the_very_bound_the_gradient_is_still_whole(self):
    log_ratio_BT = jnp.array([[0.5, -0.5]])
    ratio_BT = jnp.exp(log_ratio_BT)
    gradient_BT = _gradient(
      functools.partial(
        policy_gradient.clipped_surrogate,
        clip_low=1 - ratio_BT[0, 1],
        clip_high=ratio_BT[0, 0] - 1,
      ),
      log_ratio_BT,
      jnp.array([[1.0, -1.0]]),
    )
    np.testing.assert_allclose(gradient_BT, ratio_BT * jnp.array([[-1, 1]]))

  def test_dual_clip_touches_only_bad_tokens_made_much_likelier(self):
    log_ratio_BT, advantage_BT = _inputs(seed=3, scale=2.0)
    clipped = functools.partial(
      policy_gradient.clipped_surrogate, clip_low=0.2, clip_high=0.2
    )
    changed_BT = clipped(log_ratio_BT, advantage_BT, dual_clip=3.0) != clipped(
      log_ratio_BT, advantage_BT
    )
    expected_BT = (advantage_BT < 0) & (np.exp(log_ratio_BT) > 3)
    self.assertTrue(expected_BT.any())
    np.testing.assert_array_equal(changed_BT, expected_BT)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_is_pessimistic_and_dual_clip_bounded(self, seed):
    log_ratio_BT, advantage_BT = _inputs(seed, scale=2.0)
    clipped = functools.partial(
      policy_gradient.clipped_surrogate, clip_low=0.2, clip_high=0.28
    )
    loss_BT = np.asarray(clipped(log_ratio_BT, advantage_BT))
    reinforce_BT = policy_gradient.reinforce(log_ratio_BT, advantage_BT)
    self.assertTrue((loss_BT >= reinforce_BT).all())
    dual_BT = np.asarray(clipped(log_ratio_BT, advantage_BT, dual_clip=3.0))
    self.assertTrue((dual_BT <= loss_BT).all())
    self.assertTrue((dual_BT <= 3.0 * np.abs(advantage_BT)).all())

  def test_bounds_that_never_bind_leave_reinforce(self):
    inputs = _inputs(seed=4)
    np.testing.assert_allclose(
      policy_gradient.clipped_surrogate(
        *inputs, clip_low=0.999, clip_high=1e3, dual_clip=1e4
      ),
      policy_gradient.reinforce(*inputs),
      rtol=1e-6,
    )

  def test_extreme_ratios_keep_gradients_finite(self):
    log_ratio_BT = jnp.array([[20.0, 20.0, 20.0, -20.0, -20.0, -20.0]])
    advantage_BT = jnp.array([[1.0, -1.0, 0.0, 1.0, -1.0, 0.0]])
    for loss in (
      policy_gradient.reinforce,
      functools.partial(
        policy_gradient.clipped_surrogate,
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
      ),
    ):
      gradient_BT = _gradient(loss, log_ratio_BT, advantage_BT)
      self.assertTrue(np.isfinite(gradient_BT).all())

  def test_advantage_is_a_constant(self):
    log_ratio_BT, advantage_BT = _inputs(seed=5)
    gradient_BT = jax.grad(
      lambda a: policy_gradient.clipped_surrogate(
        log_ratio_BT, a, clip_low=0.2, clip_high=0.2, dual_clip=3.0
      ).sum()
    )(advantage_BT)
    np.testing.assert_array_equal(gradient_BT, np.zeros((B, T)))

  def test_refuses_advantages_of_another_shape(self):
    log_ratio_BT, advantage_BT = _inputs(seed=6)
    with self.assertRaises(AssertionError):
      policy_gradient.reinforce(log_ratio_BT, advantage_BT[:1])
    with self.assertRaises(AssertionError):
      policy_gradient.clipped_surrogate(
        log_ratio_BT, advantage_BT[:1], clip_low=0.2, clip_high=0.2
      )


if __name__ == "__main__":
  absltest.main()
