"""Returns and generalised advantage estimation over tokens.

Time is counted in trained tokens: observations between turns, and all other
tokens off the mask, are skipped, so they do not discount a reward. In packed
rows segments do not affect each other. Rewards and values are constants: no
gradient passes.

Axes: B rows, T tokens.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, require_fraction, widen


def gae(
  reward_BT: jax.Array,
  value_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  discount: float | jax.Array,
  gae_lambda: float | jax.Array,
  segment_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Generalised advantage estimation over the trained tokens.

    delta_t = r_t + gamma V_t' - V_t
    A_t = delta_t + gamma lambda A_t'
    R_t = A_t + V_t

  with t' the next trained token of the sequence, and V_t' = A_t' = 0 after the
  last (GAE, arXiv:1506.02438). lambda = 0 looks one token ahead and uses the
  critic for the rest; lambda = 1 is the discounted return less the value. Not
  whitened; for PPO as in verl, `whiten` the advantages.

  Args:
    reward_BT: of the token; not read off the mask, so put the reward of an
      observation at the last token of the turn.
    value_BT: V, the critic's value before the token.
    mask_BT: bool, the trained tokens.
    discount: gamma, from 0 to 1, per trained token.
    gae_lambda: lambda, from 0 to 1.
    segment_BT: integers that differ between neighbouring sequences of a packed
      row; any value off the mask. None where every row is one sequence.

  Returns:
    (advantage_BT, return_BT), 0 off the mask; a critic is fitted to the
    returns.

  Raises:
    ValueError: if `discount` or `gae_lambda` is a number outside [0, 1].
  """
  require_fraction("discount", discount)
  require_fraction("gae_lambda", gae_lambda)
  check_masked(mask_BT, reward_BT, value_BT)
  if segment_BT is None:
    segment_BT = jnp.zeros(mask_BT.shape, jnp.int32)
  chex.assert_equal_shape([segment_BT, mask_BT])
  return _backwards(
    *_constants(reward_BT, value_BT, mask_BT),
    mask_BT,
    segment_BT,
    discount,
    discount * gae_lambda,
  )


def discounted_returns(
  reward_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  discount: float | jax.Array,
  segment_BT: jax.Array | None = None,
) -> jax.Array:
  """Returns the discounted sum of the rewards from each token on.

    R_t = sum_{u >= t} gamma^(u - t) r_u = r_t + gamma R_t'

  over the trained tokens of the sequence, each a step of time: `gae` with
  gae_lambda 1 and no critic. REINFORCE uses these returns, REINFORCE++ after
  whitening.

  Args:
    reward_BT, mask_BT, discount, segment_BT: as in `gae`.

  Returns:
    return_BT, 0 off the mask.
  """
  value_BT = jnp.zeros(reward_BT.shape, widen(reward_BT).dtype)
  return gae(
    reward_BT,
    value_BT,
    mask_BT,
    discount=discount,
    gae_lambda=1.0,
    segment_BT=segment_BT,
  )[1]


def _backwards(
  reward_BT: jax.Array,
  value_BT: jax.Array,
  mask_BT: jax.Array,
  segment_BT: jax.Array,
  discount: float | jax.Array,
  decay: float | jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Runs the recurrence from the last token of every row to the first."""
  discount = jnp.asarray(discount, reward_BT.dtype)
  decay = jnp.asarray(decay, reward_BT.dtype)

  def step(later, token):
    reward_B, value_B, mask_B, segment_B = token
    # A select and not a product: another segment's values may be NaN.
    same_B = segment_B == later[2]
    next_value_B, next_advantage_B = (
      jnp.where(same_B, x, 0) for x in later[:2]
    )
    delta_B = reward_B + discount * next_value_B - value_B
    advantage_B = delta_B + decay * next_advantage_B
    current = (value_B, advantage_B, segment_B)
    carry = tuple(
      jnp.where(mask_B, x, y) for x, y in zip(current, later, strict=True)
    )
    return carry, jnp.where(mask_B, advantage_B, 0)

  zero_B = jnp.zeros(reward_BT.shape[:1], reward_BT.dtype)
  segment_BT = jnp.asarray(segment_BT)
  start = (zero_B, zero_B, zero_B.astype(segment_BT.dtype))
  tokens = tuple(x.T for x in (reward_BT, value_BT, mask_BT, segment_BT))
  _, advantage_TB = jax.lax.scan(step, start, tokens, reverse=True)
  advantage_BT = advantage_TB.T
  return advantage_BT, jnp.where(mask_BT, advantage_BT + value_BT, 0)


def _constants(
  reward_BT: jax.Array, value_BT: jax.Array, mask_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns both without gradient, 0 off the mask, in their wider dtype."""
  reward_BT, value_BT = widen(reward_BT), widen(value_BT)
  dtype = jnp.promote_types(reward_BT.dtype, value_BT.dtype)
  return tuple(
    jnp.where(mask_BT, jax.lax.stop_gradient(x), 0).astype(dtype)
    for x in (reward_BT, value_BT)
  )
