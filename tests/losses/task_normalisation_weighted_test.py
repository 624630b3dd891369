"""Tests of `losses.task_normalisation` before advantages meet tokens."""

import functools

import chex
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.losses.advantages.normalisation import (
  task_normalise,
  task_normalise_weighted,
)

NUM_TASKS = 5
MODES = tuple(
  {"center": center, "scale": scale}
  for center in (True, False)
  for scale in (True, False)
)


def _normalise(*inputs, **settings):
  return task_normalise(*inputs, num_tasks=NUM_TASKS, **settings)


class TaskNormaliseWeightedTest(chex.TestCase):
  def _trajectories(self, seed: int):
    rng = np.random.default_rng(seed)
    size = 16
    advantage_N = rng.normal(size=size).astype(np.float32)
    task_N = rng.integers(NUM_TASKS - 1, size=size)
    num_tokens_N = rng.integers(0, 12, size=size)
    valid_N = rng.random(size) < 0.8
    advantage_N[~valid_N] = np.nan
    return advantage_N, task_N, num_tokens_N, valid_N

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(MODES, epsilon=(1e-6, 0.1), seed=(0, 1, 2))
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
    weighted = self.variant(
      functools.partial(
        task_normalise_weighted,
        num_tasks=NUM_TASKS,
        **settings,
      )
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
      jnp.array([1.0, 0.0]),
      jnp.array([0, 0]),
      jnp.array([3, 1]),
      jnp.ones(2, bool),
      num_tasks=1,
      scale=False,
    )
    np.testing.assert_allclose(normalised_N, [0.25, -0.75])

  def test_refuses_other_lengths(self):
    with self.assertRaises(AssertionError):
      task_normalise_weighted(
        jnp.zeros(2),
        jnp.zeros(2, int),
        jnp.ones(3, int),
        jnp.ones(2, bool),
        num_tasks=1,
      )


class OverTrajectoriesTest(chex.TestCase):
  def test_every_trajectory_weighs_the_same(self):
    settings = {"num_tasks": 1, "over": "trajectories", "scale": False}
    normalised_N = task_normalise_weighted(
      jnp.array([1.0, 0.0, 5.0]),
      jnp.array([0, 0, 0]),
      jnp.array([3, 1, 0]),
      jnp.ones(3, bool),
      **settings,
    )
    np.testing.assert_allclose(normalised_N, [0.5, -0.5, 0])

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(MODES)
  def test_is_task_normalise_of_answers_of_one_token(self, **settings):
    rng = np.random.default_rng(0)
    advantage_N = rng.normal(size=(16, 1)).astype(np.float32)
    task_N = rng.integers(NUM_TASKS, size=(16, 1))
    valid_N = rng.random((16, 1)) < 0.8
    normalise = self.variant(
      functools.partial(
        task_normalise_weighted,
        num_tasks=NUM_TASKS,
        over="trajectories",
        **settings,
      )
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

  def test_refuses_anything_else(self):
    with self.assertRaisesRegex(ValueError, 'over="rows" must be "tokens"'):
      task_normalise_weighted(
        jnp.zeros(2),
        jnp.zeros(2, int),
        jnp.ones(2, int),
        jnp.ones(2, bool),
        num_tasks=1,
        over="rows",
      )


if __name__ == "__main__":
  absltest.main()
