"""Tests of `losses.ratios`: masks, bounds, gradients and weights."""

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
from tests.losses.inputs import segment_ids
from tests.reference import ratios as reference

pytestmark = pytest.mark.smoke

policy_gradient = functions_of(losses.policy_gradient)
ratios = functions_of(losses.ratios)
reductions = functions_of(losses.reductions)
B, T, V, NUM_SEGMENTS = 3, 6, 7, 2


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


class LogRatioTest(parameterized.TestCase):
  def test_holds_the_extremes_and_stops_their_gradient(self):
    behavior_BT = np.array([[-60, -np.inf, 0, -1]])

    def total(policy_BT):
      ratio_BT = ratios.log_ratio(policy_BT, behavior_BT, np.ones((1, 4), bool))
      return ratio_BT.sum(), ratio_BT

    (_, ratio_BT), gradient_BT = value_and_grad(total, has_aux=True)(
      np.array([[0, 0, -60, -np.inf]])
    )
    np.testing.assert_array_equal(ratio_BT, [[20, 20, -20, -20]])
    np.testing.assert_array_equal(gradient_BT, np.zeros((1, 4)))

  def test_without_a_limit_nothing_is_held(self):
    policy_BT = np.array([[90.0, -90.0]])
    for limit in (None, np.inf):
      value_BT, gradient_BT = value_and_grad(
        lambda x, limit=limit: (
          ratios.log_ratio(
            x, np.zeros((1, 2)), np.ones((1, 2), bool), limit=limit
          )[0]
          @ np.array([1.0, 2.0])
        )
      )(policy_BT)
      self.assertEqual(value_BT, -90.0)
      np.testing.assert_array_equal(gradient_BT, [[1, 2]])

  def test_the_limit_itself_still_has_its_gradient(self):
    gradient_BT = grad(
      lambda x: ratios.log_ratio(
        x, np.zeros((1, 2)), np.ones((1, 2), bool)
      ).sum()
    )(np.array([[20.0, -20.0]]))
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
    policy_BT = np.full((1, 1), -1.0078125, jnp.bfloat16)
    behavior_BT = np.full((1, 1), -130.0, jnp.bfloat16)
    log_ratio_BT = ratios.log_ratio(
      policy_BT, behavior_BT, np.ones((1, 1), bool), limit=1000.0
    )
    self.assertEqual(log_ratio_BT.dtype, jnp.float32)
    np.testing.assert_array_equal(log_ratio_BT, [[130 - 1.0078125]])


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


PACKED = dict(
  segment_BT=segment_ids(9, (B, T), NUM_SEGMENTS), num_segments=NUM_SEGMENTS
)
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


class SequencesTest(parameterized.TestCase):
  @parameterized.named_parameters(*ALL)
  def test_nan_on_the_mask_stays_in_its_sequence(self, ratio, _):
    log_ratio_BT = np.zeros((B, T), np.float32)
    log_ratio_BT[0, 2] = np.nan
    ratio_BT = ratio(log_ratio_BT, np.ones((B, T), bool))
    broken_B = np.isnan(ratio_BT).any(axis=1)
    np.testing.assert_array_equal(broken_B, np.arange(B) == 0)

  @parameterized.named_parameters(*SEQUENCES[:1], *ALL[-2:-1])
  def test_far_above_it_is_held_without_gradient_and_far_below_it_fades(
    self, ratio, _
  ):
    mask_BT = np.ones((2, T), bool)

    def total(log_ratio_BT):
      return jnp.exp(ratio(log_ratio_BT, mask_BT)).sum()

    gradient_BT = grad(total)(
      np.full((2, T), 500.0) * np.array([[1.0], [-1.0]])
    )
    np.testing.assert_array_equal(gradient_BT, np.zeros((2, T)))

  def test_a_token_that_could_not_be_sampled_does_not_break_gspo(self):
    ratio_BT = ratios.gspo_token_log_ratio(
      np.array([[np.inf, 0.0], [-np.inf, 0.0]]), np.ones((2, 2), bool)
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

      return value_and_grad(value)(log_ratio_BT)

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


WEIGHTS = (
  _both("truncated", "truncated_weight", cap=1.5),
  _both("vtrace", "truncated_weight", cap=1.0),
  _both("masked", "masked_weight", low=0.5, high=2.0),
  _both("masked_above", "masked_weight", low=0.0, high=1.5),
)


class WeightsTest(parameterized.TestCase):
  @parameterized.named_parameters(*WEIGHTS)
  def test_the_extremes_are_finite_and_nan_stays_nan(self, weight, _):
    weight_BT = np.asarray(
      weight(np.array([[-np.inf, -400, 400, np.inf, np.nan]]))
    )
    self.assertTrue(np.isfinite(weight_BT[0, :4]).all())
    self.assertTrue(np.isnan(weight_BT[0, 4]))

  def test_smallest_weight_is_above_zero(self):
    weight_BT = ratios.truncated_weight(np.array([[-np.inf, -400.0]]), cap=2.0)
    np.testing.assert_allclose(weight_BT, np.exp([[-20, -20]]), rtol=1e-5)

  def test_the_mean_to_normalise_by_is_a_constant(self):
    gradient = grad(
      lambda total: ratios.normalised_weight(
        np.ones((B, T)), reductions.Mean(total, jnp.float32(2))
      ).sum()
    )(3.0)
    self.assertEqual(gradient, 0)

  def test_nothing_to_normalise_by_changes_nothing(self):
    weight_BT = np.full((B, T), 0.3, np.float32)
    mean = reductions.token_mean(weight_BT, np.zeros((B, T), bool))
    np.testing.assert_array_equal(
      ratios.normalised_weight(weight_BT, mean), weight_BT
    )

  def test_an_untouched_weight_corrects_a_gradient_exactly(self):
    """Sums over a vocabulary, where sampling leaves no noise."""
    rng = np.random.default_rng(5)
    logits_V, behavior_V, advantage_V = rng.normal(size=(3, V))
    behavior_V = jax.nn.log_softmax(behavior_V)

    def expected_return(logits_V):
      return jax.nn.softmax(logits_V) @ advantage_V

    def surrogate(logits_V):
      logprob_V = jax.nn.log_softmax(logits_V)
      weight_1V = ratios.truncated_weight(
        (logprob_V - behavior_V)[None], cap=1e6
      )
      loss_1V = policy_gradient.reinforce(
        (logprob_V - jax.lax.stop_gradient(logprob_V))[None], advantage_V[None]
      )
      return -jnp.sum(jnp.exp(behavior_V) * (weight_1V * loss_1V)[0])

    np.testing.assert_allclose(
      grad(surrogate)(logits_V), grad(expected_return)(logits_V), atol=1e-6
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(x=st.floats(-30, 30), cap=st.floats(0.5, 5))
  def test_masking_agrees_with_truncating_below_the_bound(self, x, cap):
    log_ratio_BT, bound = np.full((1, 1), x), np.array(cap)
    truncated = ratios.truncated_weight(log_ratio_BT, cap=bound).item()
    masked = ratios.masked_weight(log_ratio_BT, low=0, high=bound).item()
    self.assertLessEqual(truncated, cap * 1.0001)
    self.assertIn(masked, (0.0, truncated))


class StaleFailureWeightTest(parameterized.TestCase):
  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(
    x=st.floats(-5, 5, width=32),
    advantage=st.floats(-2, 2, width=32, allow_subnormal=False),
  )
  def test_drops_only_failures_that_have_become_rare(self, x, advantage):
    weight = ratios.stale_failure_weight(
      np.full((1, 1), x), np.full((1, 1), advantage), divergence=1.0
    )
    self.assertEqual(weight.item() == 0, advantage < 0 and x < -1)

  def test_is_a_constant_and_lets_nan_off_the_mask_be(self):
    gradients = grad(
      lambda *x: ratios.stale_failure_weight(*x, divergence=0.1).sum(),
      argnums=(0, 1),
    )(np.zeros((B, T)), np.full((B, T), np.nan))
    chex.assert_trees_all_equal(gradients, (np.zeros((B, T)),) * 2)
