"""Tests of `twin_critic`: ArCHer's targets, losses and slow copies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from studies.credit import twin_critic
from tests.losses.gradients import assert_gradient
from tests.studies.reference import twin_critic as reference

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
  def test_matches_reference_and_hides_nan(self, pool):
    settings = dict(discount=0.9, pool=pool)
    with jax.enable_x64(True):
      found = jax.jit(functools.partial(twin_critic.twin_targets, **settings))(
        *_targets(seed=0)
      )
    expected = reference.twin_targets(*_targets(seed=0), **settings)
    for x_2N, expected_2N in zip(found, expected, strict=True):
      np.testing.assert_allclose(x_2N, expected_2N, rtol=1e-14)

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

  @parameterized.parameters(
    (dict(discount=1.5), "discount=1.5 must be from 0 to 1"),
    (dict(discount=1.0, pool="max"), "pool='max' must be 'own'"),
  )
  def test_refuses_invalid_settings(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      twin_critic.twin_targets(*_targets(seed=2), **settings)


class TwinCriticLossTest(parameterized.TestCase):
  def test_matches_reference_and_hides_nan(self):
    with jax.enable_x64(True):
      loss_N = jax.jit(twin_critic.twin_critic_loss)(*_values(seed=0))
    np.testing.assert_allclose(
      loss_N, reference.twin_critic_loss(*_values(seed=0)), rtol=1e-14
    )

  @parameterized.parameters(0, 1)
  def test_gradient_matches_finite_differences_and_hides_nan(self, place):
    arrays = _values(seed=1)

    def with_x(function):
      return lambda x: function(*arrays[:place], x, *arrays[place + 1 :]).sum()

    assert_gradient(
      with_x(twin_critic.twin_critic_loss),
      with_x(reference.twin_critic_loss),
      arrays[place],
    )

  def test_is_the_released_codes_sum_of_four_mean_squares(self):
    """In torch: MSE of q1, q2, v1, v2, targets under no_grad, one backward."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    reward_N, next_2N, fresh_2N = (
      rng.normal(size=shape) for shape in (N, (2, N), (2, N))
    )
    done_N = rng.random(N) < 0.4
    now = torch.tensor(rng.normal(size=(4, N)), requires_grad=True)
    mse = torch.nn.MSELoss()
    going = torch.tensor(1.0 - done_N)
    bootstrap = [
      torch.tensor(reward_N) + going * torch.tensor(x_N) * 0.95
      for x_N in next_2N
    ]
    fresh = [torch.tensor(x_N) for x_N in fresh_2N]
    total = (
      mse(now[0], bootstrap[0])
      + mse(now[1], bootstrap[1])
      + mse(now[2], fresh[0])
      + mse(now[3], fresh[1])
    )
    total.backward()
    all_N = np.ones(N, bool)

    def loss(now_4N):
      targets = twin_critic.twin_targets(
        reward_N, done_N, next_2N, fresh_2N, all_N, discount=0.95
      )
      return twin_critic.twin_critic_loss(
        now_4N[:2], now_4N[2:], *targets, all_N
      ).mean()

    with jax.enable_x64(True):
      value, gradient_4N = jax.value_and_grad(loss)(now.detach().numpy())
    np.testing.assert_allclose(value, total.item(), rtol=1e-12)
    np.testing.assert_allclose(gradient_4N, now.grad.numpy(), rtol=1e-10)

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
  def test_matches_reference_and_hides_nan(self):
    q_2N, v_2N, *_, valid_N = _values(seed=5)
    with jax.enable_x64(True):
      advantage_N = jax.jit(twin_critic.twin_advantage)(q_2N, v_2N, valid_N)
    np.testing.assert_allclose(
      advantage_N, reference.twin_advantage(q_2N, v_2N, valid_N), rtol=1e-14
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

  def test_refuses_one_critic(self):
    with self.assertRaises(AssertionError):
      twin_critic.twin_advantage(
        jnp.zeros((1, N)), jnp.zeros((1, N)), jnp.ones(N, bool)
      )


class PolyakAverageTest(parameterized.TestCase):
  @parameterized.parameters(0.0, 0.1, 1.0)
  def test_matches_reference_leaf_by_leaf(self, rate):
    rng = np.random.default_rng(7)
    slow, fast = (
      {"w": rng.normal(size=(2, 3)), "b": (rng.normal(size=2),)}
      for _ in range(2)
    )
    with jax.enable_x64(True):
      found = twin_critic.polyak_average(slow, fast, rate=rate)
      peer = optax.incremental_update(fast, slow, rate)
    for x, y, z, other in zip(
      *map(jax.tree.leaves, (found, slow, fast, peer)), strict=True
    ):
      expected = reference.polyak_average(y, z, rate=rate)
      np.testing.assert_allclose(x, expected, atol=1e-14)
      np.testing.assert_allclose(x, other, atol=1e-14)

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

  def test_refuses_rates_and_trees_that_cannot_be_meant(self):
    with self.assertRaisesRegex(ValueError, "rate=2 must be from 0 to 1"):
      twin_critic.polyak_average(jnp.ones(1), jnp.ones(1), rate=2)
    with self.assertRaises(AssertionError):
      twin_critic.polyak_average({"w": jnp.ones(1)}, {"w": jnp.ones(2)}, rate=1)
