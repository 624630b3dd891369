"""A collector and its surroundings, for the tests of several modules."""

import asyncio
import collections
import contextlib

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits
from agentrl_jax.controller.groups.breaker import Breakers
from agentrl_jax.controller.groups.collector import Collector
from agentrl_jax.controller.groups.group import run_group
from agentrl_jax.controller.groups.group_queue import (
  ANY_AGE,
  GroupQueue,
  QueueLimits,
)
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.task_source import TaskStream
from agentrl_jax.controller.waiting import LearnerWatch
from tests.clocks import turns_of_the_loop
from tests.controller.stage import GROUP, RETRIES, a_group

STEP = 2  # groups the learner takes


class Pipeline:
  """A collector and its surroundings."""

  def __init__(
    self,
    run_group,
    *,
    max_staleness=1,
    concurrent=8,
    max_groups=4,
    state=None,
    version=0,
    order="finished",
    max_age=ANY_AGE,
    step_timeout_s=3600.0,
    refills=0,
  ):
    self.monitor = Monitor()
    watch = LearnerWatch(step_timeout_s)
    self.queue = GroupQueue(
      QueueLimits(
        max_groups=max_groups, order=order, max_age=max_age, patience=1.0
      ),
      self.monitor,
      watch=watch,
    )
    self.admission = Admission(
      AdmissionLimits(
        max_staleness=max_staleness,
        groups_per_step=STEP,
        max_concurrent_groups=concurrent,
        versions_per_step=1,
        refills_per_step=refills,
      ),
      version=version,
      num_pending=len(state.queued) if state else 0,
    )
    self.stream = TaskStream(
      {"arithmetic": range(1000)},
      weights={"arithmetic": 1.0},
      split="train",
      seed=5,
    )
    self.collector = Collector(
      self.stream,
      lambda *request: run_group(self, *request),
      self.queue,
      self.admission,
      Breakers(self.stream.shares, GroupTimers(), self.monitor),
      seed=11,
      watch=watch,
    )
    if state:
      self.collector.restore(state)

  def running(self):
    return collecting(self.collector)


@contextlib.asynccontextmanager
async def collecting(collector):
  """Collects until left."""
  running = asyncio.create_task(collector.run())
  try:
    yield collector
  finally:
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
      await running


async def at_once(pipeline, task, group_id, seed):
  await asyncio.sleep(0)
  return a_group(int(group_id), version=pipeline.admission.version)


def played_by(player, limits=GROUP):
  async def play(pipeline, task, group_id, seed):
    return await run_group(
      task,
      player,
      limits,
      RETRIES,
      pipeline.monitor,
      group_id=group_id,
      seed=seed,
    )

  return play


def ids(groups):
  return [int(group.id) for group in groups]


class Held:
  """Groups that end when they are told to, by position."""

  def __init__(self):
    self.begun = []
    self.seeds = {}
    self._gates = collections.defaultdict(asyncio.Event)

  async def __call__(self, pipeline, task, group_id, seed):
    position = int(group_id)
    self.begun.append(position)
    self.seeds[position] = seed
    await self._gates[position].wait()
    return a_group(position, version=pipeline.admission.version)

  async def end(self, *positions):
    for position in positions:
      self._gates[position].set()
    await turns_of_the_loop()
