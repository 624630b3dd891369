"""A collector of simulated episodes, for benchmarks on a virtual clock."""

from collections.abc import Sequence

import numpy as np

from agentrl_jax.controller.groups.admission import Admission
from agentrl_jax.controller.groups.breaker import Breakers
from agentrl_jax.controller.groups.collector import Collector
from agentrl_jax.controller.groups.group import (
  GroupLimits,
  RetryLimits,
  run_group,
)
from agentrl_jax.controller.groups.group_queue import GroupQueue
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player
from agentrl_jax.data.records import (
  EpisodeSpec,
  Group,
  Status,
  Task,
  Trajectory,
  Turn,
)
from agentrl_jax.data.task_source import TaskStream


def make_collector(
  player: Player,
  admission: Admission,
  queue: GroupQueue,
  monitor: Monitor,
  limits: GroupLimits,
  *,
  names: Sequence[str],
  seed: int,
  patience: float | None = None,
) -> Collector:
  """Collects groups of the tasks `names`, with the controller's own parts.

  Without `patience` the learner waits for a group that is due, however long.
  """
  timers = GroupTimers()

  async def play(task: Task, group_id: str, seed: int) -> Group | None:
    return await run_group(
      task,
      player,
      limits,
      RetryLimits(max_retries=0, backoff_s=0.0),
      monitor,
      group_id=group_id,
      seed=seed,
      timers=timers,
    )

  stream = TaskStream(
    {name: range(1 << 20) for name in names},
    weights=dict.fromkeys(names, 1.0),
    split="train",
    seed=0,
  )
  breakers = Breakers(
    stream.shares, timers, monitor, num_places=admission.num_places
  )
  overdue = None
  if patience is not None:
    overdue = OverdueGroups(queue, timers, patience=patience)
  return Collector(
    stream, play, queue, admission, breakers, seed=seed, overdue=overdue
  )


def turn_of(version: int) -> Turn:
  """Returns a turn of one token that a version sampled."""
  token, logprob = np.zeros(1, np.int32), np.zeros(1, np.float32)
  return Turn(token, token, logprob, logprob, np.full(1, version, np.int32))


def episode_of(spec: EpisodeSpec, turns: Sequence[Turn]) -> Trajectory:
  """Returns an episode; every second attempt of a group succeeds."""
  return Trajectory(
    task=spec.task,
    group_id=spec.group_id,
    attempt=spec.attempt,
    seed=spec.seed,
    turns=tuple(turns),
    status=Status.COMPLETED,
    reward=float(spec.attempt % 2),
    metrics={},
    transcript=(),
  )
