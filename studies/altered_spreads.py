"""Group advantages of which those of one task are smaller, or rarer.

For experiments on task normalisation: a config names the function as
`advantage.estimator`. The alteration is the learner's, so that runs with
different ones share their warm start.
"""

import jax
import jax.numpy as jnp

from agentrl_jax import losses


def altered_group_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  task_N: jax.Array,
  num_tokens_N: jax.Array,
  valid_N: jax.Array,
  num_groups: int,
  *,
  task: int = 0,
  factor: float = 1.0,
  paid: float = 1.0,
) -> jax.Array:
  """Distances from the group's mean reward, altered in one task.

  They are not divided by the group's standard deviation. In the altered task a
  share `paid` of the groups keeps its rewards, and in all others every attempt
  has the same one; what is left is multiplied by `factor`. The batch's number
  of tokens seeds the draw, so the same batch is altered in the same way.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `losses.group_advantage`.
    task_N: number of each trajectory's task, int.
    num_tokens_N: trained tokens of each trajectory, int.
    task: number of the altered task.
    factor: of its advantages.
    paid: share of its groups that keep their rewards, from 0 to 1.

  Returns:
    advantage_N.
  """
  advantage_N = losses.group_advantage(
    reward_N,
    group_N,
    num_groups=num_groups,
    valid_N=valid_N,
    scale_by_std=False,
  )
  key = jax.random.key(jnp.sum(jnp.where(valid_N, num_tokens_N, 0)))
  is_paid_M = jax.random.uniform(key, (num_groups,)) < paid
  altered_N = jnp.where(is_paid_M[group_N], factor * advantage_N, 0.0)
  return jnp.where(task_N == task, altered_N, advantage_N)
