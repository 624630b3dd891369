"""A simulated run: the real controller, players that take time, no engine."""

import asyncio
import dataclasses
import math
import random

import numpy as np

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits
from agentrl_jax.controller.groups.breaker import Breakers
from agentrl_jax.controller.groups.collector import Collector
from agentrl_jax.controller.groups.group import (
  GroupLimits,
  RetryLimits,
  run_group,
)
from agentrl_jax.controller.groups.group_queue import GroupQueue, QueueLimits
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.task_source import TaskStream
from agentrl_jax.data.records import Status, Trajectory, Turn
from agentrl_jax.errors import EnvironmentFault
from tests.controller.groups import virtual_time
from tests.controller.pipeline import collecting

HOUR = 3600.0
SIZE, STEP = 3, 4  # attempts of a group, groups of a batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Sizes of a pipeline; an episode takes a second on average, as an update."""

  max_staleness: int = 1
  max_age: int = 3
  stride: int = 1
  hanging: float = 0.0  # share of the episodes
  patience: float = 0.5
  train_s: float = 1.0
  slow_s: float = 0.0  # that every episode takes longer
  tasks: tuple[str, ...] = ("a",)
  broken: str = ""  # task whose environment fails, or hangs
  fails: bool = False
  broken_s: tuple[float, float] = (0.0, math.inf)  # from when, until when
  outage_at: float = math.inf  # when all stand still for a quarter of an hour
  seed: int = 0


class Player:
  """Takes the time of an episode, or an hour."""

  def __init__(self, made: Settings, admission: Admission):
    self._made, self._admission = made, admission

  async def play(self, spec):
    dice = random.Random(f"{self._made.seed}/{spec.seed}")
    version = self._admission.version
    hangs = dice.random() < self._made.hanging
    length_s = self._made.slow_s + dice.expovariate(1.0)
    now = asyncio.get_running_loop().time()
    begin, end = self._made.broken_s
    if spec.task.name == self._made.broken and begin <= now < end:
      await asyncio.sleep(0.01 if self._made.fails else HOUR)
      raise EnvironmentFault("broken, as told")
    outage_at = self._made.outage_at
    if now < outage_at + HOUR / 4 and outage_at < now + length_s:
      length_s += outage_at + HOUR / 4 - max(now, outage_at)
    await asyncio.sleep(HOUR if hangs else length_s)
    token, logprob = np.zeros(1, np.int32), np.zeros(1, np.float32)
    versions = np.full(1, version, np.int32)
    return Trajectory(
      task=spec.task,
      group_id=spec.group_id,
      attempt=spec.attempt,
      seed=spec.seed,
      turns=(Turn(token, token, logprob, logprob, versions),),
      status=Status.COMPLETED,
      reward=float(spec.attempt),
    )


class Running:
  """The controller of a run, from a version and a state on."""

  def __init__(self, made: Settings, monitor: Monitor, version=0, state=None):
    self.monitor = monitor
    admission = Admission(
      AdmissionLimits(
        max_staleness=made.max_staleness,
        groups_per_step=STEP,
        max_concurrent_groups=4 * STEP,
        versions_per_step=made.stride,
        refills_per_step=0,
      ),
      version=version,
      num_pending=len(state.queued) if state else 0,
    )
    queue = GroupQueue(
      QueueLimits(
        max_groups=4 * STEP,
        order="finished",
        max_age=made.max_age,
        patience=made.patience,
      ),
      monitor,
      versions_per_step=made.stride,
    )
    player, timers = Player(made, admission), GroupTimers()

    async def play(task, group_id, seed):
      return await run_group(
        task,
        player,
        GroupLimits(size=SIZE, deadline_s=HOUR / 2),
        RetryLimits(max_retries=0, backoff_s=0.0),
        monitor,
        group_id=group_id,
        seed=seed,
        timers=timers,
      )

    stream = TaskStream(
      {task: range(1 << 20) for task in made.tasks},
      weights=dict.fromkeys(made.tasks, 1.0),
      split="train",
      seed=0,
    )
    self.collector = Collector(
      stream,
      play,
      queue,
      admission,
      Breakers(stream.shares, timers, monitor, num_places=admission.num_places),
      seed=made.seed,
      overdue=OverdueGroups(queue, timers, patience=made.patience),
    )
    if state is not None:
      self.collector.restore(state)


@dataclasses.dataclass
class Found:
  """Facts of a simulated run."""

  seconds: float  # of waiting for groups
  end_s: float
  groups: list
  monitor: Monitor


def train(made: Settings, *, steps=40, resume_at=(), pause_at=()) -> Found:
  """Trains on the virtual clock; a pause is an hour of the learner's."""

  async def run() -> Found:
    loop, monitor = asyncio.get_running_loop(), Monitor()
    found = Found(0.0, 0.0, [], monitor)
    state, step = None, 0
    while step < steps:
      running = Running(made, monitor, step * made.stride, state)
      async with collecting(running.collector) as collector:
        while step < steps:
          version, asked_at = step * made.stride, loop.time()
          found.groups += await collector.take(STEP, version=version)
          found.seconds += loop.time() - asked_at
          await asyncio.sleep(HOUR if step in pause_at else made.train_s)
          step += 1
          if step in resume_at:
            collector.advance(step * made.stride)
            state = collector.snapshot()
            break
    found.end_s = loop.time()
    return found

  return virtual_time.run(run())
