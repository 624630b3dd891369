"""Advantages of steps that started in the same state: GiGPO.

Trajectories of one task start in the same state and often return to a common
one, such as the same web page. Their next steps can be compared directly, which
is a better signal for a step than the final reward.

Axes: N trajectories, U turns (steps) of a trajectory, M groups.
"""

import chex
import jax
import jax.numpy as jnp

from agentrl_jax.losses.advantages.group_advantages import (
  group_advantage,
  group_statistics,
)
from agentrl_jax.losses.advantages.returns import discounted_returns
from agentrl_jax.losses.arguments import look_up, require_fraction, widen


def gigpo_advantage(
  reward_NU: jax.Array,
  state_NU: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  num_states: int,
  valid_NU: jax.Array,
  discount: float | jax.Array,
  step_weight: float | jax.Array = 1.0,
  scale_by_std: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """Sum of the trajectory's advantage and that of its step: group in group.

    A_nu = A_episode(n) + w A_step(n, u)

  with A_episode the `group_advantage` of the total rewards, and
  A_step the `step_advantage` of the discounted returns R_nu = sum_{v >= u}
  gamma^(v - u) r_nv (GiGPO, arXiv:2505.10978, eq. 3 to 8). Spread it over the
  tokens of each turn with `advantage_NU[trajectory, turn]`.

  Rewards are constants: no gradient passes. A trajectory whose steps are
  all invalid counts nowhere. Trajectories count once each, as in the paper;
  verl-agent by default counts each once per step, which favours long ones.

  Args:
    reward_NU: of each step; not read where invalid.
    state_NU: integers in [0, num_states), equal where two steps of a group
      started in the same state; ids count within their group. On the host,
      from one observation per step that can be sorted, such as its text:
      `np.unique(observations, return_inverse=True)[1]`. Any value where
      invalid.
    group_N: integers in [0, num_groups).
    num_groups: M, fixed when compiled.
    num_states: fixed when compiled.
    valid_NU: bool, the steps that were made.
    discount: gamma, from 0 to 1, per step.
    step_weight: w.
    scale_by_std, epsilon: as in `group_advantage`, of both comparisons.

  Returns:
    advantage_NU, 0 where invalid.

  Raises:
    ValueError: if `discount` is a number outside [0, 1].
  """
  require_fraction("discount", discount)
  chex.assert_rank([reward_NU, state_NU, valid_NU, group_N], [2, 2, 2, 1])
  chex.assert_type(valid_NU, bool)
  settings = {"scale_by_std": scale_by_std, "epsilon": epsilon}
  episode_N = group_advantage(
    jnp.sum(widen(reward_NU), axis=1, where=valid_NU),
    group_N,
    num_groups=num_groups,
    valid_N=jnp.any(valid_NU, axis=1),
    **settings,
  )
  step_NU = step_advantage(
    discounted_returns(reward_NU, valid_NU, discount=discount),
    state_NU,
    group_N,
    num_groups=num_groups,
    num_states=num_states,
    valid_NU=valid_NU,
    **settings,
  )
  return jnp.where(valid_NU, episode_N[:, None] + step_weight * step_NU, 0)


def step_advantage(
  return_NU: jax.Array,
  state_NU: jax.Array,
  group_N: jax.Array,
  *,
  num_groups: int,
  num_states: int,
  valid_NU: jax.Array,
  scale_by_std: bool = True,
  epsilon: float = 1e-6,
) -> jax.Array:
  """Distance of a step's return from the mean of steps from its state.

    A_nu = (R_nu - mean_S R) / (std_S R + epsilon)

  with S the steps, of any trajectory of the group and at any time, that started
  in the state of (n, u); without the divisor if not `scale_by_std` (GiGPO,
  arXiv:2505.10978, eq. 6 and 7). The std is the unbiased one. A step alone in
  its state gets 0, unlike a trajectory alone in its group: the advantage of its
  trajectory remains.

  Args:
    return_NU: the return from the step on; not read where invalid. A
      constant.
    state_NU, group_N, num_groups, num_states, valid_NU, scale_by_std, epsilon:
      as in `gigpo_advantage`.

  Returns:
    advantage_NU, 0 where invalid.
  """
  chex.assert_rank([return_NU, state_NU, valid_NU, group_N], [2, 2, 2, 1])
  chex.assert_equal_shape([return_NU, state_NU, valid_NU])
  chex.assert_equal_shape_prefix([return_NU, group_N], 1)
  chex.assert_type(valid_NU, bool)
  num_anchors = num_groups * num_states
  # One id per (group, state); a state out of range must not become another's.
  known_NU = (state_NU >= 0) & (state_NU < num_states)
  known_NU &= ((group_N >= 0) & (group_N < num_groups))[:, None]
  anchor_NU = jnp.where(known_NU, group_N[:, None] * num_states + state_NU, -1)
  steps = (return_NU.reshape(-1), anchor_NU.reshape(-1))
  valid = valid_NU.reshape(-1)
  advantage = group_advantage(
    *steps,
    num_groups=num_anchors,
    valid_N=valid,
    scale_by_std=scale_by_std,
    epsilon=epsilon,
  )
  size = group_statistics(*steps, num_anchors, valid).size_M
  alone_NU = (look_up(size, steps[1]) == 1).reshape(return_NU.shape)
  advantage_NU = advantage.reshape(return_NU.shape)
  alone_NU &= ~jnp.isnan(advantage_NU)
  return jnp.where(alone_NU, 0, advantage_NU)
