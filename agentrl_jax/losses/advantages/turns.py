"""Returns and generalised advantage estimation over turns.

An agent acts in turns, and a reward is for the whole turn. `turn_BT` assigns
tokens to turns; then `gae` runs over turns instead of tokens. All rewards of a
turn are added up, at whatever token they are. Rewards and values are constants:
no gradient passes.

Axes: B rows, T tokens, U turns of a row, of all its segments (at most T).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.advantages.returns import gae
from agentrl_jax.losses.arguments import check_masked, widen


def turn_gae(
  reward_BT: jax.Array,
  value_BT: jax.Array,
  mask_BT: jax.Array,
  turn_BT: jax.Array,
  *,
  discount: float | jax.Array,
  gae_lambda: float | jax.Array,
  segment_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Generalised advantage estimation over turns.

    delta_u = r_u + gamma V_{u+1} - V_u
    A_u = delta_u + gamma lambda A_{u+1}
    R_u = A_u + V_u

  `gae` (arXiv:1506.02438) with turns as steps: r_u is the sum of the rewards
  of the turn's trained tokens, V_u the value at the first of them, the state in
  which the turn was chosen. Every trained token of the turn gets A_u, so the
  length of an answer changes neither its discount nor its advantage.

  Args:
    reward_BT: not read off the mask.
    value_BT: read at the first trained token of each turn.
    mask_BT: bool, the trained tokens.
    turn_BT: integers, increasing along a sequence; the trained tokens of a
      turn share one, those of neighbouring turns do not. Any value off the
      mask.
    discount: gamma, from 0 to 1, per turn.
    gae_lambda: lambda, from 0 to 1.
    segment_BT: as in `gae`; turns of two segments are two turns, whatever
      their ids.

  Returns:
    (advantage_BT, return_BT), 0 off the mask. Fit the critic to the returns at
    `first_of_turn` only, the tokens at which it is read.

  Raises:
    ValueError: if `discount` or `gae_lambda` is a number outside [0, 1].
  """
  chex.assert_equal_shape([reward_BT, value_BT, mask_BT])
  turns = _find_turns(mask_BT, turn_BT, segment_BT)
  advantage_BU, return_BU = gae(
    turns.total(reward_BT, mask_BT),
    turns.total(value_BT, turns.first_BT),
    turns.exists_BU,
    discount=discount,
    gae_lambda=gae_lambda,
    segment_BT=turns.segment_BU,
  )
  return (turns.spread(advantage_BU, mask_BT), turns.spread(return_BU, mask_BT))


def turn_returns(
  reward_BT: jax.Array,
  mask_BT: jax.Array,
  turn_BT: jax.Array,
  *,
  discount: float | jax.Array,
  segment_BT: jax.Array | None = None,
) -> jax.Array:
  """Returns the discounted sum of the rewards from each turn on.

    R_u = sum_{v >= u} gamma^(v - u) r_v

  with r_v the sum of the rewards of turn v; every trained token of turn u gets
  R_u. It is `turn_gae` with gae_lambda 1 and no critic. With one turn per
  sequence it is the sequence's reward.

  Args:
    reward_BT, mask_BT, turn_BT, discount, segment_BT: as in `turn_gae`.

  Returns:
    return_BT, 0 off the mask.
  """
  return turn_gae(
    reward_BT,
    jnp.zeros(reward_BT.shape, widen(reward_BT).dtype),
    mask_BT,
    turn_BT,
    discount=discount,
    gae_lambda=1.0,
    segment_BT=segment_BT,
  )[1]


def bi_level_gae(
  reward_BT: jax.Array,
  value_BT: jax.Array,
  mask_BT: jax.Array,
  turn_BT: jax.Array,
  *,
  discount: float | jax.Array,
  turn_discount: float | jax.Array,
  gae_lambda: float | jax.Array,
  segment_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """GAE over turns, then over the tokens of each turn.

  Between turns, with V_u the value at the last trained token of turn u and r_u
  the sum of the turn's rewards,

    A_u = r_u + Gamma V_{u+1} - V_u + Gamma lambda A_{u+1}

  and within a turn `gae` over its tokens alone, with gamma and lambda, whose
  only reward is the turn's return A_u + V_u, paid at its last token (Bi-Level
  GAE of VAGEN, arXiv:2510.16907, and RAGEN). So gamma < 1 can favour short
  answers while Gamma = 1 does not discount over turns. RAGEN takes every token
  with a reward as the end of a turn; here `turn_BT` defines the turns, and a
  turn may have no reward.

  Args:
    reward_BT, value_BT, mask_BT, turn_BT, segment_BT: as in `turn_gae`, but
      the value is read at every trained token.
    discount: gamma, from 0 to 1, per token of a turn.
    turn_discount: Gamma, from 0 to 1, per turn.
    gae_lambda: lambda, from 0 to 1, of both levels.

  Returns:
    (advantage_BT, return_BT), 0 off the mask; not whitened.

  Raises:
    ValueError: if a discount or `gae_lambda` is a number outside [0, 1].
  """
  chex.assert_equal_shape([reward_BT, value_BT, mask_BT])
  turns = _find_turns(mask_BT, turn_BT, segment_BT)
  _, return_BU = gae(
    turns.total(reward_BT, mask_BT),
    turns.total(value_BT, turns.last_BT),
    turns.exists_BU,
    discount=turn_discount,
    gae_lambda=gae_lambda,
    segment_BT=turns.segment_BU,
  )
  return gae(
    turns.spread(return_BU, turns.last_BT),
    value_BT,
    mask_BT,
    discount=discount,
    gae_lambda=gae_lambda,
    segment_BT=turns.index_BT,
  )


def first_of_turn(
  mask_BT: jax.Array, turn_BT: jax.Array, *, segment_BT: jax.Array | None = None
) -> jax.Array:
  """Returns a mask of the first trained token of each turn, for its critic.

  Args:
    mask_BT, turn_BT, segment_BT: as in `turn_gae`.

  Returns:
    first_BT, bool.
  """
  return _find_turns(mask_BT, turn_BT, segment_BT).first_BT


class _Turns(NamedTuple):
  """Positions of the turns of each row, counted from 0."""

  index_BT: jax.Array  # the turn of a trained token, anything off the mask
  first_BT: jax.Array
  last_BT: jax.Array
  exists_BU: jax.Array
  segment_BU: jax.Array

  def total(self, x_BT: jax.Array, where_BT: jax.Array) -> jax.Array:
    """Sums x over some tokens of each turn."""
    return _sum_by(self.index_BT, jnp.where(where_BT, widen(x_BT), 0))

  def spread(self, x_BU: jax.Array, where_BT: jax.Array) -> jax.Array:
    """Returns x of its turn for some tokens, and 0 for the others."""
    index_BT = jnp.where(where_BT, self.index_BT, 0)
    return jnp.where(where_BT, jnp.take_along_axis(x_BU, index_BT, axis=1), 0)


def _find_turns(
  mask_BT: jax.Array, turn_BT: jax.Array, segment_BT: jax.Array | None
) -> _Turns:
  if segment_BT is None:
    segment_BT = jnp.zeros(mask_BT.shape, jnp.int32)
  check_masked(mask_BT, turn_BT, segment_BT)
  first_BT = _begins(mask_BT, turn_BT, segment_BT)
  backwards = (jnp.flip(x, axis=1) for x in (mask_BT, turn_BT, segment_BT))
  last_BT = jnp.flip(_begins(*backwards), axis=1)
  index_BT = jnp.cumsum(first_BT, axis=1) - 1
  return _Turns(
    index_BT,
    first_BT,
    last_BT,
    exists_BU=_sum_by(index_BT, first_BT.astype(jnp.int32)) > 0,
    segment_BU=_sum_by(index_BT, jnp.where(first_BT, segment_BT, 0)),
  )


def _begins(
  mask_BT: jax.Array, turn_BT: jax.Array, segment_BT: jax.Array
) -> jax.Array:
  """Returns trained tokens whose previous trained token is of another turn."""
  place_BT = jnp.arange(mask_BT.shape[1])[None]
  latest_BT = jax.lax.cummax(jnp.where(mask_BT, place_BT, -1), axis=1)
  previous_BT = jnp.pad(latest_BT, [(0, 0), (1, 0)], constant_values=-1)[:, :-1]

  def differs(id_BT: jax.Array) -> jax.Array:
    at_BT = jnp.maximum(previous_BT, 0)
    return id_BT != jnp.take_along_axis(id_BT, at_BT, axis=1)

  new_BT = (previous_BT < 0) | differs(turn_BT) | differs(segment_BT)
  return mask_BT & new_BT


def _sum_by(index_BT: jax.Array, x_BT: jax.Array) -> jax.Array:
  """Sums x by index, per row."""
  num_turns = x_BT.shape[1]
  return jax.vmap(
    lambda x_T, index_T: jax.ops.segment_sum(x_T, index_T, num_turns)
  )(x_BT, index_BT)
