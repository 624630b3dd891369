"""Tests of `TaskMoments`: the moments of parts add up."""

import dataclasses
import functools

import hypothesis
import jax
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples
from tests.losses.compiled import functions_of
from tests.reference.advantages import task_moments as reference

normalisation = functions_of(losses.advantages.normalisation)
add = jax.jit(losses.TaskMoments.__add__)
B, T, NUM_TASKS = 7, 6, 5


def _tokens(seed: int, weights: bool = False):
  """NaN and absurd tasks where nothing counts; task 3 constant, 4 absent."""
  rng = np.random.default_rng(seed)
  task_BT = np.tile(np.array([0, 1, 0, 3, 2, 1, 0])[:, None], (1, T))
  x_BT = rng.normal(0.5, 2, size=(B, T)).astype(np.float32)
  x_BT[3] = 0.7
  weight_BT = rng.random((B, T)) < 0.7
  weight_BT[4] = np.arange(T) == 3
  if weights:
    weight_BT = weight_BT * rng.integers(1, 9, size=(B, T))
  off = weight_BT == 0
  x_BT[off] = np.nan
  task_BT[off] = rng.choice([-7, -1, NUM_TASKS, 99], size=off.sum())
  return x_BT, task_BT, weight_BT


def _measure(*inputs):
  return normalisation.measure_tasks(*inputs, num_tasks=NUM_TASKS)


def _assert_equal(moments, expected, **tolerance):
  if isinstance(expected, normalisation.TaskMoments):
    expected = dataclasses.astuple(expected)
  for found_I, expected_I in zip(
    dataclasses.astuple(moments), expected, strict=True
  ):
    np.testing.assert_allclose(found_I, expected_I, **tolerance)


class MeasureTasksTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_constant_entries_have_zero_variance(self):
    for size in (1, 7, 11):
      moments = normalisation.measure_tasks(
        np.full(size, -0.2),
        np.zeros(size, int),
        np.ones(size, bool),
        num_tasks=1,
      )
      np.testing.assert_array_equal(moments.mean_I, np.float32([-0.2]))
      np.testing.assert_array_equal(moments.variance_I, [0])

  @pytest.mark.slow
  def test_moments_of_no_entries_are_the_initial_moments(self):
    unseen = normalisation.unseen_tasks(NUM_TASKS)
    for num_rows in (0, 2):
      _assert_equal(
        _measure(
          np.full((num_rows, T), np.nan),
          np.zeros((num_rows, T), int),
          np.zeros((num_rows, T), bool),
        ),
        unseen,
      )

  def test_a_variance_that_exceeds_float32_is_not_hidden(self):
    moments = normalisation.measure_tasks(
      np.array([1e20, -1e20, 1.0, 2.0]),
      np.array([0, 0, 1, 1]),
      np.ones(4, bool),
      num_tasks=2,
    )
    np.testing.assert_array_equal(moments.variance_I, [np.nan, 0.5])

  def test_a_broken_entry_is_not_hidden(self):
    x_BT, task_BT, weight_BT = _tokens(seed=2)
    at = tuple(np.argwhere(weight_BT & (task_BT == 3))[0])
    x_BT[at] = np.nan
    moments = _measure(x_BT, task_BT, weight_BT)
    np.testing.assert_array_equal(
      np.isnan(moments.mean_I), [False, False, False, True, False]
    )


class AddTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(
    seed=st.integers(0, 999), weights=st.booleans(), cut=st.integers(0, B)
  )
  def test_two_parts_are_the_whole(self, seed, weights, cut):
    inputs = _tokens(seed, weights)
    # One shape for every cut: the other part's rows do not count.
    early_B1 = (np.arange(B) < cut)[:, None]
    parts = [
      _measure(*inputs[:2], np.where(rows_B1, inputs[2], 0))
      for rows_B1 in (early_B1, ~early_B1)
    ]
    whole = _measure(*inputs)
    _assert_equal(add(parts[0], parts[1]), whole, rtol=1e-5, atol=1e-6)
    _assert_equal(add(parts[1], parts[0]), whole, rtol=1e-5, atol=1e-6)

  def test_seven_micro_batches_are_the_whole(self):
    inputs = _tokens(seed=3)
    parts = [_measure(*(x[b : b + 1] for x in inputs)) for b in range(B)]
    total = functools.reduce(add, parts)
    _assert_equal(total, _measure(*inputs), rtol=1e-6, atol=1e-6)
    # Exactly: task 3 is constant, in its parts and in their sum.
    self.assertEqual(np.asarray(total.variance_I)[3], 0)
    self.assertEqual(np.asarray(total.mean_I)[3], np.float32(0.7))

  @pytest.mark.slow
  def test_far_from_zero_nothing_cancels(self):
    x_BT, task_BT, weight_BT = _tokens(seed=4)
    inputs = (x_BT + 4096, task_BT, weight_BT)
    parts = [_measure(*(x[b : b + 1] for x in inputs)) for b in range(B)]
    _assert_equal(
      functools.reduce(add, parts),
      reference.measure_tasks(*inputs, num_tasks=NUM_TASKS),
      rtol=1e-3,
    )


class BlendMomentsTest(parameterized.TestCase):
  def test_forgetting_nothing_is_adding(self):
    first, second = (_measure(*_tokens(seed)) for seed in (5, 6))
    _assert_equal(
      normalisation.blend_moments(first, second, decay=1.0), add(first, second)
    )

  def test_the_first_batch_sets_the_moments_and_absence_keeps_them(self):
    batch = _measure(*_tokens(seed=7))
    unseen = normalisation.unseen_tasks(NUM_TASKS)
    for old, new in ((unseen, batch), (batch, unseen)):
      _assert_equal(
        normalisation.blend_moments(old, new, decay=0.9), batch, rtol=0
      )

  @pytest.mark.slow
  def test_in_the_long_run_it_is_an_exponential_average(self):
    running = normalisation.unseen_tasks(1)
    for mean in [0.0] * 99 + [1.0]:
      x = np.array([mean - 1, mean + 1])
      running = normalisation.blend_moments(
        running,
        normalisation.measure_tasks(
          x, np.zeros(2, int), np.ones(2, bool), num_tasks=1
        ),
        decay=0.9,
      )
    np.testing.assert_allclose(running.mean_I, [0.1], rtol=1e-3)
