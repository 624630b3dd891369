"""Tests of `losses.task_normalisation`: every task in its own units."""

import dataclasses
import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses.advantages.normalisation import (
  blend_moments,
  measure_tasks,
  normalise_by_moments,
  task_normalise,
  unseen_tasks,
)
from tests.reference import advantages as reference
from tests.reference import task_moments as moments_reference

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=20
)
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


# For properties, of which many batches are tried: compiled once per shape.
_compiled = jax.jit(_normalise)


class TaskNormaliseTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(MODES, epsilon=(1e-6, 0.1))
  def test_matches_reference_and_hides_nan(self, **settings):
    inputs = _tokens(seed=0)
    np.testing.assert_allclose(
      self.variant(functools.partial(_normalise, **settings))(*inputs),
      reference.task_normalise(*inputs, **settings),
      rtol=1e-4,
      atol=1e-6,
    )

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

  @parameterized.parameters(*MODES)
  def test_nothing_trained_gives_nothing(self, **settings):
    normalised_BT = _normalise(
      jnp.full((B, T), jnp.nan),
      jnp.zeros((B, T), int),
      jnp.zeros((B, T), bool),
      **settings,
    )
    np.testing.assert_array_equal(normalised_BT, np.zeros((B, T)))

  @parameterized.parameters(*MODES)
  def test_no_rows_give_no_rows(self, **settings):
    empty = jnp.zeros((0, T))
    normalised_BT = _normalise(
      empty, empty.astype(int), empty.astype(bool), **settings
    )
    self.assertEqual(normalised_BT.shape, (0, T))

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999), factor=st.integers(1, 8))
  def test_a_task_knows_nothing_of_the_others(self, seed, factor):
    advantage_BT, task_BT, mask_BT = _tokens(seed)
    others_BT = mask_BT & (task_BT != 0)
    changed_BT = np.where(others_BT, factor * advantage_BT + 3, advantage_BT)
    before_BT = np.asarray(_compiled(advantage_BT, task_BT, mask_BT))
    after_BT = np.asarray(_compiled(changed_BT, task_BT, mask_BT))
    # By its own mean and deviation, any shift and unit are gone as well.
    np.testing.assert_allclose(after_BT, before_BT, atol=1e-4)
    mine_BT = mask_BT & (task_BT == 0)
    np.testing.assert_array_equal(after_BT[mine_BT], before_BT[mine_BT])

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_twice_is_once(self, seed):
    advantage_BT, task_BT, mask_BT = _tokens(seed)
    once_BT = _compiled(advantage_BT, task_BT, mask_BT)
    np.testing.assert_allclose(
      _compiled(once_BT, task_BT, mask_BT), once_BT, atol=1e-4
    )

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999), rows=st.sampled_from([1, 2, 9]))
  def test_packing_does_not_matter(self, seed, rows):
    inputs = _tokens(seed)
    np.testing.assert_allclose(
      _compiled(*(x.reshape(rows, -1) for x in inputs)).reshape(B, T),
      _compiled(*inputs),
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

  def test_refuses_a_mask_that_is_not_bool(self):
    advantage_BT, task_BT, mask_BT = _tokens(seed=5)
    with self.assertRaises(AssertionError):
      _normalise(advantage_BT, task_BT, mask_BT.astype(np.float32))


class NormaliseByMomentsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(MODES, epsilon=(1e-6, 0.1))
  def test_matches_reference_and_hides_nan(self, **settings):
    moments = measure_tasks(*_tokens(seed=0), num_tasks=NUM_TASKS)
    inputs = _tokens(seed=1)
    normalise = self.variant(
      functools.partial(normalise_by_moments, **settings)
    )
    np.testing.assert_allclose(
      normalise(*inputs, moments),
      moments_reference.normalise_by_moments(
        *inputs, dataclasses.astuple(moments), **settings
      ),
      rtol=1e-5,
      atol=1e-5,
    )

  @parameterized.product(MODES)
  def test_twelve_digits_in_float64(self, **settings):
    advantage_BT, task_BT, mask_BT = _tokens(seed=2)
    advantage_BT = advantage_BT.astype(np.float64) / 3
    with jax.enable_x64(True):
      normalised_BT = _normalise(advantage_BT, task_BT, mask_BT, **settings)
    np.testing.assert_allclose(
      normalised_BT,
      reference.task_normalise(advantage_BT, task_BT, mask_BT, **settings),
      rtol=1e-12,
      atol=1e-13,
    )

  @parameterized.product(MODES)
  def test_with_the_batchs_own_in_seven_parts_it_is_task_normalise(
    self, **settings
  ):
    inputs = _tokens(seed=3)
    parts = [
      measure_tasks(*(x[b : b + 1] for x in inputs), num_tasks=NUM_TASKS)
      for b in range(B)
    ]
    moments = functools.reduce(lambda a, b: a + b, parts)
    np.testing.assert_allclose(
      normalise_by_moments(*inputs, moments, **settings),
      _normalise(*inputs, **settings),
      atol=1e-6,
    )

  def test_by_running_moments_a_bad_batch_stays_visible(self):
    task_N, mask_N = jnp.zeros(4, int), jnp.ones(4, bool)
    running = unseen_tasks(1)
    for reward_N in ([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]):
      reward_N = jnp.array(reward_N)
      batch = measure_tasks(reward_N, task_N, mask_N, num_tasks=1)
      running = blend_moments(running, batch, decay=1.0)
    # Two of eight: mean 1/4, unbiased variance 3/14.
    np.testing.assert_allclose(
      normalise_by_moments(reward_N, task_N, mask_N, running),
      np.full(4, -0.25 / np.sqrt(3 / 14)),
      rtol=1e-5,
    )

  def test_a_task_without_a_unit_gets_nothing_but_shows_what_is_broken(self):
    unseen = unseen_tasks(2)
    normalised_N = normalise_by_moments(
      jnp.array([3.0, jnp.nan, 3.0, jnp.nan]),
      jnp.array([0, 1, 7, 0]),
      jnp.array([True, True, True, False]),
      unseen,
    )
    np.testing.assert_array_equal(normalised_N, [0, np.nan, np.nan, 0])

  def test_is_a_constant(self):
    advantage_BT, task_BT, mask_BT = _tokens(seed=5)
    gradient_BT = jax.grad(
      lambda x_BT: jnp.sum(_normalise(x_BT, task_BT, mask_BT) ** 2)
    )(jnp.array(advantage_BT))
    np.testing.assert_array_equal(gradient_BT, np.zeros((B, T)))


if __name__ == "__main__":
  absltest.main()
