"""Twin critics of turns with slow copies, and their advantage (ArCHer).

Two functions Q of a state and an answer, and two functions V of a state, each
with a slow copy that targets are made from (arXiv:2402.19446):

  Q_k(s, a) <- r + gamma (1 - d) slow V_k(s')
  V_k(s)    <- slow Q_k(s, a'),   a' drawn by the present policy at s

The answers a may be those of older policies: Q is about the answer that was
given, whoever gave it. The answers a' may not. V is the value of the policy
that they were drawn by, so they have to be sampled anew whenever V is fitted,
and they are answers that were generated: count them. For the same reason no
importance weight occurs here, and none of these functions may be given returns
of older policies.

Axes: 2 the twins, N recorded turns.
"""

from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, require_fraction, widen

Pool = Literal["own", "min", "mean"]


def twin_targets(
  reward_N: jax.Array,
  ended_N: jax.Array,
  next_value_2N: jax.Array,
  fresh_action_value_2N: jax.Array,
  valid_N: jax.Array,
  *,
  discount: float,
  pool: Pool = "own",
) -> tuple[jax.Array, jax.Array]:
  """Returns the targets of Q and of V at recorded turns.

    target of Q_k = r + discount (1 - ended) slow V_k(s')
    target of V_k = slow Q_k(s, a')

  ArCHer (arXiv:2402.19446, section 3). Its released code gives each twin the
  target of its own copy ("own"), and takes the lower of the twins for the
  actor's advantage alone. The others give both twins one target, the lower of
  the two or their mean.

  Args:
    reward_N: r of the recorded turn.
    ended_N: bool, turns that ended their episode; s' is not read there.
    next_value_2N: slow V at the state after the turn.
    fresh_action_value_2N: slow Q at the recorded state, of an answer that the
      present policy gave there.
    valid_N: bool; the others are not read, and get 0.
    discount: gamma, by turn.
    pool: "own", "min" or "mean".

  Returns:
    (action_value_target_2N, value_target_2N), constants.

  Raises:
    ValueError: a discount that is not from 0 to 1, or another pool.
  """
  require_fraction("discount", discount)
  _check_twins(valid_N, next_value_2N, fresh_action_value_2N)
  check_masked(valid_N, reward_N, ended_N, rank=1)
  chex.assert_type(ended_N, bool)
  later_2N = jnp.where(valid_N & ~ended_N, widen(next_value_2N), 0)
  reward_N = jnp.where(valid_N, widen(reward_N), 0)
  fresh_2N = jnp.where(valid_N, widen(fresh_action_value_2N), 0)
  return jax.lax.stop_gradient(
    (
      reward_N[None] + discount * _pooled(later_2N, pool),
      _pooled(fresh_2N, pool),
    )
  )


def twin_critic_loss(
  action_value_2N: jax.Array,
  value_2N: jax.Array,
  action_value_target_2N: jax.Array,
  value_target_2N: jax.Array,
  valid_N: jax.Array,
) -> jax.Array:
  """Squared errors of both Q and both V, added.

    loss = sum_k (Q_k(s, a) - target of Q_k)^2 + (V_k(s) - target of V_k)^2

  There is no half, as in ArCHer's released code; `clipped_value_loss` has one.
  Q is read at the recorded answer, V at the recorded state.

    d loss / d Q_k = 2 (Q_k - target of Q_k), and likewise for V_k

  Args:
    action_value_2N: Q, differentiable.
    value_2N: V, differentiable.
    action_value_target_2N, value_target_2N: as from `twin_targets`; constants.
    valid_N: bool; the others are not read.

  Returns:
    loss_N, 0 where invalid.
  """
  arrays = (action_value_2N, value_2N, action_value_target_2N, value_target_2N)
  _check_twins(valid_N, *arrays)
  q_2N, v_2N, q_target_2N, v_target_2N = (
    jnp.where(valid_N, widen(x_2N), 0) for x_2N in arrays
  )
  targets = jax.lax.stop_gradient((q_target_2N, v_target_2N))
  error_2N = jnp.square(q_2N - targets[0]) + jnp.square(v_2N - targets[1])
  return jnp.sum(error_2N, axis=0)


def twin_advantage(
  action_value_2N: jax.Array, value_2N: jax.Array, valid_N: jax.Array
) -> jax.Array:
  """Advantage of an answer by the lower of both twins, for the actor.

    A = min_k Q_k(s, a) - min_k V_k(s)

  ArCHer (arXiv:2402.19446) draws the answers a anew from the present policy at
  recorded states, and gives A to all tokens of an answer by REINFORCE. Of a
  recorded answer it is the advantage as well, but a gradient made from it is
  that of the policy which gave the answer.

  Returns:
    advantage_N, a constant, 0 where invalid.
  """
  _check_twins(valid_N, action_value_2N, value_2N)
  q_N, v_N = (
    jnp.min(jnp.where(valid_N, widen(x_2N), 0), axis=0)
    for x_2N in (action_value_2N, value_2N)
  )
  return jax.lax.stop_gradient(q_N - v_N)


def polyak_average(slow: Any, fast: Any, *, rate: float) -> Any:
  """Moves the slow copy of a critic towards the critic.

    slow <- (1 - rate) slow + rate fast

  Of two trees of arrays, leaf by leaf, after every update of the critic
  (Polyak averaging; ArCHer has a rate of 0.1). In float32 at least: in bfloat16
  a small step would be rounded away.

  Args:
    slow: tree of arrays.
    fast: tree of the same shapes.
    rate: from 0 (stays) to 1 (copies).

  Returns:
    The new slow copy, a constant.

  Raises:
    ValueError: a rate that is not from 0 to 1.
  """
  require_fraction("rate", rate)
  chex.assert_trees_all_equal_shapes(slow, fast)
  return jax.lax.stop_gradient(
    jax.tree.map(
      lambda x, y: (1 - rate) * widen(x) + rate * widen(y), slow, fast
    )
  )


def _pooled(x_2N: jax.Array, pool: Pool) -> jax.Array:
  if pool == "own":
    return x_2N
  if pool == "min":
    return jnp.broadcast_to(jnp.min(x_2N, axis=0), x_2N.shape)
  if pool == "mean":
    return jnp.broadcast_to(jnp.mean(x_2N, axis=0), x_2N.shape)
  raise ValueError(
    f"pool={pool!r} must be 'own' (each twin by its own copy), 'min' or 'mean'"
  )


def _check_twins(valid_N: jax.Array, *arrays_2N: jax.Array) -> None:
  chex.assert_rank(valid_N, 1)
  chex.assert_type(valid_N, bool)
  chex.assert_shape(arrays_2N, (2, *valid_N.shape))
