"""Tests of `losses.whitening`: one yardstick for the whole batch."""

import functools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from agentrl_jax.losses.advantages.normalisation import (
  task_normalise,
  whiten,
  whiten_weighted,
)
from tests.reference import whitening as reference

few_examples = hypothesis.settings(
  deadline=None, database=None, max_examples=20
)
B, T = 5, 8


def _tokens(seed: int):
  rng = np.random.default_rng(seed)
  x_BT = rng.normal(1.5, 3, size=(B, T)).astype(np.float32)
  mask_BT = rng.random((B, T)) < 0.6
  mask_BT[1] = False
  x_BT[~mask_BT] = np.nan
  return x_BT, mask_BT


class WhitenTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(center=(True, False), epsilon=(1e-8, 0.1))
  def test_matches_reference_and_hides_nan(self, **settings):
    x_BT, mask_BT = _tokens(seed=0)
    np.testing.assert_allclose(
      self.variant(functools.partial(whiten, **settings))(x_BT, mask_BT),
      reference.whiten(x_BT, mask_BT, **settings),
      rtol=1e-5,
      atol=1e-6,
    )

  def test_twelve_digits_in_float64(self):
    x_BT, mask_BT = _tokens(seed=1)
    x_BT = x_BT.astype(np.float64) / 3
    with jax.enable_x64(True):
      y_BT = whiten(x_BT, mask_BT)
    np.testing.assert_allclose(
      y_BT, reference.whiten(x_BT, mask_BT), rtol=1e-12
    )

  @few_examples
  @hypothesis.given(
    seed=st.integers(0, 999),
    shift=st.integers(-8, 8),
    factor=st.integers(1, 8),
  )
  def test_neither_shift_nor_unit_matters(self, seed, shift, factor):
    x_BT, mask_BT = _tokens(seed)
    y_BT = np.asarray(whiten(factor * x_BT + shift, mask_BT))
    np.testing.assert_allclose(y_BT, whiten(x_BT, mask_BT), atol=1e-5)
    np.testing.assert_allclose(y_BT[mask_BT].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(y_BT[mask_BT].var(ddof=1), 1, rtol=1e-5)

  @few_examples
  @hypothesis.given(seed=st.integers(0, 999))
  def test_of_one_task_it_is_task_normalise(self, seed):
    x_BT, mask_BT = _tokens(seed)
    np.testing.assert_allclose(
      whiten(x_BT, mask_BT),
      task_normalise(x_BT, jnp.zeros((B, T), int), mask_BT, num_tasks=1),
      atol=1e-5,
    )

  def test_without_centering_the_mean_stays(self):
    x_BT, mask_BT = _tokens(seed=2)
    y_BT = np.asarray(whiten(x_BT, mask_BT, center=False))
    np.testing.assert_allclose(
      y_BT[mask_BT].mean(), x_BT[mask_BT].mean(), rtol=1e-5
    )
    np.testing.assert_allclose(y_BT[mask_BT].std(ddof=1), 1, rtol=1e-5)

  @parameterized.parameters(0.1, -0.2, 0.7)
  def test_what_is_constant_or_alone_gives_exactly_nothing(self, value):
    x_BT = jnp.full((B, T), value)
    _, mask_BT = _tokens(seed=3)
    alone_BT = np.arange(B * T).reshape(B, T) == 7
    for some_BT in (mask_BT, alone_BT, np.zeros((B, T), bool)):
      np.testing.assert_array_equal(whiten(x_BT, some_BT), np.zeros((B, T)))
      np.testing.assert_array_equal(
        whiten(x_BT, some_BT, center=False),
        np.where(some_BT, np.float32(value), 0),
      )

  def test_no_rows_and_a_broken_token(self):
    self.assertEqual(
      whiten(jnp.zeros((0, T)), jnp.zeros((0, T), bool)).shape, (0, T)
    )
    x_BT, mask_BT = _tokens(seed=4)
    x_BT[tuple(np.argwhere(mask_BT)[2])] = np.nan
    np.testing.assert_array_equal(np.isnan(whiten(x_BT, mask_BT)), mask_BT)

  def test_is_a_constant(self):
    x_BT, mask_BT = _tokens(seed=4)
    gradient_BT = jax.grad(lambda x_BT: jnp.sum(whiten(x_BT, mask_BT) ** 2))(
      jnp.array(x_BT)
    )
    np.testing.assert_array_equal(gradient_BT, np.zeros((B, T)))

  def test_refuses_a_mask_that_is_not_bool(self):
    with self.assertRaises(AssertionError):
      whiten(jnp.zeros((B, T)), jnp.ones((B, T)))


class WhitenWeightedTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(True, False)
  def test_is_whiten_of_the_tokens(self, center):
    weighted = self.variant(functools.partial(whiten_weighted, center=center))
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


if __name__ == "__main__":
  absltest.main()
