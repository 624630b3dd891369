"""Tests of `losses.ratios` on whole sequences, packed or not, and of GSPO."""

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
from tests.reference import ratios as reference

B, T, NUM_SEGMENTS = 3, 6, 2


def _segments(seed: int):
  """Ids from -1, which names nothing, to one too many."""
  rng = np.random.default_rng(seed)
  return np.sort(
    rng.integers(-1, NUM_SEGMENTS + 1, size=(B, T)), axis=1
  ).astype(np.int32)


def _log_ratios(seed: int, scale: float = 1.0):
  """NaN off the mask; the last row is all off."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  log_ratio_BT = rng.normal(scale=scale, size=(B, T))
  return np.where(mask_BT, log_ratio_BT, np.nan), mask_BT


def _both(name: str, function: str, **settings):
  return (
    name,
    functools.partial(getattr(ratios, function), **settings),
    functools.partial(getattr(reference, function), **settings),
  )


PACKED = dict(segment_BT=_segments(seed=9), num_segments=NUM_SEGMENTS)
SEQUENCES = (
  _both("sum", "sequence_log_ratio", average=False),
  _both("mean", "sequence_log_ratio", average=True, limit=0.2),
  _both("mean_unbounded", "sequence_log_ratio", average=True, limit=None),
  _both("packed_sum", "sequence_log_ratio", average=False, **PACKED),
  _both("packed_mean", "sequence_log_ratio", average=True, **PACKED),
)
ALL = (
  *SEQUENCES,
  _both("gspo_token", "gspo_token_log_ratio", limit=0.2),
  _both("packed_gspo_token", "gspo_token_log_ratio", **PACKED),
)


class SequencesTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*ALL)
  def test_matches_reference_and_hides_nan(self, ratio, expected):
    inputs = _log_ratios(seed=0)
    with jax.enable_x64(True):
      np.testing.assert_allclose(
        self.variant(ratio)(*inputs), expected(*inputs), atol=1e-13
      )

  @parameterized.named_parameters(*ALL)
  def test_gradient_matches_finite_differences_and_hides_nan(
    self, ratio, expected
  ):
    log_ratio_BT, mask_BT = _log_ratios(seed=1)
    weight_BT = np.random.default_rng(2).normal(size=(B, T))
    known_BT = np.where(mask_BT, log_ratio_BT, 0)
    if "constant_BT" in expected.func.__kwdefaults__:
      expected = functools.partial(expected, constant_BT=known_BT)
    with jax.enable_x64(True):
      gradient_BT = jax.grad(lambda x: (weight_BT * ratio(x, mask_BT)).sum())(
        log_ratio_BT
      )
    self.assertGreater(np.abs(gradient_BT).max(), 0.01)
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(
        lambda x: (weight_BT * expected(x, mask_BT)).sum(), known_BT
      ),
      atol=1e-8,
    )

  @parameterized.named_parameters(*ALL)
  def test_nothing_trained_is_zero(self, ratio, _):
    mask_BT = jnp.zeros((B, T), bool)
    value_BT, gradient = jax.vjp(
      lambda x: ratio(x, mask_BT), jnp.full((B, T), jnp.nan)
    )
    np.testing.assert_array_equal(value_BT, np.zeros((B, T)))
    np.testing.assert_array_equal(
      gradient(jnp.ones((B, T)))[0], np.zeros((B, T))
    )

  @parameterized.named_parameters(*(c for c in ALL if "packed" not in c[0]))
  def test_no_rows_are_no_ratios(self, ratio, _):
    self.assertEqual(
      ratio(jnp.zeros((0, T)), jnp.zeros((0, T), bool)).shape, (0, T)
    )

  @parameterized.named_parameters(*ALL)
  def test_nan_on_the_mask_stays_in_its_sequence(self, ratio, _):
    log_ratio_BT = np.zeros((B, T), np.float32)
    log_ratio_BT[0, 2] = np.nan
    ratio_BT = ratio(log_ratio_BT, np.ones((B, T), bool))
    self.assertTrue(np.isnan(ratio_BT[0]).any())
    self.assertFalse(np.isnan(ratio_BT[1:]).any())

  @parameterized.named_parameters(*SEQUENCES[:1], *ALL[-2:-1])
  def test_far_above_it_is_held_without_gradient_and_far_below_it_fades(
    self, ratio, _
  ):
    mask_BT = jnp.ones((2, T), bool)

    def total(log_ratio_BT):
      return jnp.exp(ratio(log_ratio_BT, mask_BT)).sum()

    gradient_BT = jax.grad(total)(
      jnp.full((2, T), 500.0) * jnp.array([[1.0], [-1.0]])
    )
    np.testing.assert_array_equal(gradient_BT, np.zeros((2, T)))

  def test_a_token_that_could_not_be_sampled_does_not_break_gspo(self):
    ratio_BT = ratios.gspo_token_log_ratio(
      jnp.array([[jnp.inf, 0.0], [-jnp.inf, 0.0]]), jnp.ones((2, 2), bool)
    )
    np.testing.assert_array_equal(ratio_BT, [[10, 10], [-np.inf, -np.inf]])

  def test_gspo_of_one_advantage_per_sequence_has_one_gradient(self):
    log_ratio_BT, mask_BT = _log_ratios(seed=3, scale=0.3)
    advantage_B1 = np.array([[1.0], [-2.0], [0.5]])
    advantage_BT = np.where(mask_BT, advantage_B1, np.nan)

    def objective(ratio):
      def value(log_ratio_BT):
        loss_BT = policy_gradient.clipped_surrogate(
          ratio(log_ratio_BT, mask_BT),
          advantage_BT,
          clip_low=0.2,
          clip_high=0.2,
        )
        return reductions.sequence_mean(loss_BT, mask_BT).value()

      return jax.value_and_grad(value)(log_ratio_BT)

    with jax.enable_x64(True):
      of_sequences = objective(
        functools.partial(ratios.sequence_log_ratio, average=True)
      )
      of_tokens = objective(ratios.gspo_token_log_ratio)
    chex.assert_trees_all_close(of_tokens, of_sequences, atol=1e-12)
    self.assertGreater(np.abs(of_tokens[1]).max(), 0.01)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_the_sum_is_the_log_of_the_product_of_ratios(self, seed):
    log_ratio_BT, mask_BT = _log_ratios(seed)
    product_B = np.prod(np.exp(log_ratio_BT), axis=1, where=mask_BT)
    ratio_BT = np.exp(
      ratios.sequence_log_ratio(
        log_ratio_BT, mask_BT, average=False, limit=None
      )
    )
    np.testing.assert_allclose(
      ratio_BT, np.where(mask_BT, product_B[:, None], 1), rtol=1e-5
    )

  @parameterized.named_parameters(*ALL)
  def test_refuses_a_mask_that_is_not_bool(self, ratio, _):
    with self.assertRaises(AssertionError):
      ratio(jnp.ones((B, T)), jnp.ones((B, T)))

  def test_refuses_segments_without_ids(self):
    with self.assertRaisesRegex(ValueError, "num_segments=3 without"):
      ratios.sequence_log_ratio(
        jnp.ones((B, T)), jnp.ones((B, T), bool), None, 3, average=True
      )


if __name__ == "__main__":
  absltest.main()
