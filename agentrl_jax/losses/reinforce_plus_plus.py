"""REINFORCE++: no critic, and the whole batch for a yardstick.

Both are compositions, named because papers name them (arXiv:2501.03262). Their
statistics are of the *global* batch. Rewards are constants: no gradient passes.

Axes: B rows, T tokens, N trajectories, M groups.
"""

import jax

from agentrl_jax.losses.group_advantages import group_advantage
from agentrl_jax.losses.returns import discounted_returns
from agentrl_jax.losses.whitening import whiten, whiten_weighted


def reinforce_plus_plus_advantage(
  reward_BT: jax.Array,
  mask_BT: jax.Array,
  *,
  discount: float | jax.Array,
  segment_BT: jax.Array | None = None,
  epsilon: float = 1e-8,
) -> jax.Array:
  """Discounted returns, whitened over all trained tokens of the batch.

    A = whiten(R),  R_t = r_t + gamma R_t'

  (REINFORCE++, arXiv:2501.03262.) No groups are needed, one attempt per task
  will do. Where a penalty on the divergence belongs to the reward, as in the
  paper, subtract it from `reward_BT` token by token first.

  Args:
    reward_BT, mask_BT, discount, segment_BT: as in `discounted_returns`.
    epsilon: as in `whiten`.

  Returns:
    advantage_BT, 0 off the mask.
  """
  return_BT = discounted_returns(
    reward_BT, mask_BT, discount=discount, segment_BT=segment_BT
  )
  return whiten(return_BT, mask_BT, epsilon=epsilon)


def reinforce_plus_plus_baseline_advantage(
  reward_N: jax.Array,
  group_N: jax.Array,
  num_tokens_N: jax.Array,
  *,
  num_groups: int,
  valid_N: jax.Array,
  epsilon: float = 1e-8,
) -> jax.Array:
  """Rewards less their group's mean, whitened over the tokens of the batch.

    A = whiten(r_n - mean_G r)

  (REINFORCE++-baseline, arXiv:2501.03262.) Against GRPO: one deviation for the
  whole batch, so a group with little spread is not blown up to the size of the
  others. Against `task_normalise`: all tasks share it.

  Args:
    reward_N, group_N, num_groups, valid_N: as in `group_advantage`.
    num_tokens_N: integers, the trained tokens of each trajectory.
    epsilon: as in `whiten`.

  Returns:
    advantage_N, one for all trained tokens of a trajectory.
  """
  advantage_N = group_advantage(
    reward_N,
    group_N,
    num_groups=num_groups,
    valid_N=valid_N,
    scale_by_std=False,
  )
  return whiten_weighted(advantage_N, num_tokens_N, valid_N, epsilon=epsilon)
