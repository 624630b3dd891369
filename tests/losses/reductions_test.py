"""Tests of `losses.reductions`: who weighs how much, and what adds up."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses import reductions
from tests.reference import finite_difference
from tests.reference import reductions as reference

B, T, NUM_SEGMENTS = 4, 8, 3


def _inputs(seed: int):
  """NaN off the mask; the last row is all off."""
  rng = np.random.default_rng(seed)
  x_BT = rng.normal(size=(B, T)).astype(np.float32)
  mask_BT = rng.random((B, T)) < 0.6
  mask_BT[-1] = False
  assert mask_BT[:-1].any(axis=1).all()
  x_BT[~mask_BT] = np.nan
  return x_BT, mask_BT


def _segments(seed: int):
  """Ids from -1, which names nothing, to one too many."""
  rng = np.random.default_rng(seed)
  return np.sort(
    rng.integers(-1, NUM_SEGMENTS + 1, size=(B, T)), axis=1
  ).astype(np.int32)


def _both(name: str, **settings):
  return (
    f"{name}_of_segments" if "segment_BT" in settings else name,
    functools.partial(getattr(reductions, name), **settings),
    functools.partial(getattr(reference, name), **settings),
  )


ALL = (
  _both("token_mean"),
  _both("sequence_mean"),
  _both(
    "segment_mean", segment_BT=_segments(seed=9), num_segments=NUM_SEGMENTS
  ),
  _both("fixed_length_mean", length=5),
  _both(
    "fixed_length_mean",
    segment_BT=_segments(seed=9),
    num_segments=NUM_SEGMENTS,
    length=5,
  ),
)
ALL += (
  _both("sequence_sum_mean"),
  _both(
    "sequence_sum_mean",
    segment_BT=_segments(seed=9),
    num_segments=NUM_SEGMENTS,
  ),
)
ROWS = tuple(case for case in ALL if "segment_BT" not in case[1].keywords)


class ReductionsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*ALL)
  def test_matches_reference_and_hides_nan(self, reduce, expected):
    inputs = _inputs(seed=0)
    mean = self.variant(reduce)(*inputs)
    total, weight = expected(*inputs)
    self.assertGreater(weight, 1)
    np.testing.assert_allclose(mean.total, total, rtol=1e-5)
    np.testing.assert_array_equal(mean.weight, weight)
    np.testing.assert_allclose(mean.value(), total / weight, rtol=1e-5)

  @parameterized.named_parameters(*ALL)
  def test_gradient_matches_finite_differences_and_hides_nan(
    self, reduce, expected
  ):
    x_BT, mask_BT = _inputs(seed=1)

    def value(x_BT):
      total, weight = expected(x_BT, mask_BT)
      return total / weight

    gradient_BT = jax.grad(lambda x: reduce(x, mask_BT).value())(x_BT)
    np.testing.assert_allclose(
      gradient_BT,
      finite_difference.gradient(value, np.where(mask_BT, x_BT, 0)),
      atol=1e-6,
    )

  @parameterized.named_parameters(*ALL)
  def test_nothing_trained_is_a_mean_of_zero(self, reduce, _):
    def value(x_BT):
      return reduce(x_BT, jnp.zeros((B, T), bool)).value()

    x_BT = jnp.full((B, T), jnp.nan)
    self.assertEqual(value(x_BT), 0)
    np.testing.assert_array_equal(jax.grad(value)(x_BT), np.zeros((B, T)))

  @parameterized.named_parameters(*ROWS)
  def test_no_rows_are_a_mean_of_zero(self, reduce, _):
    empty = jnp.zeros((0, T)), jnp.zeros((0, T), bool)
    self.assertEqual(reduce(*empty).value(), 0)

  @parameterized.named_parameters(*ALL)
  def test_adds_up_in_float32(self, reduce, expected):
    # In bfloat16, 256 + 1 is 256.
    x_BT = np.ones((B, T), np.float32)
    x_BT[:, 0] = 256
    mask_BT = np.ones((B, T), bool)
    mean = reduce(jnp.asarray(x_BT, jnp.bfloat16), mask_BT)
    self.assertEqual(mean.total.dtype, jnp.float32)
    np.testing.assert_allclose(
      mean.total, expected(x_BT, mask_BT)[0], rtol=1e-6
    )

  @parameterized.named_parameters(*ALL)
  def test_refuses_a_mask_that_is_not_bool(self, reduce, _):
    with self.assertRaises(AssertionError):
      reduce(jnp.ones((B, T)), jnp.ones((B, T)))

  @parameterized.named_parameters(*ALL)
  def test_refuses_a_mask_of_another_shape(self, reduce, _):
    with self.assertRaises(AssertionError):
      reduce(jnp.ones((B, T)), jnp.ones((B, 1), bool))

  def test_all_agree_where_every_row_is_full(self):
    x_BT, _ = _inputs(seed=2)
    x_BT = np.nan_to_num(x_BT)
    mask_BT = np.ones((B, T), bool)
    for mean in (
      reductions.sequence_mean(x_BT, mask_BT),
      reductions.segment_mean(x_BT, mask_BT, np.zeros((B, T), int), 1),
      reductions.fixed_length_mean(x_BT, mask_BT, length=T),
    ):
      np.testing.assert_allclose(
        mean.value(), reductions.token_mean(x_BT, mask_BT).value(), rtol=1e-5
      )

  def test_keeps_twelve_digits_where_float64_is_enabled(self):
    x_BT, mask_BT = _inputs(seed=6)
    x_BT = x_BT.astype(np.float64) / 3
    for name, reduce, expected in ALL:
      with self.subTest(name), jax.enable_x64(True):
        total, weight = expected(x_BT, mask_BT)
        np.testing.assert_allclose(
          reduce(x_BT, mask_BT).value(), total / weight, rtol=1e-14
        )

  @parameterized.parameters(0, -1.0)
  def test_refuses_a_length_that_is_not_positive(self, length):
    with self.assertRaisesRegex(ValueError, f"length={length} must be posi"):
      reductions.fixed_length_mean(
        jnp.ones((B, T)), jnp.ones((B, T), bool), length=length
      )


class SegmentMeanTest(parameterized.TestCase):
  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(lengths=st.lists(st.integers(0, 6), min_size=5, max_size=5))
  def test_packing_changes_nothing(self, lengths):
    rng = np.random.default_rng(sum(lengths))
    x_BT = rng.normal(size=(len(lengths), 6)).astype(np.float32)
    mask_BT = np.arange(6)[None] < np.array(lengths)[:, None]
    segment_BT = np.broadcast_to(np.arange(len(lengths))[:, None], x_BT.shape)
    packed = reductions.segment_mean(
      x_BT.reshape(1, -1),
      mask_BT.reshape(1, -1),
      segment_BT.reshape(1, -1),
      len(lengths),
    )
    chex.assert_trees_all_close(
      packed, reductions.sequence_mean(x_BT, mask_BT), rtol=1e-5, atol=1e-6
    )

  def test_an_id_names_another_sequence_in_another_row(self):
    x_BT = np.array([[1.0, 3.0], [5.0, 5.0]], np.float32)
    mean = reductions.segment_mean(
      x_BT, np.ones((2, 2), bool), np.array([[0, 1], [1, 1]]), 2
    )
    self.assertEqual(mean.weight, 3)
    self.assertEqual(mean.total, 1 + 3 + 5)

  def test_ids_out_of_range_are_not_counted(self):
    mean = reductions.segment_mean(
      np.array([[1.0, 2.0, 4.0, 8.0]], np.float32),
      np.ones((1, 4), bool),
      np.array([[-1, 0, 1, 2]]),
      2,
    )
    self.assertEqual(mean.weight, 2)
    self.assertEqual(mean.total, 2 + 4)


class MeanTest(parameterized.TestCase):
  @parameterized.named_parameters(*ROWS)
  def test_micro_batches_add_up_to_the_whole(self, reduce, _):
    x_BT, mask_BT = _inputs(seed=3)
    whole = reduce(x_BT, mask_BT)
    for cut in range(1, B):
      parts = reduce(x_BT[:cut], mask_BT[:cut]) + reduce(
        x_BT[cut:], mask_BT[cut:]
      )
      chex.assert_trees_all_close(parts, whole, rtol=1e-5)

  def test_travels_through_scan_and_jit(self):
    x_BT, mask_BT = _inputs(seed=4)

    @jax.jit
    def scanned(x_BT, mask_BT):
      def add(mean, row):
        return mean + reductions.token_mean(row[0][None], row[1][None]), None

      zero = reductions.Mean(jnp.zeros(()), jnp.zeros((), int))
      return jax.lax.scan(add, zero, (x_BT, mask_BT))[0]

    chex.assert_trees_all_close(
      scanned(x_BT, mask_BT), reductions.token_mean(x_BT, mask_BT), rtol=1e-5
    )

  def test_gradient_of_the_parts_is_that_of_the_whole(self):
    x_BT, mask_BT = _inputs(seed=5)

    def of_parts(x_BT):
      parts = [
        reductions.token_mean(x_BT[b : b + 1], mask_BT[b : b + 1])
        for b in range(B)
      ]
      return functools.reduce(reductions.Mean.__add__, parts).value()

    np.testing.assert_allclose(
      jax.grad(of_parts)(x_BT), mask_BT / mask_BT.sum(), rtol=1e-6
    )

  def test_a_fraction_of_a_token_is_a_weight(self):
    mean = reductions.Mean(jnp.float32(1.0), jnp.float32(0.5))
    self.assertEqual(mean.value(), 2.0)


if __name__ == "__main__":
  absltest.main()
