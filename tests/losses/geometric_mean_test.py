"""Tests of `losses.geometric_mean`: GMPO."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import policy_gradient, ratios, reductions
from tests.reference import finite_difference
from tests.reference import policy_gradient as reference

B, T = 4, 6
SEGMENTS = np.sort(
  np.random.default_rng(9).integers(-1, 3, size=(B, T)), axis=1
).astype(np.int32)
SETTINGS = (
  ("as_published", {}),
  ("narrow", dict(clip_low=0.05, clip_high=0.1)),
  ("packed", dict(segment_BT=SEGMENTS, num_segments=2)),
)


def _batch(seed: int):
  """(log-ratio, advantage, mask), NaN off the mask; one advantage per row."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  advantage_B1 = np.array([[1.0], [-2.0], [0.5], [3.0]])
  log_ratio_BT = rng.normal(scale=0.5, size=(B, T))
  return (
    np.where(mask_BT, log_ratio_BT, np.nan),
    np.where(mask_BT, advantage_B1, np.nan),
    mask_BT,
  )


class GMPOTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*SETTINGS)
  def test_matches_reference(self, settings):
    *arrays, mask_BT = _batch(seed=0)
    loss = functools.partial(policy_gradient.gmpo, **settings)
    with jax.enable_x64(True):
      loss_BT = np.asarray(self.variant(loss)(*arrays, mask_BT))
    expected_BT = reference.gmpo(*arrays, mask_BT, **settings)
    counted_BT = mask_BT & (expected_BT != 0)
    np.testing.assert_allclose(
      loss_BT[counted_BT], expected_BT[counted_BT], rtol=1e-13
    )

  @parameterized.named_parameters(*SETTINGS)
  def test_gradient_matches_finite_differences_and_hides_nan(self, settings):
    log_ratio_BT, advantage_BT, mask_BT = _batch(seed=1)
    segment_BT = settings.get("segment_BT", np.zeros((B, T), np.int32))
    num_segments = settings.get("num_segments", 1)

    def mean(log_ratio_BT, advantage_BT):
      loss_BT = policy_gradient.gmpo(
        ratios.log_ratio(log_ratio_BT, jnp.zeros((B, T)), mask_BT),
        advantage_BT,
        mask_BT,
        **settings,
      )
      return reductions.segment_mean(
        loss_BT, mask_BT, segment_BT, num_segments
      ).value()

    def expected(log_ratio_BT):
      loss_BT = reference.gmpo(log_ratio_BT, advantage_BT, mask_BT, **settings)
      sequences = reference.ratios.sequences(mask_BT, segment_BT, num_segments)
      return np.mean([loss_BT[places[0]] for places in sequences.values()])

    with jax.enable_x64(True):
      gradient_BT, to_advantage_BT = jax.grad(mean, argnums=(0, 1))(
        log_ratio_BT, advantage_BT
      )
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(expected, np.nan_to_num(log_ratio_BT)),
      atol=1e-8,
    )
    np.testing.assert_array_equal(to_advantage_BT, np.zeros((B, T)))

  def test_a_sequence_of_one_token_is_clipped_reinforce(self):
    log_ratio_BT = jnp.linspace(-1, 1, 12).reshape(12, 1)
    advantage_BT = jnp.tile(jnp.array([[1.0], [-1.0]]), (6, 1))
    bounds = dict(clip_low=float(1 - np.exp(-0.4)), clip_high=np.exp(0.4) - 1)
    np.testing.assert_allclose(
      policy_gradient.gmpo(log_ratio_BT, advantage_BT, jnp.ones((12, 1), bool)),
      policy_gradient.clipped_surrogate(log_ratio_BT, advantage_BT, **bounds),
      rtol=1e-6,
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_on_policy_gradient_is_reinforce(self, seed):
    _, advantage_BT, mask_BT = _batch(seed)

    def gradient(loss):
      return jax.grad(
        lambda x: reductions.sequence_mean(loss(x), mask_BT).value()
      )(jnp.zeros((B, T)))

    np.testing.assert_allclose(
      np.where(
        mask_BT,
        gradient(lambda x: policy_gradient.gmpo(x, advantage_BT, mask_BT)),
        0,
      ),
      np.where(
        mask_BT,
        gradient(lambda x: policy_gradient.reinforce(x, advantage_BT)),
        0,
      ),
      atol=1e-6,
    )

  @parameterized.parameters((B, False), (0, True))
  def test_nothing_trained_costs_nothing(self, num_rows, trained):
    x_BT = jnp.full((num_rows, T), jnp.nan)
    mask_BT = jnp.full((num_rows, T), trained)
    loss_BT = policy_gradient.gmpo(x_BT, x_BT, mask_BT)
    self.assertEqual(reductions.sequence_mean(loss_BT, mask_BT).value(), 0)

  @parameterized.parameters("clip_low", "clip_high")
  def test_refuses_a_bound_that_is_not_positive(self, name):
    x_BT = jnp.zeros((1, 1))
    with self.assertRaisesRegex(ValueError, f"{name}=0 must be positive"):
      policy_gradient.gmpo(x_BT, x_BT, x_BT == 0, **{name: 0})

  def test_refuses_another_shape(self):
    with self.assertRaises(AssertionError):
      policy_gradient.gmpo(
        jnp.ones((B, T)), jnp.ones((B, 1)), jnp.ones((B, T), bool)
      )


if __name__ == "__main__":
  absltest.main()
