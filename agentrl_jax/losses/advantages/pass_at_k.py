"""Advantages for the best result of k trajectories: pass@k and max@k.

Both functions average over all subsets of k of a group's n trajectories, called
teams, in closed form, without enumerating them.

Trajectories that are not valid count nowhere and get 0. A group with fewer than
k trajectories is one team. Rewards are constants. Ids out of range give NaN.

Axes: N trajectories (those of a group need not be neighbours), M groups.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.advantages.group_advantages import (
  constant_rewards,
  group_statistics,
)
from agentrl_jax.losses.arguments import check_masked, look_up, require


def pass_at_k_advantage(
  success_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  k: int,
) -> jax.Array:
  """GRPO among all teams of k trajectories, averaged for their members.

  A team passes if one of its members does. Of a group's C(n, k) teams, with f
  failures among the n trajectories, a share p passes, and the teams' rewards
  have the deviation sigma; a member gets the mean of its teams' advantages:

    p = 1 - C(f, k) / C(n, k),  sigma = sqrt(p (1 - p))
    A(success) = (1 - p) / sigma
    A(failure) = (1 - p - C(f - 1, k - 1) / C(n - 1, k - 1)) / sigma

  (Pass@k Training, arXiv:2508.10751, analytical derivation.) As p comes close
  to 1 the advantages vanish, since the task is solved in k trajectories. If all
  teams pass, or none does, all get 0; so does a group of at most k
  trajectories, which is a single team. k = 1 is `group_advantage` with ddof=0
  and epsilon=0.

  Args:
    success_N: bool.
    group_N, num_groups, valid_N: as in `group_advantage`.
    k: trajectories per team, at least 1, fixed when compiled.

  Raises:
    ValueError: if k < 1.
  """
  _check_k(k, at_least=1)
  check_masked(valid_N, success_N, group_N, rank=1)
  chex.assert_type(success_N, bool)

  def count(x_N: jax.Array) -> jax.Array:
    # In the default float, since there are no rewards with a dtype.
    return jax.ops.segment_sum(x_N.astype(float), group_N, num_groups)

  size_M, failures_M = count(valid_N), count(valid_N & ~success_N)
  fail_M = _share_of_teams(failures_M, size_M, k)
  fail_with_me_M = _share_of_teams(failures_M - 1, size_M - 1, k - 1)
  scale_M = jnp.sqrt(fail_M * (1 - fail_M))
  undecided_M = scale_M > 0
  scale_M = jnp.where(undecided_M, scale_M, 1)
  success_M = jnp.where(undecided_M, fail_M / scale_M, 0)
  failure_M = jnp.where(undecided_M, (fail_M - fail_with_me_M) / scale_M, 0)
  advantage_N = jnp.where(
    success_N, look_up(success_M, group_N), look_up(failure_M, group_N)
  )
  return jnp.where(valid_N, advantage_N, 0)


def max_at_k_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  k: int,
) -> jax.Array:
  """Contribution to the best of k, for rewards of any size: PKPO.

    A_i = 1 / C(n, k) sum_{I containing i, |I| = k} (max_I r - max_{I \\ i} r)
        = sum_{m=1}^{i-1} (r_(m+1) - r_(m)) C(m, k - 1) / C(n, k)

  with r_(1) <= ... <= r_(n) the group's rewards in order and i the place of the
  trajectory (arXiv:2505.15201, eq. 33). The sum of A_i grad log pi_i is an
  unbiased estimate of the gradient of E[max of k rewards], and A is never
  negative, so trajectories that added nothing are not made less likely. A
  constant that is added to all rewards cancels. With k = n it is
  `best_of_group_advantage(scale_by_std=False)`. A group of one gets 0.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    k: trajectories that count as one, at least 2, fixed when compiled. For k =
      1 the estimator is REINFORCE: use `leave_one_out_advantage`.

  Raises:
    ValueError: if k < 2.
  """
  _check_k(k, at_least=2)
  check_masked(valid_N, reward_N, group_N, rank=1)
  group = group_statistics(reward_N, group_N, num_groups, valid_N)
  reward_N = constant_rewards(reward_N, valid_N)
  # By group, within it by reward; invalid entries go to the end.
  key_N = jnp.where(valid_N, group_N, num_groups)
  order_N = jnp.lexsort((reward_N, key_N))
  reward_N, key_N = reward_N[order_N], key_N[order_N]
  first_N = _changes(key_N)
  place_N = _running_sum(jnp.ones_like(reward_N), first_N)
  size_N = look_up(group.size_M, key_N).astype(reward_N.dtype)
  gap_N = jnp.where(first_N, 0, reward_N - jnp.roll(reward_N, 1))
  step_N = gap_N * _share_beaten(place_N - 1, size_N, k)
  advantage_N = jnp.zeros_like(reward_N)
  advantage_N = advantage_N.at[order_N].set(_running_sum(step_N, first_N))
  # A reward of NaN sorts last and would not reach the entries before it.
  mean_N = look_up(group.mean_M, group_N)
  advantage_N = jnp.where(jnp.isnan(mean_N), mean_N, advantage_N)
  return jnp.where(valid_N, advantage_N, 0)


def _share_of_teams(
  chosen_M: jax.Array, size_M: jax.Array, k: int
) -> jax.Array:
  """Returns C(chosen, k) / C(size, k), factor by factor, without overflow."""
  chosen_M1, size_M1 = chosen_M[:, None], size_M[:, None]
  j_1K = jnp.arange(k, dtype=chosen_M1.dtype)[None]
  ratio_MK = jnp.maximum(chosen_M1 - j_1K, 0) / jnp.maximum(size_M1 - j_1K, 1)
  return jnp.prod(ratio_MK, axis=1)


def _share_beaten(place_N: jax.Array, size_N: jax.Array, k: int) -> jax.Array:
  """Returns C(place, k - 1) / C(size, k), with k at most the size."""
  place_N1, size_N1 = place_N[:, None], size_N[:, None]
  k_N1 = jnp.minimum(k, size_N1)
  j_1K = jnp.arange(k - 1, dtype=size_N1.dtype)[None]
  ratio_NK = jnp.maximum(place_N1 - j_1K, 0) / jnp.maximum(size_N1 - j_1K, 1)
  share_N = jnp.prod(ratio_NK, axis=1, where=j_1K < k_N1 - 1)
  k_N = k_N1[:, 0]
  return share_N * k_N / jnp.maximum(size_N - k_N + 1, 1)


def _changes(key_N: jax.Array) -> jax.Array:
  """Returns True where a run of equal keys begins."""
  first_N = jnp.arange(key_N.size) == 0
  return first_N | (key_N != jnp.roll(key_N, 1))


@jax.jit
def _running_sum(x_N: jax.Array, restart_N: jax.Array) -> jax.Array:
  """Sums cumulatively within runs, without rounding errors of other runs."""

  def join(left, right):
    (sum_left, restart_left), (sum_right, restart_right) = left, right
    both = jnp.where(restart_right, sum_right, sum_left + sum_right)
    return both, restart_left | restart_right

  if not x_N.size:
    return x_N
  return jax.lax.associative_scan(join, (x_N, restart_N))[0]


def _check_k(k: int, *, at_least: int) -> None:
  require(
    "k",
    k,
    f"at least {at_least}: so many trajectories count as one",
    lambda x: x >= at_least,
  )
