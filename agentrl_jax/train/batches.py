"""Groups of trajectories into the micro-batches of one update.

Rewards are shaped, attempts are judged against their siblings and then against
their task over the whole batch, and only then is the batch packed and cut: the
cut changes nothing.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.batch import Batch
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.trajectory import Group, Status, Trajectory
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.objective import Lesson


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
  """The `advantage` section of the config."""

  scale_by_std: bool  # divide by the group's standard deviation
  task_center: bool  # subtract the task's mean over trained tokens
  task_scale: bool  # divide by the task's standard deviation over them
  drop_no_signal: bool  # leave out groups whose attempts all scored the same
  incomplete_reward: float  # of an attempt that did not complete (AgentRL -0.2)
  epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig:
  """The `train` section's part about shapes."""

  row_length: int  # tokens
  micro_batch: int  # rows

  def __post_init__(self) -> None:
    for name in ("row_length", "micro_batch"):
      if getattr(self, name) < 1:
        raise ConfigError(f"train.{name}={getattr(self, name)} is below 1")


def shaped_reward(trajectory: Trajectory, incomplete_reward: float) -> float:
  """The environment's verdict, or what not finishing costs.

  AgentRL (arXiv:2510.04206): any policy's ending but `completed` scores
  `incomplete_reward`, whatever was earned on the way.
  """
  if trajectory.status is Status.COMPLETED:
    return trajectory.reward
  return incomplete_reward


def advantages(
  groups: Sequence[Group], task_ids: Mapping[str, int], config: AdvantageConfig
) -> np.ndarray:
  """One advantage per trajectory, in the order of groups and their members.

  Statistics run over the whole batch. Computed on the device, on vectors
  padded to a power of two so that few lengths are compiled.
  """
  members = [
    (g, t) for g, group in enumerate(groups) for t in group.trajectories
  ]
  size = 1 << max(len(members) - 1, 0).bit_length()

  def padded(values: list, dtype) -> np.ndarray:
    out = np.zeros(size, dtype)
    out[: len(values)] = values
    return out

  result_N = _advantages(
    padded(
      [shaped_reward(t, config.incomplete_reward) for _, t in members],
      np.float32,
    ),
    padded([g for g, _ in members], np.int32),
    padded([task_ids[t.task.name] for _, t in members], np.int32),
    padded([t.num_sampled for _, t in members], np.int32),
    np.arange(size) < len(members),
    num_tasks=len(task_ids),
    config=config,
  )
  return np.asarray(result_N)[: len(members)]


@partial(jax.jit, static_argnames=("num_tasks", "config"))
def _advantages(
  reward_N: jax.Array,
  group_N: jax.Array,
  task_N: jax.Array,
  num_tokens_N: jax.Array,
  valid_N: jax.Array,
  *,
  num_tasks: int,
  config: AdvantageConfig,
) -> jax.Array:
  size = reward_N.shape[0]
  advantage_N = losses.group_advantage(
    reward_N,
    group_N,
    num_groups=size,
    valid_N=valid_N,
    scale_by_std=config.scale_by_std,
    epsilon=config.epsilon,
  )
  if config.drop_no_signal:
    signal_M = losses.group_has_signal(reward_N, group_N, size, valid_N)
    valid_N = valid_N & signal_M[group_N]
  if not (config.task_center or config.task_scale):
    return jnp.where(valid_N, advantage_N, 0)
  return losses.task_normalise_weighted(
    advantage_N,
    task_N,
    num_tokens_N,
    valid_N,
    num_tasks=num_tasks,
    center=config.task_center,
    scale=config.task_scale,
    epsilon=config.epsilon,
  )


def reinforcement_lessons(
  groups: Sequence[Group],
  *,
  task_ids: Mapping[str, int],
  advantage: AdvantageConfig,
  batch: BatchConfig,
) -> tuple[list[Lesson], dict[str, float]]:
  """The micro-batches of one update and what the packing came to.

  Trajectories of advantage 0 teach nothing and are left out. With none left
  the list is empty: there is no update to make.
  """
  trajectories = [t for group in groups for t in group.trajectories]
  advantage_N = advantages(groups, task_ids, advantage)
  kept = [n for n, a in enumerate(advantage_N) if a != 0]
  report = {
    "batch/trajectories": float(len(trajectories)),
    "batch/trajectories_with_signal": float(len(kept)),
  }
  if not kept:
    return [], report
  lessons, fill = _lessons(
    [trajectories[n] for n in kept], advantage_N[kept], batch
  )
  tokens = sum(trajectories[n].num_sampled for n in kept)
  report |= {"batch/fill": fill, "batch/trained_tokens": float(tokens)}
  return lessons, report


def _lessons(
  trajectories: Sequence[Trajectory],
  advantage_N: np.ndarray,
  config: BatchConfig,
) -> tuple[list[Lesson], float]:
  rows = pack(
    trajectories,
    row_length=config.row_length,
    rows_multiple=config.micro_batch,
  )
  advantage_RT = np.where(rows.mask, advantage_N[rows.trajectory], 0).astype(
    np.float32
  )
  return list(_cut(rows, advantage_RT, config.micro_batch)), rows.fill


def _cut(
  rows: Rows, advantage_RT: np.ndarray, micro_batch: int
) -> Iterator[Lesson]:
  for start in range(0, len(rows.token), micro_batch):
    part = slice(start, start + micro_batch)
    batch = Batch(
      **{
        field.name: getattr(rows, field.name)[part]
        for field in dataclasses.fields(rows)
      }
    )
    advantage = advantage_RT[part]
    yield Lesson(batch, advantage, np.zeros_like(advantage))
