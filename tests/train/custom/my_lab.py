"""Functions as a researcher outside the package writes them, good and bad."""

import jax
import jax.numpy as jnp

from agentrl_jax import losses

A_NUMBER = 3.0


def with_entropy(log_ratio_BT, advantage_BT, entropy_BT, *, bonus):
  """REINFORCE with an entropy bonus of its own."""
  return losses.reinforce(log_ratio_BT, advantage_BT) - bonus * entropy_BT


def as_much_as_all(log_ratio_BT, advantage_BT, *, width=1.0):
  return -width * log_ratio_BT * advantage_BT


def shifted(log_ratio_BT, advantage_BT):
  """A loss that is not 0 where the advantage is."""
  return -jnp.exp(log_ratio_BT) * (advantage_BT - 1.0)


def forking_tokens(entropy_BT, mask_BT, *, share):
  """1 for the share of the tokens that have the highest entropy, else 0."""
  known_BT = jnp.where(mask_BT, entropy_BT, jnp.nan)
  return entropy_BT >= jnp.nanquantile(known_BT, 1 - share)


def one_for_each_trajectory(trajectory_BT, mask_BT, num_segments):
  """1, shared out among the tokens of a trajectory and all its lines."""
  size = trajectory_BT.shape[0] * num_segments
  number_BT = jnp.where(mask_BT, trajectory_BT, size)
  num_tokens_N = jnp.zeros(size).at[number_BT].add(1, mode="drop")
  return 1 / jnp.maximum(num_tokens_N[trajectory_BT], 1)


def by_group(reward_N, group_N, num_groups, valid_N, *, power):
  value_N = losses.group_advantage(
    reward_N, group_N, num_groups=num_groups, valid_N=valid_N
  )
  return jnp.sign(value_N) * jnp.abs(value_N) ** power


def by_turn(reward_NU, valid_NU):
  return jnp.where(valid_NU, reward_NU - 0.1, 0)


def big_groups(reward_N, group_N, num_groups, valid_N, *, least):
  best_M = jax.ops.segment_max(
    jnp.where(valid_N, reward_N, -jnp.inf), group_N, num_groups
  )
  return best_M >= least


def token_mean_in(x_BT, mask_BT, *, unit):
  mean = losses.token_mean(x_BT, mask_BT)
  return losses.Mean(mean.total / unit, mean.weight / unit)


# What must not pass.


def by_position(log_ratio_BT, /, advantage_BT):
  return -log_ratio_BT * advantage_BT


def of_nothing():
  return 0.0


def one_number(log_ratio_BT, advantage_BT):
  return jnp.mean(log_ratio_BT * advantage_BT)


def two_results(log_ratio_BT):
  return log_ratio_BT, log_ratio_BT


def nothing_back(log_ratio_BT):
  del log_ratio_BT


def not_a_number(log_ratio_BT, advantage_BT):
  return jnp.log(-jnp.exp(log_ratio_BT)) * advantage_BT


def bad_slope(log_ratio_BT, advantage_BT):
  return jnp.sqrt(jnp.abs(log_ratio_BT)) * advantage_BT


def no_slope(log_ratio_BT, advantage_BT):
  return jax.lax.stop_gradient(log_ratio_BT) * advantage_BT


def quantile_of_the_cut(log_ratio_BT, advantage_BT, entropy_BT, mask_BT):
  weight_BT = forking_tokens(entropy_BT, mask_BT, share=0.2)
  return losses.reinforce(log_ratio_BT, advantage_BT) * weight_BT


def weight_of_padding(entropy_BT):
  return entropy_BT >= jnp.quantile(entropy_BT, 0.8)


def weight_of_rows(entropy_BT):
  return entropy_BT.mean(axis=1)


def mean_of_means(x_BT, mask_BT):
  return losses.Mean(losses.token_mean(x_BT, mask_BT).value(), jnp.ones(()))


def a_text(x_BT, mask_BT):
  return "the mean"


def plain_mean(x_BT, mask_BT):
  return jnp.mean(x_BT, where=mask_BT)


def mean_by_row(x_BT, mask_BT):
  return losses.Mean(
    jnp.sum(x_BT, axis=1, where=mask_BT), jnp.sum(mask_BT, axis=1)
  )


def scores(reward_N, group_N, num_groups):
  return jax.ops.segment_sum(reward_N, group_N, num_groups)


def first_only(reward_N):
  return reward_N[:1]


def divides(x_BT, mask_BT):
  total, count = jnp.sum(x_BT, where=mask_BT), jnp.sum(mask_BT)
  return losses.Mean(total / count * count, count)


def mixed_kinds(reward_N, value_BT):
  return value_BT, reward_N


def of_values(reward_BT, value_BT):
  return reward_BT - value_BT
