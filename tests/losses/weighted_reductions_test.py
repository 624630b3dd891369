"""Tests of `losses.reductions` with weights: tasks, pairs, importance."""

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

B, T, NUM_TASKS = 4, 6, 3
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


class WeightedMeanTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_matches_reference_and_hides_nan(self):
    x_BT, mask_BT, weight_BT, _ = _batch(seed=0)
    with jax.enable_x64(True):
      mean = self.variant(reductions.weighted_mean)(x_BT, mask_BT, weight_BT)
    total, weight = reference.weighted_mean(x_BT, mask_BT, weight_BT)
    np.testing.assert_allclose(mean.total, total, rtol=1e-13)
    np.testing.assert_allclose(mean.weight, weight, rtol=1e-13)

  def test_gradient_matches_finite_differences_and_weights_are_constants(self):
    x_BT, mask_BT, weight_BT, _ = _batch(seed=1)

    def value(x_BT, weight_BT):
      return reductions.weighted_mean(x_BT, mask_BT, weight_BT).value()

    def expected(x_BT):
      total, weight = reference.weighted_mean(x_BT, mask_BT, weight_BT)
      return total / weight

    with jax.enable_x64(True):
      to_x_BT, to_weight_BT = jax.grad(value, argnums=(0, 1))(x_BT, weight_BT)
    np.testing.assert_allclose(
      to_x_BT,
      finite_difference.gradient(expected, np.nan_to_num(x_BT)),
      atol=1e-9,
    )
    np.testing.assert_array_equal(to_weight_BT, np.zeros((B, T)))

  def test_equal_weights_are_the_mean_over_tokens(self):
    x_BT, mask_BT, _, _ = _batch(seed=2)
    np.testing.assert_allclose(
      reductions.weighted_mean(x_BT, mask_BT, jnp.full((B, T), 7.0)).value(),
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

  @parameterized.parameters((B, False), (0, True))
  def test_nothing_trained_is_a_mean_of_zero(self, num_rows, trained):
    x_BT = jnp.full((num_rows, T), jnp.nan)
    mean = reductions.weighted_mean(
      x_BT, jnp.full((num_rows, T), trained), x_BT
    )
    self.assertEqual(mean.value(), 0)

  def test_refuses_a_mask_that_is_not_bool(self):
    ones_BT = jnp.ones((B, T))
    with self.assertRaises(AssertionError):
      reductions.weighted_mean(ones_BT, ones_BT, ones_BT)


class TaskWeightsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*SHARES)
  def test_matches_reference(self, share_I):
    _, mask_BT, _, task_BT = _batch(seed=4)
    settings = dict(num_tasks=NUM_TASKS, share_I=share_I)
    weights = functools.partial(reductions.task_weights, **settings)
    with jax.enable_x64(True):
      weight_BT = np.asarray(self.variant(weights)(task_BT, mask_BT))
    np.testing.assert_allclose(
      weight_BT,
      reference.task_weights(task_BT, mask_BT, **settings),
      rtol=1e-13,
    )
    self.assertAlmostEqual(weight_BT.sum(), mask_BT.sum(), places=10)

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
      jax.value_and_grad(value)(x_BT),
      jax.value_and_grad(of_tasks)(x_BT),
      atol=1e-6,
    )

  def test_the_share_of_an_absent_task_goes_to_the_others(self):
    mask_BT = jnp.ones((1, 4), bool)
    weight_BT = reductions.task_weights(
      jnp.array([[0, 0, 0, 2]]),
      mask_BT,
      num_tasks=NUM_TASKS,
      share_I=jnp.array([1, 10, 3]),
    )
    np.testing.assert_allclose(weight_BT, [[1 / 3, 1 / 3, 1 / 3, 3]], rtol=1e-6)

  @hypothesis.settings(deadline=None, database=None, max_examples=20)
  @hypothesis.given(tasks=st.lists(st.integers(0, 2), min_size=6, max_size=6))
  def test_every_task_weighs_the_same(self, tasks):
    task_BT = np.array([tasks], np.int32)
    weight_BT = reductions.task_weights(
      task_BT, np.ones((1, T), bool), num_tasks=NUM_TASKS
    )
    totals = [weight_BT[task_BT == i].sum() for i in set(tasks)]
    np.testing.assert_allclose(totals, T / len(totals), rtol=1e-5)

  def test_ids_out_of_range_cannot_pass_unnoticed(self):
    weight_BT = reductions.task_weights(
      jnp.array([[0, -1, 3, 1]]), jnp.ones((1, 4), bool), num_tasks=NUM_TASKS
    )
    np.testing.assert_array_equal(
      np.isnan(weight_BT), [[False, True, True, False]]
    )

  @parameterized.parameters((B, False), (0, True))
  def test_nothing_trained_has_no_weights(self, num_rows, trained):
    mask_BT = jnp.full((num_rows, T), trained)
    weight_BT = reductions.task_weights(
      jnp.zeros((num_rows, T), int), mask_BT, num_tasks=NUM_TASKS
    )
    np.testing.assert_array_equal(weight_BT, np.zeros((num_rows, T)))

  def test_refuses_shares_of_other_tasks(self):
    with self.assertRaises(AssertionError):
      reductions.task_weights(
        jnp.zeros((1, 1), int),
        jnp.ones((1, 1), bool),
        num_tasks=2,
        share_I=jnp.ones(3),
      )


class PairMeanTest(parameterized.TestCase):
  def test_invalid_pairs_are_not_counted(self):
    x_P = jnp.array([1.0, jnp.nan, 4.0])
    valid_P = jnp.array([True, False, True])
    mean = reductions.pair_mean(x_P, valid_P)
    self.assertEqual(mean.value(), 2.5)
    gradient_P = jax.grad(lambda x: reductions.pair_mean(x, valid_P).value())(
      x_P
    )
    np.testing.assert_array_equal(gradient_P, [0.5, 0, 0.5])

  def test_no_pairs_are_a_mean_of_zero(self):
    self.assertEqual(
      reductions.pair_mean(jnp.zeros(0), jnp.zeros(0, bool)).value(), 0
    )

  def test_refuses_another_rank(self):
    with self.assertRaises(AssertionError):
      reductions.pair_mean(jnp.zeros((1, 1)), jnp.zeros((1, 1), bool))


if __name__ == "__main__":
  absltest.main()
