"""Differences between tasks: as the config says, over the whole batch.

Axes: W entries (attempts, turns or tokens), I tasks.
"""

import jax
import jax.numpy as jnp

from agentrl_jax import losses
from agentrl_jax.losses import TaskMoments
from agentrl_jax.train.advantage_config import AdvantageConfig


def normalise(
  advantage_W: jax.Array,
  task_W: jax.Array,
  num_tokens_W: jax.Array,
  valid_W: jax.Array,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None,
) -> tuple[jax.Array, TaskMoments | None]:
  """Whitened, normalised by task, or neither; 0 where not valid.

  Each entry counts as its number of trained tokens. `running` are the
  statistics that earlier batches left, if advantage.task_decay keeps any; those
  that this one leaves come back.
  """
  if config.whiten:
    return (
      losses.whiten_weighted(advantage_W, num_tokens_W, valid_W),
      running,
    )
  if not config.normalises_tasks:
    return jnp.where(valid_W, advantage_W, 0), running
  settings = dict(
    center=config.task_center, scale=config.task_scale, epsilon=config.epsilon
  )
  if running is None:
    advantage_W = losses.task_normalise_weighted(
      advantage_W,
      task_W,
      num_tokens_W,
      valid_W,
      num_tasks=num_tasks,
      **settings,
    )
    return advantage_W, None
  weight_W = jnp.where(valid_W, num_tokens_W, 0)
  batch = losses.measure_tasks(
    advantage_W, task_W, weight_W, num_tasks=num_tasks
  )
  running = losses.blend_moments(running, batch, decay=config.task_decay)
  advantage_W = losses.normalise_by_moments(
    advantage_W, task_W, weight_W > 0, running, **settings
  )
  return advantage_W, running
