"""Advantages from a critic, a head on the policy's hidden states."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.packing import Rows
from agentrl_jax.losses import TaskMoments
from agentrl_jax.train.advantages import (
  RunningMoments,
  as_float32,
  as_float64,
  normalise,
  on_host_in_float64,
  pad_rows,
)
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.custom import CustomFunction


def place_rewards(rows: Rows, reward_NU: np.ndarray) -> np.ndarray:
  """Places the reward of each turn at its last sampled token, [R, T]."""
  last_RT = rows.mask.copy()
  last_RT[:, :-1] &= ~(
    rows.mask[:, 1:]
    & (rows.turn[:, 1:] == rows.turn[:, :-1])
    & (rows.segment[:, 1:] == rows.segment[:, :-1])
  )
  return np.where(last_RT, reward_NU[rows.trajectory, rows.turn], 0)


def critic_advantages(
  rows: Rows,
  reward_RT: np.ndarray,
  value_RT: np.ndarray,
  task_RT: np.ndarray,
  config: AdvantageConfig,
  moments: RunningMoments,
) -> dict[str, np.ndarray]:
  """Returns advantages and value targets of a batch; `moments` go on.

  The fields are advantage, old_value, value_target and value_mask, [R, T].
  """
  num_rows = len(rows.token)
  with on_host_in_float64():
    (advantage_RT, target_RT, fitted_RT), running = _critic_advantages(
      *(
        pad_rows(x)
        for x in (
          rows.mask,
          rows.segment,
          rows.turn,
          reward_RT,
          value_RT,
          task_RT,
        )
      ),
      num_tasks=moments.num_tasks,
      config=config,
      running=as_float64(moments.value),
    )
    fields = {
      "advantage": as_float32(advantage_RT),
      "value_target": as_float32(target_RT),
      "value_mask": np.asarray(fitted_RT),
    }
    moments.value = as_float64(running)
  unpadded = {name: x[:num_rows] for name, x in fields.items()}
  return unpadded | {"old_value": value_RT}


def custom_critic_advantages(
  function: CustomFunction, inputs: Mapping[str, Any]
) -> tuple[jax.Array, jax.Array]:
  """Calls a custom estimator: advantage and target [R, T], 0 off the mask.

  Raises `ConfigError` if it returns anything else.
  """
  result = function(inputs)
  if not isinstance(result, tuple) or len(result) != 2:
    raise function.refuse(f"returned {type(result).__name__}")
  mask_RT = inputs["mask_BT"]
  for x_RT in result:
    function.require_shape(x_RT, mask_RT.shape)
  advantage_RT, target_RT = (jnp.where(mask_RT, x, 0) for x in result)
  return advantage_RT, target_RT


@partial(jax.jit, static_argnames=("num_tasks", "config"))
def _critic_advantages(
  mask_RT: jax.Array,
  segment_RT: jax.Array,
  turn_RT: jax.Array,
  reward_RT: jax.Array,
  value_RT: jax.Array,
  task_RT: jax.Array,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None,
) -> tuple[tuple[jax.Array, ...], TaskMoments | None]:
  inputs = {
    "reward_BT": reward_RT,
    "value_BT": value_RT,
    "mask_BT": mask_RT,
    "turn_BT": turn_RT,
    "segment_BT": segment_RT,
  }
  function = config.custom_function("estimator")
  if function is not None:
    advantage_RT, target_RT = custom_critic_advantages(function, inputs)
  else:
    advantage_RT, target_RT = _gae(inputs, config)
  fitted_RT = mask_RT
  if config.estimator == "turn_gae":  # reads the value there alone
    fitted_RT = losses.first_of_turn(mask_RT, turn_RT, segment_BT=segment_RT)
  advantage_W, running = normalise(
    advantage_RT.reshape(-1),
    task_RT.reshape(-1),
    mask_RT.reshape(-1).astype(jnp.int32),
    mask_RT.reshape(-1),
    num_tasks=num_tasks,
    config=config,
    running=running,
  )
  return (advantage_W.reshape(mask_RT.shape), target_RT, fitted_RT), running


def _gae(
  inputs: Mapping[str, jax.Array], config: AdvantageConfig
) -> tuple[jax.Array, jax.Array]:
  """Returns advantage and target of a built-in estimator, [R, T] each."""
  inputs = dict(inputs)
  turn_RT = inputs.pop("turn_BT")
  estimate = {
    "gae": losses.gae,
    "turn_gae": partial(losses.turn_gae, turn_BT=turn_RT),
    "bi_level_gae": partial(
      losses.bi_level_gae, turn_BT=turn_RT, **config.estimator_settings
    ),
  }[config.estimator]
  return estimate(
    **inputs, discount=config.discount, gae_lambda=config.gae_lambda
  )
