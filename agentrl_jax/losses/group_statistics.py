"""What a group of attempts at one task achieved: mean, spread, best and worst.

The common ground of `group_advantages`, `pass_at_k`, `group_filters` and
`step_groups`. Statistics are sums over the whole axis N, so they belong to the
global batch, and neither sharding nor the order of attempts changes them.

Axes: N trajectories (those of a group need not be neighbours), M groups.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.precision import widen


class GroupStatistics(NamedTuple):
  """Of the valid attempts of each group.

  In a group whose rewards are all equal the mean is that reward and the
  deviation is 0, exactly: seven rewards of -0.2 summed in float32 and divided
  by seven are not -0.2, and the rest divided by its deviation would be noise.
  """

  size_M: jax.Array  # int32
  mean_M: jax.Array  # 0 in an empty group
  std_M: jax.Array  # 0 where there are fewer than two attempts
  low_M: jax.Array  # inf in an empty group
  high_M: jax.Array  # -inf in an empty group


def group_statistics(
  reward_N: jax.Array,
  group_N: jax.Array,
  num_groups: int,
  valid_N: jax.Array,
  *,
  ddof: int = 1,
) -> GroupStatistics:
  """Sums up each group, leaving out what is not valid or out of range.

  A reward of NaN makes all of its group NaN.
  """

  def per_group(x_N: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(x_N, group_N, num_groups)

  reward_N = constant_rewards(reward_N, valid_N)
  size_M = per_group(valid_N.astype(jnp.int32))
  mean_M = per_group(reward_N) / jnp.maximum(size_M, 1)
  low_M, high_M = _range(reward_N, group_N, num_groups, valid_N)
  # Whether a minimum sees a NaN is up to the backend; a sum always does.
  constant_M = (low_M == high_M) & ~jnp.isnan(mean_M)
  mean_M = jnp.where(constant_M, low_M, mean_M)
  square_N = jnp.square(reward_N - mean_M[group_N])
  square_M = per_group(jnp.where(valid_N, square_N, 0))
  std_M = jnp.sqrt(square_M / jnp.maximum(size_M - ddof, 1))
  return GroupStatistics(size_M, mean_M, std_M, low_M, high_M)


def constant_rewards(reward_N: jax.Array, valid_N: jax.Array) -> jax.Array:
  """Rewards that no gradient passes, and 0 where not valid."""
  return jnp.where(valid_N, jax.lax.stop_gradient(widen(reward_N)), 0)


def check_attempts(
  x_N: jax.Array, index_N: jax.Array, valid_N: jax.Array
) -> None:
  """Refuses arrays that do not describe the same N attempts."""
  chex.assert_rank([x_N, index_N, valid_N], 1)
  chex.assert_equal_shape([x_N, index_N, valid_N])
  chex.assert_type(valid_N, bool)


def _range(
  reward_N: jax.Array, group_N: jax.Array, num_groups: int, valid_N: jax.Array
) -> tuple[jax.Array, jax.Array]:
  low_N = jnp.where(valid_N, reward_N, jnp.inf)
  high_N = jnp.where(valid_N, reward_N, -jnp.inf)
  return (
    jax.ops.segment_min(low_N, group_N, num_groups),
    jax.ops.segment_max(high_N, group_N, num_groups),
  )
