"""Advantages from a critic: what each token or turn was worth against it.

The critic is a head on the policy's hidden states (`model.value_head`). Its
values are read before the update, for the whole batch; advantages are
normalised over the whole batch too.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.packing import Rows
from agentrl_jax.losses import TaskMoments
from agentrl_jax.train.advantage_config import AdvantageConfig
from agentrl_jax.train.custom import CustomFunction
from agentrl_jax.train.task_advantage import normalise


def place_rewards(rows: Rows, reward_NU: np.ndarray) -> np.ndarray:
  """The rewards of the attempts' turns, at their last sampled tokens."""
  last_RT = rows.mask.copy()
  last_RT[:, :-1] &= ~(
    rows.mask[:, 1:]
    & (rows.turn[:, 1:] == rows.turn[:, :-1])
    & (rows.segment[:, 1:] == rows.segment[:, :-1])
  )
  return np.where(last_RT, reward_NU[rows.trajectory, rows.turn], 0)


def pad_rows(x_RT: np.ndarray) -> np.ndarray:
  """x with rows of zeros up to a power of two: few shapes to compile for."""
  num_rows = len(x_RT)
  missing = (1 << (num_rows - 1).bit_length()) - num_rows
  return np.pad(x_RT, ((0, missing), (0, 0)))


def critic_advantages(
  rows: Rows,
  reward_RT: np.ndarray,
  value_RT: np.ndarray,
  task_RT: np.ndarray,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None = None,
) -> tuple[dict[str, np.ndarray], TaskMoments | None]:
  """Advantages and value targets of a batch; the statistics after it.

  The fields are advantage, old_value, value_target and value_mask, [R, T].
  """
  num_rows = len(rows.token)
  (advantage_RT, target_RT, fitted_RT), running = _judge(
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
    num_tasks=num_tasks,
    config=config,
    running=running,
  )
  fields = {
    "advantage": advantage_RT,
    "value_target": target_RT,
    "value_mask": fitted_RT,
  }
  cut = {name: np.asarray(x)[:num_rows] for name, x in fields.items()}
  return cut | {"old_value": value_RT}, running


def custom_critic_advantages(
  function: CustomFunction, inputs: Mapping[str, Any]
) -> tuple[jax.Array, jax.Array]:
  """Advantage and target of a custom estimator, [R, T], 0 off the mask.

  Raises `ConfigError` if it returns anything else.
  """
  result = function(inputs)
  if not isinstance(result, tuple) or len(result) != 2:
    raise function.refuse(f"returned {type(result).__name__}")
  mask_RT = inputs["mask_BT"]
  for each in result:
    function.require_shape(each, mask_RT.shape)
  advantage_RT, target_RT = (jnp.where(mask_RT, x, 0) for x in result)
  return advantage_RT, target_RT


@partial(jax.jit, static_argnames=("num_tasks", "config"))
def _judge(
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
    advantage_RT, target_RT = _estimate(inputs, config)
  fitted_RT = mask_RT
  if config.estimator == "turn_gae":  # the value is read there alone
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


def _estimate(
  inputs: Mapping[str, jax.Array], config: AdvantageConfig
) -> tuple[jax.Array, jax.Array]:
  """Advantage and target by the estimator of the package, [R, T] each."""
  inputs = dict(inputs)
  turn_RT = inputs.pop("turn_BT")
  estimate = {
    "gae": losses.gae,
    "turn_gae": partial(losses.turn_gae, turn_BT=turn_RT),
    "bi_level_gae": partial(
      losses.bi_level_gae, turn_BT=turn_RT, turn_discount=config.turn_discount
    ),
  }[config.estimator]
  return estimate(
    **inputs, discount=config.discount, gae_lambda=config.gae_lambda
  )
