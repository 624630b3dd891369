"""Tests of `twin_critic`: ArCHer's targets, losses and slow copies."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from studies.credit import twin_critic

N = 7
POOLS = ("own", "min", "mean")


def _targets(seed: int):
  """(reward, ended, next value, fresh Q, valid); NaN where nobody may look."""
  rng = np.random.default_rng(seed)
  valid_N = np.arange(N) != 2
  ended_N = rng.random(N) < 0.5
  ended_N[:2] = True, False
  reward_N, next_2N, fresh_2N = (
    rng.normal(size=shape) for shape in (N, (2, N), (2, N))
  )
  return (
    np.where(valid_N, reward_N, np.nan),
    ended_N,
    np.where(valid_N & ~ended_N, next_2N, np.nan),
    np.where(valid_N, fresh_2N, np.nan),
    valid_N,
  )


def _values(seed: int):
  """(Q, V, target of Q, target of V, valid)."""
  rng = np.random.default_rng(seed)
  valid_N = np.arange(N) != 3
  arrays = rng.normal(size=(4, 2, N))
  return *(np.where(valid_N, x_2N, np.nan) for x_2N in arrays), valid_N


class TwinTargetsTest(parameterized.TestCase):
  @parameterized.parameters(*POOLS)
  def test_no_gradient_reaches_the_slow_copies(self, pool):
    reward_N, ended_N, *slow, valid_N = map(np.nan_to_num, _targets(seed=1))

    def total(slow):
      q_target_2N, v_target_2N = twin_critic.twin_targets(
        reward_N,
        ended_N.astype(bool),
        *slow,
        valid_N.astype(bool),
        discount=0.9,
        pool=pool,
      )
      zero_2N = jnp.zeros((2, N))
      return twin_critic.twin_critic_loss(
        zero_2N, zero_2N, q_target_2N, v_target_2N, valid_N.astype(bool)
      ).sum()

    for gradient_2N in jax.grad(total)(slow):
      np.testing.assert_array_equal(gradient_2N, np.zeros((2, N)))


class TwinCriticLossTest(parameterized.TestCase):
  def test_is_the_released_codes_sum_of_four_mean_squares(self):
    """MSE of q1, q2, v1 and v2, against targets that are constants."""
    reward_N, ended_N, next_2N, fresh_2N, valid_N = _targets(seed=3)
    now_4N = np.random.default_rng(3).normal(size=(4, N))
    later_2N = np.where(ended_N, 0, next_2N)
    target_4N = np.concatenate([reward_N + 0.95 * later_2N, fresh_2N])
    error_4N = np.where(valid_N, now_4N - target_4N, 0)

    def loss(now_4N):
      targets = twin_critic.twin_targets(
        reward_N, ended_N, next_2N, fresh_2N, valid_N, discount=0.95
      )
      return twin_critic.twin_critic_loss(
        now_4N[:2], now_4N[2:], *targets, valid_N
      ).mean()

    with jax.enable_x64(True):
      value, gradient_4N = jax.value_and_grad(loss)(now_4N)
    np.testing.assert_allclose(value, (error_4N**2).mean(1).sum(), rtol=1e-12)
    np.testing.assert_allclose(gradient_4N, 2 * error_4N / N, rtol=1e-10)

  def test_a_shared_target_is_not_that_of_the_released_code(self):
    """Twins that differ have other targets by "min" and "mean" than "own"."""
    arrays = _targets(seed=4)
    own, low, mean = (
      twin_critic.twin_targets(*arrays, discount=0.9, pool=pool)[1]
      for pool in POOLS
    )
    self.assertFalse(np.allclose(own, low))
    np.testing.assert_allclose(low, np.broadcast_to(own.min(0), own.shape))
    np.testing.assert_allclose(
      mean, np.broadcast_to(own.mean(0), own.shape), atol=1e-6
    )


class TwinAdvantageTest(parameterized.TestCase):
  def test_is_the_difference_of_the_lower_twins_where_valid(self):
    q_2N, v_2N, *_, valid_N = _values(seed=5)
    np.testing.assert_allclose(
      twin_critic.twin_advantage(q_2N, v_2N, valid_N),
      np.where(valid_N, q_2N.min(0) - v_2N.min(0), 0),
      atol=1e-6,
    )

  def test_no_gradient_reaches_the_critic(self):
    q_2N, v_2N, *_, valid_N = map(np.nan_to_num, _values(seed=6))
    gradients = jax.grad(
      lambda values: twin_critic.twin_advantage(
        *values, valid_N.astype(bool)
      ).sum()
    )((q_2N, v_2N))
    for gradient_2N in gradients:
      np.testing.assert_array_equal(gradient_2N, np.zeros((2, N)))


class PolyakAverageTest(parameterized.TestCase):
  @parameterized.parameters(0.0, 0.1, 1.0)
  def test_is_that_of_optax_leaf_by_leaf(self, rate):
    rng = np.random.default_rng(7)
    slow, fast = (
      {"w": rng.normal(size=(2, 3)), "b": (rng.normal(size=2),)}
      for _ in range(2)
    )
    with jax.enable_x64(True):
      found = twin_critic.polyak_average(slow, fast, rate=rate)
      peer = optax.incremental_update(fast, slow, rate)
    chex.assert_trees_all_close(found, peer, atol=1e-14)

  def test_no_gradient_reaches_either(self):
    gradients = jax.grad(
      lambda pair: twin_critic.polyak_average(*pair, rate=0.3).sum()
    )((jnp.ones(3), jnp.zeros(3)))
    for gradient in gradients:
      np.testing.assert_array_equal(gradient, np.zeros(3))

  def test_a_small_step_in_bfloat16_is_not_lost(self):
    slow, fast = jnp.ones(1, jnp.bfloat16), 1.25 * jnp.ones(1, jnp.bfloat16)
    moved = twin_critic.polyak_average(slow, fast, rate=0.01)
    np.testing.assert_allclose(moved, [1.0025], rtol=1e-6)
