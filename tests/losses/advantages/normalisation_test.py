"""Tests of `losses.advantages.normalisation`: by task, and whitening."""

import functools

import hypothesis
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import strategies as st

from agentrl_jax import losses
from tests.losses.advantages.random_inputs import few_examples
from tests.losses.compiled import functions_of

normalisation = functions_of(losses.advantages.normalisation)
task_normalise = normalisation.task_normalise
task_normalise_weighted = normalisation.task_normalise_weighted
whiten = normalisation.whiten
B, T, NUM_TASKS = 6, 9, 5
MODES = tuple(
  dict(center=center, scale=scale)
  for center in (True, False)
  for scale in (True, False)
)


def _tokens(seed: int):
  """NaN and absurd tasks off the mask; one row off; task 3 constant, 4 absent.

  Task 2 has a single trained token.
  """
  rng = np.random.default_rng(seed)
  task_BT = np.broadcast_to(
    np.array([0, 1, 0, 3, 2, 1])[:, None], (B, T)
  ).copy()
  advantage_BT = rng.normal(0.5, 2, size=(B, T)).astype(np.float32)
  advantage_BT[3] = 0.7
  mask_BT = rng.random((B, T)) < 0.7
  mask_BT[4] = np.arange(T) == 3
  mask_BT[5] = False
  advantage_BT[~mask_BT] = np.nan
  task_BT[~mask_BT] = rng.choice([-7, -1, NUM_TASKS, 99])
  return advantage_BT, task_BT, mask_BT


def _normalise(*inputs, **settings):
  return task_normalise(*inputs, num_tasks=NUM_TASKS, **settings)


class TaskNormaliseTest(parameterized.TestCase):
  def test_every_task_gets_mean_zero_and_deviation_one(self):
    advantage_BT, task_BT, mask_BT = _tokens(seed=1)
    normalised_BT = np.asarray(_normalise(advantage_BT, task_BT, mask_BT))
    for task in (0, 1):
      tokens = normalised_BT[mask_BT & (task_BT == task)]
      self.assertGreater(len(tokens), 2)
      np.testing.assert_allclose(tokens.mean(), 0, atol=1e-5)
      np.testing.assert_allclose(tokens.std(ddof=1), 1, rtol=1e-5)

  @parameterized.parameters(*MODES[:3])
  def test_a_task_without_variance_gets_exactly_nothing(self, **settings):
    advantage_BT, task_BT, mask_BT = _tokens(seed=2)
    normalised_BT = np.asarray(
      _normalise(advantage_BT, task_BT, mask_BT, **settings)
    )
    for task in (2, 3):
      self.assertTrue((mask_BT & (task_BT == task)).any())
      np.testing.assert_array_equal(normalised_BT[task_BT == task], 0)

  def test_neither_centered_nor_scaled_is_masked_only(self):
    advantage_BT, task_BT, mask_BT = _tokens(seed=3)
    np.testing.assert_array_equal(
      _normalise(advantage_BT, task_BT, mask_BT, center=False, scale=False),
      np.where(mask_BT, advantage_BT, 0),
    )

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999), factor=st.integers(1, 8))
  def test_a_task_knows_nothing_of_the_others(self, seed, factor):
    advantage_BT, task_BT, mask_BT = _tokens(seed)
    others_BT = mask_BT & (task_BT != 0)
    changed_BT = np.where(others_BT, factor * advantage_BT + 3, advantage_BT)
    before_BT = np.asarray(_normalise(advantage_BT, task_BT, mask_BT))
    after_BT = np.asarray(_normalise(changed_BT, task_BT, mask_BT))
    # By its own mean and deviation, any shift and unit are gone as well.
    np.testing.assert_allclose(after_BT, before_BT, atol=1e-4)
    mine_BT = mask_BT & (task_BT == 0)
    np.testing.assert_array_equal(after_BT[mine_BT], before_BT[mine_BT])

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_normalising_twice_changes_nothing(self, seed):
    advantage_BT, task_BT, mask_BT = _tokens(seed)
    once_BT = _normalise(advantage_BT, task_BT, mask_BT)
    np.testing.assert_allclose(
      _normalise(once_BT, task_BT, mask_BT), once_BT, atol=1e-4
    )

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999), rows=st.sampled_from([1, 2, 9]))
  def test_packing_does_not_matter(self, seed, rows):
    inputs = _tokens(seed)
    np.testing.assert_allclose(
      _normalise(*(x.reshape(rows, -1) for x in inputs)).reshape(B, T),
      _normalise(*inputs),
      atol=1e-5,
    )

  @parameterized.parameters(-1, NUM_TASKS, 100)
  def test_a_task_out_of_range_is_not_hidden(self, task):
    advantage_BT, task_BT, mask_BT = _tokens(seed=4)
    task_BT[mask_BT & (task_BT == 1)] = task
    normalised_BT = _normalise(advantage_BT, task_BT, mask_BT)
    np.testing.assert_array_equal(
      np.isnan(normalised_BT), mask_BT & (task_BT == task)
    )


class NormaliseByMomentsTest(parameterized.TestCase):
  def test_by_running_moments_a_bad_batch_stays_visible(self):
    task_N, mask_N = np.zeros(4, int), np.ones(4, bool)
    running = normalisation.unseen_tasks(1)
    for reward_N in ([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]):
      reward_N = np.array(reward_N)
      batch = normalisation.measure_tasks(reward_N, task_N, mask_N, num_tasks=1)
      running = normalisation.blend_moments(running, batch, decay=1.0)
    # Two of eight: mean 1/4, unbiased variance 3/14.
    np.testing.assert_allclose(
      normalisation.normalise_by_moments(reward_N, task_N, mask_N, running),
      np.full(4, -0.25 / np.sqrt(3 / 14)),
      rtol=1e-5,
    )

  def test_a_task_without_a_unit_gets_nothing_but_shows_what_is_broken(self):
    unseen = normalisation.unseen_tasks(2)
    normalised_N = normalisation.normalise_by_moments(
      np.array([3.0, np.nan, 3.0, np.nan]),
      np.array([0, 1, 7, 0]),
      np.array([True, True, True, False]),
      unseen,
    )
    np.testing.assert_array_equal(normalised_N, [0, np.nan, np.nan, 0])


class TaskNormaliseWeightedTest(parameterized.TestCase):
  def _trajectories(self, seed: int):
    rng = np.random.default_rng(seed)
    size = 16
    advantage_N = rng.normal(size=size).astype(np.float32)
    task_N = rng.integers(NUM_TASKS - 1, size=size)
    num_tokens_N = rng.integers(0, 12, size=size)
    valid_N = rng.random(size) < 0.8
    advantage_N[~valid_N] = np.nan
    return advantage_N, task_N, num_tokens_N, valid_N

  @parameterized.product(MODES, epsilon=(1e-6, 0.1), seed=(0, 1, 2))
  @pytest.mark.slow
  def test_is_task_normalise_of_the_tokens(self, seed, **settings):
    advantage_N, task_N, num_tokens_N, valid_N = self._trajectories(seed)
    shape = (len(task_N), 12)
    mask_BT = valid_N[:, None] & (np.arange(12)[None] < num_tokens_N[:, None])
    tokens_BT = _normalise(
      np.broadcast_to(advantage_N[:, None], shape),
      np.broadcast_to(task_N[:, None], shape),
      mask_BT,
      **settings,
    )
    weighted = functools.partial(
      task_normalise_weighted, num_tasks=NUM_TASKS, **settings
    )
    normalised_N = np.asarray(
      weighted(advantage_N, task_N, num_tokens_N, valid_N)
    )
    self.assertGreater(np.abs(normalised_N).max(), 0.5)
    np.testing.assert_allclose(
      np.where(mask_BT, normalised_N[:, None], 0), tokens_BT, atol=1e-5
    )
    counted_N = valid_N & (num_tokens_N > 0)
    np.testing.assert_array_equal(normalised_N[~counted_N], 0)

  def test_long_trajectories_weigh_more(self):
    normalised_N = task_normalise_weighted(
      np.array([1.0, 0.0]),
      np.array([0, 0]),
      np.array([3, 1]),
      np.ones(2, bool),
      num_tasks=1,
      scale=False,
    )
    np.testing.assert_allclose(normalised_N, [0.25, -0.75])


class OverTrajectoriesTest(parameterized.TestCase):
  def test_every_trajectory_weighs_the_same(self):
    settings = {"num_tasks": 1, "over": "trajectories", "scale": False}
    normalised_N = task_normalise_weighted(
      np.array([1.0, 0.0, 5.0]),
      np.array([0, 0, 0]),
      np.array([3, 1, 0]),
      np.ones(3, bool),
      **settings,
    )
    np.testing.assert_allclose(normalised_N, [0.5, -0.5, 0])

  @parameterized.product(MODES)
  def test_is_task_normalise_of_answers_of_one_token(self, **settings):
    rng = np.random.default_rng(0)
    advantage_N = rng.normal(size=(16, 1)).astype(np.float32)
    task_N = rng.integers(NUM_TASKS, size=(16, 1))
    valid_N = rng.random((16, 1)) < 0.8
    normalise = functools.partial(
      task_normalise_weighted,
      num_tasks=NUM_TASKS,
      over="trajectories",
      **settings,
    )
    np.testing.assert_allclose(
      normalise(
        advantage_N[:, 0],
        task_N[:, 0],
        rng.integers(1, 9, size=16),
        valid_N[:, 0],
      ),
      _normalise(advantage_N, task_N, valid_N, **settings)[:, 0],
      atol=1e-6,
    )


def _masked_numbers(seed: int):
  rng = np.random.default_rng(seed)
  x_BT = rng.normal(1.5, 3, size=(B, T)).astype(np.float32)
  mask_BT = rng.random((B, T)) < 0.6
  mask_BT[1] = False
  x_BT[~mask_BT] = np.nan
  return x_BT, mask_BT


class WhitenTest(parameterized.TestCase):
  @few_examples
  @hypothesis.given(
    seed=st.integers(0, 999), shift=st.integers(-8, 8), factor=st.integers(1, 8)
  )
  def test_neither_shift_nor_unit_matters(self, seed, shift, factor):
    x_BT, mask_BT = _masked_numbers(seed)
    y_BT = np.asarray(whiten(factor * x_BT + shift, mask_BT))
    np.testing.assert_allclose(y_BT, whiten(x_BT, mask_BT), atol=1e-5)
    np.testing.assert_allclose(y_BT[mask_BT].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(y_BT[mask_BT].var(ddof=1), 1, rtol=1e-5)

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_of_one_task_it_is_task_normalise(self, seed):
    x_BT, mask_BT = _masked_numbers(seed)
    np.testing.assert_allclose(
      whiten(x_BT, mask_BT),
      task_normalise(x_BT, np.zeros((B, T), int), mask_BT, num_tasks=1),
      atol=1e-5,
    )

  def test_without_centering_the_mean_stays(self):
    x_BT, mask_BT = _masked_numbers(seed=2)
    y_BT = np.asarray(whiten(x_BT, mask_BT, center=False))
    np.testing.assert_allclose(
      y_BT[mask_BT].mean(), x_BT[mask_BT].mean(), rtol=1e-5
    )
    np.testing.assert_allclose(y_BT[mask_BT].std(ddof=1), 1, rtol=1e-5)

  @parameterized.parameters(0.1, -0.2, 0.7)
  def test_constant_or_single_numbers_whiten_to_zero(self, value):
    x_BT = np.full((B, T), value)
    _, mask_BT = _masked_numbers(seed=3)
    alone_BT = np.arange(B * T).reshape(B, T) == 7
    for some_BT in (mask_BT, alone_BT, np.zeros((B, T), bool)):
      np.testing.assert_array_equal(whiten(x_BT, some_BT), np.zeros((B, T)))
      np.testing.assert_array_equal(
        whiten(x_BT, some_BT, center=False),
        np.where(some_BT, np.float32(value), 0),
      )

  def test_a_broken_token_is_not_hidden(self):
    x_BT, mask_BT = _masked_numbers(seed=4)
    x_BT[tuple(np.argwhere(mask_BT)[2])] = np.nan
    np.testing.assert_array_equal(np.isnan(whiten(x_BT, mask_BT)), mask_BT)


class WhitenWeightedTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_is_whiten_of_the_tokens(self, center):
    weighted = functools.partial(normalisation.whiten_weighted, center=center)
    for seed in range(3):
      rng = np.random.default_rng(seed)
      x_N = rng.normal(1, 2, size=6).astype(np.float32)
      num_tokens_N = rng.integers(0, T, size=6)
      valid_N = np.arange(6) != 2
      x_N[~valid_N] = np.nan
      mask_NT = valid_N[:, None] & (np.arange(T)[None] < num_tokens_N[:, None])
      y_N = np.asarray(weighted(x_N, num_tokens_N, valid_N))
      tokens_NT = np.broadcast_to(x_N[:, None], (6, T))
      np.testing.assert_allclose(
        np.where(mask_NT, y_N[:, None], 0),
        whiten(tokens_NT, mask_NT, center=center),
        atol=1e-6,
      )
      np.testing.assert_array_equal(y_N[~mask_NT.any(axis=1)], 0)
