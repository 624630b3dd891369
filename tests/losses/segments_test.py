"""Tests of `losses.segments`: to sequences and back."""

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import reductions
from tests.reference import finite_difference, ratios

B, T, NUM_SEGMENTS = 3, 6, 2


def _packed(seed: int):
  """(x, mask, segment): NaN off the mask, ids out of range, a row all off."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  segment_BT = rng.integers(-1, NUM_SEGMENTS + 1, size=(B, T))
  x_BT = np.where(mask_BT, rng.normal(size=(B, T)), np.nan)
  return x_BT, mask_BT, segment_BT.astype(np.int32)


def _totals(x_BT, mask_BT, segment_BT):
  total_BS = np.zeros((B, NUM_SEGMENTS))
  length_BS = np.zeros((B, NUM_SEGMENTS), int)
  places = ratios.sequences(mask_BT, segment_BT, NUM_SEGMENTS)
  for sequence, of_sequence in places.items():
    total_BS[sequence] = sum(x_BT[at] for at in of_sequence)
    length_BS[sequence] = len(of_sequence)
  return total_BS, length_BS


class SegmentsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_totals_match_loops_and_hide_nan(self):
    inputs = _packed(seed=0)
    totals = self.variant(reductions.segment_totals, static_argnums=3)
    with jax.enable_x64(True):
      total_BS, length_BS = totals(*inputs, NUM_SEGMENTS)
    expected_BS, expected_length_BS = _totals(*inputs)
    np.testing.assert_allclose(total_BS, expected_BS, atol=1e-14)
    np.testing.assert_array_equal(length_BS, expected_length_BS)

  def test_gradient_matches_finite_differences(self):
    x_BT, mask_BT, segment_BT = _packed(seed=1)

    def there_and_back(x_BT):
      total_BS, _ = reductions.segment_totals(
        x_BT, mask_BT, segment_BT, NUM_SEGMENTS
      )
      spread_BT = reductions.spread_over_tokens(total_BS, mask_BT, segment_BT)
      return jnp.square(spread_BT).sum()

    def expected(x_BT):
      total_BS, length_BS = _totals(x_BT, mask_BT, segment_BT)
      return (length_BS * total_BS**2).sum()

    with jax.enable_x64(True):
      gradient_BT = jax.grad(there_and_back)(x_BT)
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(expected, np.nan_to_num(x_BT)),
      atol=1e-7,
    )

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(seed=st.integers(0, 999))
  def test_rows_without_ids_are_one_sequence_each(self, seed):
    x_BT, mask_BT, _ = _packed(seed)
    zeros_BT = np.zeros((B, T), np.int32)
    chex.assert_trees_all_close(
      reductions.segment_totals(x_BT, mask_BT),
      reductions.segment_totals(x_BT, mask_BT, zeros_BT, 1),
      rtol=1e-5,
      atol=1e-6,
    )
    x_B1 = np.arange(1.0, B + 1, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(
      reductions.spread_over_tokens(x_B1, mask_BT),
      reductions.spread_over_tokens(x_B1, mask_BT, zeros_BT),
    )

  def test_a_token_of_no_sequence_gets_nothing(self):
    spread_BT = reductions.spread_over_tokens(
      jnp.array([[3.0, 5.0]]),
      jnp.array([[True, True, True, True, False]]),
      jnp.array([[-1, 0, 1, 2, 0]]),
    )
    np.testing.assert_array_equal(spread_BT, [[0, 3, 5, 0, 0]])

  @parameterized.parameters(1, NUM_SEGMENTS)
  def test_no_rows_have_no_sequences(self, num_segments):
    total_BS, length_BS = reductions.segment_totals(
      jnp.zeros((0, T)),
      jnp.zeros((0, T), bool),
      jnp.zeros((0, T), int),
      num_segments,
    )
    self.assertEqual(total_BS.shape, (0, num_segments))
    self.assertEqual(length_BS.shape, (0, num_segments))

  def test_refuses_ids_of_another_shape(self):
    with self.assertRaises(AssertionError):
      reductions.segment_totals(
        jnp.ones((B, T)), jnp.ones((B, T), bool), jnp.ones((B, 1), int), 2
      )


if __name__ == "__main__":
  absltest.main()
