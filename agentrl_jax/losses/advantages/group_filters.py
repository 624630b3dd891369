"""Filters of groups: dynamic sampling and selection by reward spread.

A filter returns one bool per group. Mark the trajectories of the other groups
as not valid to leave them out of everything that follows:

  valid_N = valid_N & keep_M[group_N]

A group without valid trajectories is never kept. A group with a reward of NaN
always is, so that a later check reports the NaN. Ties go to the lower id.

Axes: N trajectories (those of a group need not be neighbours), M groups.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.losses.advantages.group_advantages import (
  GroupStatistics,
  group_statistics,
)
from agentrl_jax.losses.arguments import check_masked, require, require_fraction


def group_has_signal(
  reward_N: jax.Array, group_N: jax.Array, num_groups: int, valid_N: jax.Array
) -> jax.Array:
  """Selects groups whose rewards are not all equal.

  Groups where all succeed or all fail have no signal, and dynamic sampling
  leaves them out (DAPO, arXiv:2503.14476, section 3.2). Of groups with two or
  more members, exactly those without signal have a `group_advantage` of 0. A
  group of one, or none, has no signal.

  Returns:
    signal_M, bool.
  """
  group = _measure(reward_N, group_N, num_groups, valid_N)
  return group.low_M < group.high_M


def group_std(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  ddof: int = 1,
) -> jax.Array:
  """Returns the standard deviation of each group's rewards.

    std_G r = sqrt(sum (r - mean_G r)^2 / (n_G - ddof))

  Exactly 0 where all rewards are equal, and in groups of one or none.

  Args:
    reward_N, group_N, num_groups, valid_N, ddof: as in `group_advantage`.

  Returns:
    std_M.
  """
  check_masked(valid_N, reward_N, group_N, rank=1)
  return group_statistics(
    reward_N, group_N, num_groups, valid_N, ddof=ddof
  ).std_M


def keep_groups_above(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  threshold: float | jax.Array = 0.0,
) -> jax.Array:
  """Keeps the groups whose rewards have a std above a threshold.

  With 0 it is `group_has_signal`. The std is the unbiased one.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    threshold: from 0, in units of reward.

  Returns:
    keep_M, bool.

  Raises:
    ValueError: if `threshold` is a negative number.
  """
  require("threshold", threshold, "0 or positive", lambda x: x >= 0)
  group = _measure(reward_N, group_N, num_groups, valid_N)
  return (group.std_M > threshold) | jnp.isnan(group.std_M)


def keep_top_groups(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  share: float | jax.Array,
) -> jax.Array:
  """Keeps the share of the groups whose rewards have the largest std.

  `share` of the groups with valid trajectories, rounded down, but at least one
  (the uncertainty-based filtering of RAGEN's StarPO-S, arXiv:2504.20073, which
  keeps a quarter). The number does not depend on the signal, so groups without
  signal are kept if too few have any; `& keep_groups_above(...)` leaves those
  out.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    share: from 0 to 1.

  Returns:
    keep_M, bool.

  Raises:
    ValueError: if `share` is a number outside [0, 1].
  """
  require_fraction("share", share)
  group = _measure(reward_N, group_N, num_groups, valid_N)
  present_M = group.size_M > 0
  num_present = jnp.sum(present_M)
  # 0.29 of 100 is 29, but their product in float64 is a little smaller.
  quota = jnp.maximum(jnp.floor(share * num_present + 1e-3), 1)
  order_M = _by_spread(group)
  rank_M = jnp.argsort(order_M)
  return present_M & ((rank_M < quota) | jnp.isnan(group.std_M))


def keep_top_signal(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  share: float | jax.Array,
) -> jax.Array:
  """Keeps the fewest groups that hold a share of the batch's signal.

  The signal of a group is the std of its rewards. Groups are kept from the
  largest std down, until their sum reaches `share` of the sum over all groups.
  A group without signal adds only noise to the gradient and is never kept, not
  even by a share of 1, which is `group_has_signal`. (SNR-aware filtering of
  RAGEN-2, arXiv:2604.06268, which takes 0.9 and, in its code, the std for what
  it calls reward variance.) The more evenly the signal is spread, the more
  groups are kept.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    share: from 0 to 1; 0 keeps nothing.

  Returns:
    keep_M, bool.

  Raises:
    ValueError: if `share` is a number outside [0, 1].
  """
  require_fraction("share", share)
  group = _measure(reward_N, group_N, num_groups, valid_N)
  broken_M = jnp.isnan(group.std_M)
  signal_M = jnp.where(broken_M, 0, group.std_M)
  return _fewest_that_hold(signal_M, _by_spread(group), share) | broken_M


def keep_top_softmax(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  share: float | jax.Array,
) -> jax.Array:
  """Keeps the fewest groups that hold a share of a softmax over their std.

    p_m = exp(std_m) / sum exp(std)

  over the groups with valid trajectories. Groups are kept from the largest std
  down, until the sum of their p reaches `share`. (The filter in the scripts of
  RAGEN-2, arXiv:2604.06268, with 0.9.) It is here for comparisons. Rewards
  between 0 and 1 have a std of about 0.5 at most, so p is nearly uniform, and
  most groups without signal are kept too: of 8 groups, of which half have a std
  of 0.5 and half have 0, a share of 0.9 keeps 7, and of 8 groups with one
  signal all 8. `keep_top_signal` keeps 4 and 1. Unlike there, the unit of the
  rewards matters.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    share: from 0 to 1; 0 keeps nothing.

  Returns:
    keep_M, bool.

  Raises:
    ValueError: if `share` is a number outside [0, 1].
  """
  require_fraction("share", share)
  group = _measure(reward_N, group_N, num_groups, valid_N)
  broken_M = jnp.isnan(group.std_M)
  std_M = jnp.where(broken_M, 0, group.std_M)
  weight_M = jax.nn.softmax(std_M, where=(group.size_M > 0) & ~broken_M)
  return _fewest_that_hold(weight_M, _by_spread(group), share) | broken_M


def _measure(
  reward_N: jax.Array, group_N: jax.Array, num_groups: int, valid_N: jax.Array
) -> GroupStatistics:
  check_masked(valid_N, reward_N, group_N, rank=1)
  return group_statistics(reward_N, group_N, num_groups, valid_N)


def _fewest_that_hold(
  weight_M: jax.Array, order_M: jax.Array, share: float | jax.Array
) -> jax.Array:
  """Selects, in this order, entries until they hold a share of the sum.

  A share of 1 selects all that are not 0; an entry of 0 is never selected.
  """
  sorted_M = weight_M[order_M]
  before_M = jnp.cumsum(sorted_M) - sorted_M
  total = before_M[-1:] + sorted_M[-1:]
  # Rounding in a sum that equals the share must not admit one more group.
  wanted_M = before_M < share * total * (1 - 1e-6)
  wanted_M |= jnp.asarray(share) >= 1
  keep_M = jnp.zeros(weight_M.shape, bool)
  return keep_M.at[order_M].set(wanted_M & (sorted_M > 0))


def _by_spread(group: GroupStatistics) -> jax.Array:
  """Returns the groups in order of their std, largest first, empty ones last.

  The same rewards in another order, or on other devices, have a std that is
  rounded differently. So differences of a few rounding errors are ties.
  """
  spread_M = jnp.where(jnp.isnan(group.std_M), jnp.inf, group.std_M)
  spread_M = jnp.where(group.size_M > 0, spread_M, -1)
  order_M = jnp.argsort(-spread_M, stable=True)
  sorted_M = spread_M[order_M]
  noise = 100 * jnp.finfo(sorted_M.dtype).eps
  below_M = sorted_M[1:] < sorted_M[:-1] * (1 - noise)
  num_above_M = jnp.pad(jnp.cumsum(below_M), (min(1, order_M.size), 0))
  return order_M[jnp.lexsort((order_M, num_above_M))]
