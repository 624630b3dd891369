"""Tests of `losses.importance_weights`: bounds, constancy, unbiasedness."""

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
from tests.reference import importance_weights as reference
from tests.reference import reductions as reductions_reference

B, T, V = 3, 6, 7


def _log_ratio(seed: int, scale: float = 0.7):
  """As from `ratios.log_ratio`: 0 off the mask; the last row is all off."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  return np.where(mask_BT, rng.normal(scale=scale, size=(B, T)), 0), mask_BT


def _case(name: str, function: str, **settings):
  return (
    name,
    functools.partial(getattr(ratios, function), **settings),
    functools.partial(getattr(reference, function), **settings),
  )


ALL = (
  _case("truncated", "truncated_weight", cap=1.5),
  _case("vtrace", "truncated_weight", cap=1.0),
  _case("masked", "masked_weight", low=0.5, high=2.0),
  _case("masked_above", "masked_weight", low=0.0, high=1.5),
)


class WeightsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*ALL)
  def test_matches_reference(self, weight, expected):
    log_ratio_BT, _ = _log_ratio(seed=0)
    with jax.enable_x64(True):
      np.testing.assert_allclose(
        self.variant(weight)(log_ratio_BT), expected(log_ratio_BT), rtol=1e-14
      )

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*ALL)
  def test_normalised_matches_reference(self, weight, expected):
    log_ratio_BT, mask_BT = _log_ratio(seed=1)

    def normalised(log_ratio_BT):
      weight_BT = weight(log_ratio_BT)
      return ratios.normalised_weight(
        weight_BT, reductions.token_mean(weight_BT, mask_BT)
      )

    with jax.enable_x64(True):
      weight_BT = np.asarray(self.variant(normalised)(log_ratio_BT))
    expected_BT = expected(log_ratio_BT)
    np.testing.assert_allclose(
      weight_BT,
      reference.normalised_weight(
        expected_BT, *reductions_reference.token_mean(expected_BT, mask_BT)
      ),
      rtol=1e-13,
    )
    self.assertAlmostEqual(np.mean(weight_BT[mask_BT]), 1, places=12)

  @parameterized.named_parameters(*ALL)
  def test_gradient_of_a_weighted_loss_is_the_weight_times_its_own(
    self, weight, expected
  ):
    log_ratio_BT, mask_BT = _log_ratio(seed=2)
    advantage_BT = np.random.default_rng(3).normal(size=(B, T))
    constant_BT = expected(log_ratio_BT)

    def weighted(log_ratio_BT):
      loss_BT = policy_gradient.reinforce(log_ratio_BT, advantage_BT)
      weight_BT = weight(log_ratio_BT)
      weight_BT = ratios.normalised_weight(
        weight_BT, reductions.Mean(weight_BT.sum(), weight_BT.sum() / 2)
      )
      return (weight_BT * loss_BT).sum()

    with jax.enable_x64(True):
      gradient_BT = jax.grad(weighted)(log_ratio_BT)
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(
        lambda x: (constant_BT / 2 * -np.exp(x) * advantage_BT).sum(),
        log_ratio_BT,
      ),
      atol=1e-8,
    )

  @parameterized.named_parameters(*ALL)
  def test_the_extremes_are_finite_and_nan_stays_nan(self, weight, _):
    weight_BT = weight(jnp.array([[-np.inf, -400, 400, np.inf, np.nan]]))
    self.assertTrue(np.isfinite(weight_BT[0, :4]).all())
    self.assertTrue(np.isnan(weight_BT[0, 4]))

  @parameterized.named_parameters(*ALL)
  def test_no_rows_have_no_weights(self, weight, _):
    weight_BT = weight(jnp.zeros((0, T)))
    mean = reductions.token_mean(weight_BT, jnp.zeros((0, T), bool))
    self.assertEqual(ratios.normalised_weight(weight_BT, mean).shape, (0, T))

  def test_enough_is_left_of_the_least_weight_to_divide_by(self):
    weight_BT = ratios.truncated_weight(jnp.array([[-np.inf, -400.0]]), cap=2.0)
    np.testing.assert_allclose(weight_BT, np.exp([[-20, -20]]), rtol=1e-5)

  def test_the_mean_to_normalise_by_is_a_constant(self):
    gradient = jax.grad(
      lambda total: ratios.normalised_weight(
        jnp.ones((B, T)), reductions.Mean(total, jnp.float32(2))
      ).sum()
    )(3.0)
    self.assertEqual(gradient, 0)

  def test_nothing_to_normalise_by_changes_nothing(self):
    weight_BT = jnp.full((B, T), 0.3)
    mean = reductions.token_mean(weight_BT, jnp.zeros((B, T), bool))
    np.testing.assert_array_equal(
      ratios.normalised_weight(weight_BT, mean), weight_BT
    )

  def test_of_sequences_one_weight_is_the_product_of_its_tokens(self):
    log_ratio_BT, mask_BT = _log_ratio(seed=4, scale=0.3)
    weight_BT = ratios.truncated_weight(
      ratios.sequence_log_ratio(log_ratio_BT, mask_BT, average=False),
      cap=1e6,
    )
    product_B = np.exp(log_ratio_BT).prod(axis=1, where=mask_BT)
    np.testing.assert_allclose(
      weight_BT, np.where(mask_BT, product_B[:, None], 1), rtol=1e-5
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
        (logprob_V - jax.lax.stop_gradient(logprob_V))[None],
        advantage_V[None],
      )
      return -jnp.sum(jnp.exp(behavior_V) * (weight_1V * loss_1V)[0])

    np.testing.assert_allclose(
      jax.grad(surrogate)(logits_V),
      jax.grad(expected_return)(logits_V),
      atol=1e-6,
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(x=st.floats(-30, 30), cap=st.floats(0.5, 5))
  def test_masking_agrees_with_truncating_below_the_bound(self, x, cap):
    log_ratio_BT = np.full((1, 1), x)
    truncated = ratios.truncated_weight(log_ratio_BT, cap=cap)
    masked = ratios.masked_weight(log_ratio_BT, low=0, high=cap)
    self.assertLessEqual(truncated, cap * 1.0001)
    self.assertIn(float(masked[0, 0]), (0.0, float(truncated[0, 0])))

  @parameterized.parameters(
    ("truncated_weight", dict(cap=0.0), "cap=0.0 must be positive"),
    ("masked_weight", dict(low=-1, high=2), "low=-1 must be at least 0"),
    ("masked_weight", dict(low=2, high=1), "high=1 must be above low=2"),
  )
  def test_refuses_bounds_that_cannot_be_meant(self, name, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      getattr(ratios, name)(jnp.zeros((1, 1)), **settings)

  @parameterized.named_parameters(*ALL)
  def test_refuses_another_rank(self, weight, _):
    with self.assertRaises(AssertionError):
      weight(jnp.zeros(T))


class StaleFailureWeightTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference_on_sequences(self):
    log_ratio_BT, mask_BT = _log_ratio(seed=6)
    advantage_BT = np.array([[1.0], [-1.0], [0.0]]) * np.ones((B, T))
    for sign in (1, -1):
      sequence_BT = ratios.sequence_log_ratio(
        sign * log_ratio_BT, mask_BT, average=True
      )
      weight = functools.partial(ratios.stale_failure_weight, divergence=0.05)
      np.testing.assert_array_equal(
        self.variant(weight)(sequence_BT, advantage_BT),
        reference.stale_failure_weight(
          np.asarray(sequence_BT), advantage_BT, divergence=0.05
        ),
      )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(
    x=st.floats(-5, 5, width=32),
    advantage=st.floats(-2, 2, width=32, allow_subnormal=False),
  )
  def test_drops_only_failures_that_have_become_rare(self, x, advantage):
    weight = ratios.stale_failure_weight(
      np.full((1, 1), x), np.full((1, 1), advantage), divergence=1.0
    )[0, 0]
    self.assertEqual(weight == 0, advantage < 0 and x < -1)

  def test_is_a_constant_and_lets_nan_off_the_mask_be(self):
    gradients = jax.grad(
      lambda *x: ratios.stale_failure_weight(*x, divergence=0.1).sum(),
      argnums=(0, 1),
    )(jnp.zeros((B, T)), jnp.full((B, T), jnp.nan))
    chex.assert_trees_all_equal(gradients, (jnp.zeros((B, T)),) * 2)

  def test_refuses_a_divergence_that_is_not_positive(self):
    x_BT = jnp.zeros((1, 1))
    with self.assertRaisesRegex(ValueError, "divergence=0 must be positive"):
      ratios.stale_failure_weight(x_BT, x_BT, divergence=0)

  def test_refuses_another_shape(self):
    with self.assertRaises(AssertionError):
      ratios.stale_failure_weight(
        jnp.zeros((B, T)), jnp.zeros((B, 1)), divergence=1
      )


if __name__ == "__main__":
  absltest.main()
