"""Tests of `losses.reductions`: weights of tokens, and addition of parts."""

import functools

import chex
import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.compiled import functions_of, grad, value_and_grad
from tests.losses.inputs import segment_ids
from tests.reference import reductions as reference

pytestmark = pytest.mark.smoke

reductions = functions_of(losses.reductions)
B, T, NUM_SEGMENTS, NUM_TASKS = 4, 8, 3, 3


def _inputs(seed: int):
  """NaN off the mask; the last row is all off."""
  rng = np.random.default_rng(seed)
  x_BT = rng.normal(size=(B, T)).astype(np.float32)
  mask_BT = rng.random((B, T)) < 0.6
  mask_BT[-1] = False
  assert mask_BT[:-1].any(axis=1).all()
  x_BT[~mask_BT] = np.nan
  return x_BT, mask_BT


def _both(name: str, **settings):
  return (
    f"{name}_of_segments" if "segment_BT" in settings else name,
    functools.partial(getattr(reductions, name), **settings),
    functools.partial(getattr(reference, name), **settings),
  )


PACKED = dict(
  segment_BT=segment_ids(9, (B, T), NUM_SEGMENTS), num_segments=NUM_SEGMENTS
)
ALL = (
  _both("token_mean"),
  _both("sequence_mean"),
  _both("segment_mean", **PACKED),
  _both("fixed_length_mean", length=5),
  _both("fixed_length_mean", length=5, **PACKED),
  _both("sequence_sum_mean"),
  _both("sequence_sum_mean", **PACKED),
)


class ReductionsTest(parameterized.TestCase):
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
  def test_gradient_of_the_parts_is_that_of_the_whole(self):
    x_BT, mask_BT = _inputs(seed=5)

    def of_parts(x_BT):
      parts = [
        reductions.token_mean(x_BT[b : b + 1], mask_BT[b : b + 1])
        for b in range(B)
      ]
      return functools.reduce(reductions.Mean.__add__, parts).value()

    np.testing.assert_allclose(
      grad(of_parts)(x_BT), mask_BT / mask_BT.sum(), rtol=1e-6
    )

  def test_a_fraction_of_a_token_is_a_weight(self):
    mean = reductions.Mean(jnp.float32(1.0), jnp.float32(0.5))
    self.assertEqual(mean.value(), 2.0)


SHARES = (("equal", None), ("given", np.array([3.0, 1.0, 0.0], np.float32)))


def _batch(seed: int):
  """(x, mask, weight, task), useless off the mask; task 2 in one row only."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.6
  mask_BT[:, 0] = True
  mask_BT[-1] = False
  task_BT = np.repeat(np.array([0, 1, 2, 2], np.int32)[:, None], T, axis=1)
  return (
    np.where(mask_BT, rng.normal(size=(B, T)), np.nan),
    mask_BT,
    np.where(mask_BT, rng.exponential(size=(B, T)), np.nan),
    np.where(mask_BT, task_BT, 99),
  )


class WeightedMeanTest(parameterized.TestCase):
  def test_equal_weights_are_the_mean_over_tokens(self):
    x_BT, mask_BT, _, _ = _batch(seed=2)
    np.testing.assert_allclose(
      reductions.weighted_mean(x_BT, mask_BT, np.full((B, T), 7.0)).value(),
      reductions.token_mean(x_BT, mask_BT).value(),
      rtol=1e-6,
    )

  def test_one_over_length_is_the_mean_over_sequences(self):
    x_BT, mask_BT, _, _ = _batch(seed=3)
    length_B1 = mask_BT.sum(axis=1, keepdims=True)
    weight_BT = np.broadcast_to(1 / np.maximum(length_B1, 1), (B, T))
    chex.assert_trees_all_close(
      reductions.weighted_mean(x_BT, mask_BT, weight_BT).value(),
      reductions.sequence_mean(x_BT, mask_BT).value(),
      rtol=1e-5,
    )


class TaskWeightsTest(parameterized.TestCase):
  @parameterized.named_parameters(*SHARES)
  def test_micro_batches_add_up_to_the_mean_over_tasks(self, share_I):
    x_BT, mask_BT, _, task_BT = _batch(seed=5)
    weight_BT = reductions.task_weights(
      task_BT, mask_BT, num_tasks=NUM_TASKS, share_I=share_I
    )

    def value(x_BT):
      parts = [
        reductions.weighted_mean(x_BT[rows], mask_BT[rows], weight_BT[rows])
        for rows in (slice(0, 1), slice(1, 3), slice(3, B))
      ]
      return functools.reduce(reductions.Mean.__add__, parts).value()

    def of_tasks(x_BT):
      means = [
        reductions.token_mean(x_BT, mask_BT & (task_BT == i)).value()
        for i in range(NUM_TASKS)
      ]
      share = np.ones(NUM_TASKS) if share_I is None else share_I
      return jnp.stack(means) @ (share / share.sum())

    chex.assert_trees_all_close(
      value_and_grad(value)(x_BT), value_and_grad(of_tasks)(x_BT), atol=1e-6
    )

  def test_the_share_of_an_absent_task_goes_to_the_others(self):
    mask_BT = np.ones((1, 4), bool)
    weight_BT = reductions.task_weights(
      np.array([[0, 0, 0, 2]]),
      mask_BT,
      num_tasks=NUM_TASKS,
      share_I=np.array([1, 10, 3]),
    )
    np.testing.assert_allclose(weight_BT, [[1 / 3, 1 / 3, 1 / 3, 3]], rtol=1e-6)

  @pytest.mark.slow
  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(tasks=st.lists(st.integers(0, 2), min_size=T, max_size=T))
  def test_every_task_weighs_the_same(self, tasks):
    task_BT = np.array([tasks], np.int32)
    weight_BT = reductions.task_weights(
      task_BT, np.ones((1, T), bool), num_tasks=NUM_TASKS
    )
    totals = [np.sum(weight_BT, where=task_BT == i).item() for i in set(tasks)]
    np.testing.assert_allclose(totals, T / len(totals), rtol=1e-5)

  def test_ids_out_of_range_cannot_pass_unnoticed(self):
    weight_BT = reductions.task_weights(
      np.array([[0, -1, 3, 1]]), np.ones((1, 4), bool), num_tasks=NUM_TASKS
    )
    np.testing.assert_array_equal(
      np.isnan(weight_BT), [[False, True, True, False]]
    )


def _packed(seed: int):
  """(x, mask, segment): NaN off the mask, ids out of range, a row all off."""
  rng = np.random.default_rng(seed)
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[-1] = False
  segment_BT = rng.integers(-1, NUM_SEGMENTS + 1, size=(B, T))
  x_BT = np.where(mask_BT, rng.normal(size=(B, T)), np.nan)
  return x_BT, mask_BT, segment_BT.astype(np.int32)


class SegmentsTest(parameterized.TestCase):
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
      np.array([[3.0, 5.0]]),
      np.array([[True, True, True, True, False]]),
      np.array([[-1, 0, 1, 2, 0]]),
    )
    np.testing.assert_array_equal(spread_BT, [[0, 3, 5, 0, 0]])

  @parameterized.parameters(1, NUM_SEGMENTS)
  def test_no_rows_have_no_sequences(self, num_segments):
    total_BS, length_BS = reductions.segment_totals(
      np.zeros((0, T)),
      np.zeros((0, T), bool),
      np.zeros((0, T), int),
      num_segments,
    )
    self.assertEqual(total_BS.shape, (0, num_segments))
    self.assertEqual(length_BS.shape, (0, num_segments))
