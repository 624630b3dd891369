"""Advantages of trajectories against the other trajectories of their group.

Trajectories that are not valid (padding, or lost to a fault of the system)
count nowhere and get 0. Rewards are constants: no gradient passes through an
advantage. A larger group without variance gets exactly 0, not rounding errors
divided by epsilon. Ids out of range give NaN, so that they do not pass
unnoticed.

Statistics are sums over the whole axis N. Call these functions on the global
batch, before cutting it into micro-batches; neither sharding nor the order of
the trajectories changes them.

Axes: N trajectories (those of a group need not be neighbours), M groups.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.losses.arguments import check_masked, look_up, widen


def group_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  scale_by_std: bool = True,
  ddof: int = 1,
  epsilon: float = 1e-6,
) -> jax.Array:
  """Distance of a reward from the mean of its group.

    A_n = (r_n - mean_G r) / (std_G r + epsilon)

  (GRPO, arXiv:2402.03300, section 4.1.2); without the divisor if not
  `scale_by_std` (Dr. GRPO, arXiv:2503.20783). Groups may differ in size. A
  group of one keeps its reward, as if mean were 0 and std 1 (AgentRL); a larger
  group whose rewards are all equal gets 0.

  Args:
    reward_N: one per trajectory; not read where invalid.
    group_N: integers in [0, num_groups).
    num_groups: M, fixed when compiled; groups may be empty.
    valid_N: bool.
    scale_by_std: whether to divide.
    ddof: 1 divides the sum of squares by n - 1 (AgentRL), 0 by n.
    epsilon: keeps the quotient finite.

  Raises:
    ValueError: if `ddof` is neither 0 nor 1.
  """
  if ddof not in (0, 1):
    raise ValueError(
      f"ddof is {ddof}, but a group's variance is divided by n (ddof=0) or "
      "n - 1 (ddof=1)"
    )
  check_masked(valid_N, reward_N, group_N, rank=1)
  group = group_statistics(reward_N, group_N, num_groups, valid_N, ddof=ddof)
  reward_N = constant_rewards(reward_N, valid_N)
  deviation_N = reward_N - look_up(group.mean_M, group_N)
  scale_N = look_up(group.std_M, group_N) + epsilon if scale_by_std else 1.0
  # 0 stays 0, whatever it is divided by: a constant group has a std of 0.
  advantage_N = jnp.where(deviation_N == 0, 0, deviation_N / scale_N)
  alone_scale = 1.0 + epsilon if scale_by_std else 1.0
  alone_N = look_up(group.size_M, group_N) == 1
  advantage_N = jnp.where(alone_N, reward_N / alone_scale, advantage_N)
  return jnp.where(valid_N, advantage_N, 0)


def leave_one_out_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
) -> jax.Array:
  """Distance of a reward from the mean of the others in its group: RLOO.

    A_n = r_n - mean_{m in G, m != n} r_m = n_G / (n_G - 1) (r_n - mean_G r)

  (arXiv:2402.14740; Kool et al., 2019.) The baseline does not depend on the
  trajectory itself, so the gradient stays unbiased. The mean of the whole group
  shrinks the gradient by 1 - 1 / n_G, which depends on the number of valid
  trajectories; dividing by a std biases it. By the second form this is Dr.
  GRPO's `group_advantage` without that factor. A group of one keeps its reward.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
  """
  check_masked(valid_N, reward_N, group_N, rank=1)
  group = group_statistics(reward_N, group_N, num_groups, valid_N)
  reward_N = constant_rewards(reward_N, valid_N)
  size_N = look_up(group.size_M, group_N)
  deviation_N = reward_N - look_up(group.mean_M, group_N)
  # The comparison must be `== 1`, as a size of NaN is to stay NaN.
  alone_N = size_N == 1
  others_N = jnp.where(alone_N, 1, size_N - 1)
  advantage_N = deviation_N * size_N / others_N
  return jnp.where(valid_N, jnp.where(alone_N, reward_N, advantage_N), 0)


def best_of_group_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  scale_by_std: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """Lead of the best trajectory of a group over the second; 0 for all others.

    A_n = (r_n - max_{m != n} r_m) / (std_G r + epsilon)  if r_n is the largest

  The leave-one-out advantage of the best of all n_G trajectories
  (arXiv:2503.19595): the part of the group's best reward that would be lost
  without trajectory n. Without the divisor it is unbiased for that objective
  and the same as `max_at_k_advantage(k=n_G)`. If two share the best reward,
  both get 0, as does a group of one.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    scale_by_std: whether to divide by the unbiased std, as verl does.
    epsilon: keeps the quotient finite.
  """
  check_masked(valid_N, reward_N, group_N, rank=1)
  group = group_statistics(reward_N, group_N, num_groups, valid_N)
  reward_N = constant_rewards(reward_N, valid_N)
  high_N = look_up(group.high_M, group_N)
  best_N = valid_N & (reward_N == high_N)
  num_best_M = jax.ops.segment_sum(
    best_N.astype(jnp.int32), group_N, num_groups
  )
  second_M = jax.ops.segment_max(
    jnp.where(valid_N & ~best_N, reward_N, -jnp.inf), group_N, num_groups
  )
  beats_M = (num_best_M == 1) & (group.size_M > 1)
  lead_M = jnp.where(beats_M, group.high_M - second_M, 0)
  if scale_by_std:
    lead_M = jnp.where(lead_M == 0, 0, lead_M / (group.std_M + epsilon))
  advantage_N = jnp.where(best_N, look_up(lead_M, group_N), 0)
  # Every comparison with a reward of NaN is false, as if it were beaten.
  mean_N = look_up(group.mean_M, group_N)
  advantage_N = jnp.where(jnp.isnan(mean_N), mean_N, advantage_N)
  return jnp.where(valid_N, advantage_N, 0)


class GroupStatistics(NamedTuple):
  """Statistics of the valid trajectories of each group.

  In a group whose rewards are all equal the mean is that reward and the
  deviation is 0, exactly: seven rewards of -0.2 summed in float32 and divided
  by seven are not -0.2, and the difference divided by its deviation is noise.
  """

  size_M: jax.Array  # int32
  mean_M: jax.Array  # 0 in an empty group
  std_M: jax.Array  # 0 where there are fewer than two trajectories
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
  """Computes the statistics; leaves out invalid entries and ids out of range.

  A reward of NaN makes all of its group NaN.
  """

  def per_group(x_N: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(x_N, group_N, num_groups)

  reward_N = constant_rewards(reward_N, valid_N)
  size_M = per_group(valid_N.astype(jnp.int32))
  low_M, high_M = _range(reward_N, group_N, num_groups, valid_N)
  # From the lowest on: the mean of equal rewards is then that reward, and sums
  # of large ones lose no digits. A minimum may ignore a NaN, a sum never does.
  above_N = jnp.where(valid_N, reward_N - low_M[group_N], 0)
  mean_M = per_group(above_N) / jnp.maximum(size_M, 1)
  mean_M += jnp.where(size_M > 0, low_M, 0)
  # In units of the group's range, since the square of 1e20 is no float32.
  range_M = jnp.where(high_M > low_M, high_M - low_M, 1)
  square_N = jnp.square((reward_N - mean_M[group_N]) / range_M[group_N])
  square_M = per_group(jnp.where(valid_N, square_N, 0))
  std_M = range_M * jnp.sqrt(square_M / jnp.maximum(size_M - ddof, 1))
  return GroupStatistics(size_M, mean_M, std_M, low_M, high_M)


def constant_rewards(reward_N: jax.Array, valid_N: jax.Array) -> jax.Array:
  """Returns rewards without gradient, and 0 where not valid."""
  return jnp.where(valid_N, jax.lax.stop_gradient(widen(reward_N)), 0)


def _range(
  reward_N: jax.Array, group_N: jax.Array, num_groups: int, valid_N: jax.Array
) -> tuple[jax.Array, jax.Array]:
  low_N = jnp.where(valid_N, reward_N, jnp.inf)
  high_N = jnp.where(valid_N, reward_N, -jnp.inf)
  return (
    jax.ops.segment_min(low_N, group_N, num_groups),
    jax.ops.segment_max(high_N, group_N, num_groups),
  )
