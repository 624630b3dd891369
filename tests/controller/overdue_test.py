"""Ages are bounded, and no episode holds the learner; on a virtual clock."""

import asyncio
import contextlib
import dataclasses
import math
import random
import unittest

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.admission import Admission, AdmissionLimits
from agentrl_jax.controller.collector import Collector
from agentrl_jax.controller.group import (
  GroupLimits,
  GroupTimers,
  RetryLimits,
  run_group,
)
from agentrl_jax.controller.group_queue import (
  ANY_AGE,
  GroupQueue,
  OverdueGroups,
  QueueLimits,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Status, Trajectory, Turn
from agentrl_jax.data.task_source import TaskStream
from agentrl_jax.errors import ConfigError
from bench import virtual_time

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
  outage_at: float = (
    math.inf
  )  # when all episodes stand still for a quarter of an hour
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
    if now < self._made.outage_at < now + length_s:
      length_s += HOUR / 4
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

    tasks = {"a": range(1 << 20)}
    self.collector = Collector(
      TaskStream(tasks, weights={"a": 1.0}, split="train", seed=0),
      play,
      queue,
      admission,
      seed=made.seed,
      overdue=OverdueGroups(queue, timers, patience=made.patience),
    )
    if state is not None:
      self.collector.restore(state)

  @contextlib.asynccontextmanager
  async def collecting(self):
    running = asyncio.create_task(self.collector.run())
    try:
      yield self.collector
    finally:
      running.cancel()
      await asyncio.wait([running])


@dataclasses.dataclass
class Found:
  """Facts of a simulated run."""

  seconds: float  # of waiting for groups
  groups: list
  monitor: Monitor


def train(made: Settings, *, steps=40, resume_at=(), pause_at=()) -> Found:
  """Trains on the virtual clock; a pause is an hour of the learner's."""

  async def run() -> Found:
    loop, monitor = asyncio.get_running_loop(), Monitor()
    found = Found(0.0, [], monitor)
    state, step = None, 0
    while step < steps:
      running = Running(made, monitor, step * made.stride, state)
      async with running.collecting() as collector:
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
    return found

  return virtual_time.run(run())


class OverdueTest(unittest.TestCase):
  @settings(
    max_examples=30, deadline=None, phases=(Phase.explicit, Phase.generate)
  )
  @given(
    stride=st.integers(1, 3),
    staleness=st.integers(0, 4),
    slack=st.integers(0, 4),
    hanging=st.sampled_from([0.0, 0.01]),
    resumes=st.sets(st.integers(1, 29), max_size=3),
    seed=st.integers(0, 9),
  )
  @example(  # resumes so often that no step is measured
    stride=2, staleness=3, slack=0, hanging=0.01, resumes={15, 16, 17}, seed=0
  )
  def test_no_group_is_older_than_allowed_and_none_is_waited_for_long(
    self, stride, staleness, slack, hanging, resumes, seed
  ):
    made = Settings(
      max_staleness=staleness,
      max_age=staleness + slack,
      stride=stride,
      hanging=hanging,
      seed=seed,
    )
    found = train(made, steps=30, resume_at=resumes)
    self.assertLessEqual(max(found.monitor.staleness), made.max_age)
    ids = [group.id for group in found.groups]
    self.assertEqual(len(set(ids)), len(ids))
    if staleness > stride:  # so that others finish while one hangs
      self.assertLess(found.seconds, HOUR / 4)

  def test_a_hanging_episode_costs_what_it_took_of_its_group(self):
    found = train(Settings(hanging=0.02))
    short = [g for g in found.groups if len(g.trajectories) < SIZE]
    self.assertGreater(len(short), 0)
    self.assertTrue(all(len(g.trajectories) >= 2 for g in short))
    self.assertEqual({g.num_masked for g in short}, {1})

  def test_hanging_groups_that_use_up_admission_are_ended(self):
    made = Settings(max_staleness=0, max_age=0, hanging=0.01)
    found = train(made, steps=100)
    self.assertGreater(found.monitor.tasks["a"].late, 2)
    self.assertLess(found.seconds / 100, 20 * made.train_s)

  def test_an_outage_costs_a_quarter_of_a_batch_at_most(self):
    for second in range(20, 40):
      made = Settings(max_staleness=1, max_age=8, outage_at=second + 0.5)
      found = train(made, steps=20)
      self.assertLessEqual(found.monitor.tasks["a"].late, SIZE * STEP / 4)

  def test_without_a_bound_on_age_nobody_is_cut_off(self):
    found = train(Settings(patience=0.0, max_age=ANY_AGE, max_staleness=3))
    self.assertGreater(max(found.monitor.staleness), 3)
    self.assertEqual(found.monitor.tasks["a"].late, 0)

  def test_a_long_step_ends_no_group(self):
    found = train(Settings(slow_s=20.0), pause_at={5, 6, 20})
    self.assertEqual(found.monitor.tasks["a"].late, 0)

  def test_episodes_that_are_all_slow_are_not_ended(self):
    for slow_s in (1.0, 60.0, 600.0):
      found = train(Settings(slow_s=slow_s, train_s=0.01))
      self.assertEqual(found.monitor.tasks["a"].late, 0, slow_s)

  def test_waits_do_not_make_longer_waits(self):
    made = Settings(hanging=0.08, max_staleness=6, max_age=6, patience=2.0)
    found = train(made, steps=100)
    self.assertGreater(found.monitor.tasks["a"].late, 50)
    self.assertLess(found.seconds / 100, 2 * made.patience * made.train_s)

  def test_more_patience_ends_fewer(self):
    late = [
      train(Settings(max_age=1, patience=patience)).monitor.tasks["a"].late
      for patience in (0.0, 0.5, 8.0)
    ]
    self.assertGreater(late[0], late[1])
    self.assertGreater(late[1], late[2])
    self.assertEqual(late[2], 0)


class GroupTimersTest(unittest.IsolatedAsyncioTestCase):
  async def test_ends_a_group_that_is_played_and_no_other(self):
    timers = GroupTimers()
    timers.end("a")
    with self.assertRaises(TimeoutError):
      async with timers.running("a", 60.0):
        timers.end("b")
        await asyncio.sleep(0)
        timers.end("a")
        timers.end("a")
        await asyncio.sleep(60)
    timers.end("a")

  async def test_a_straggler_is_played_longer_than_three_others(self):
    timers, now = GroupTimers(), asyncio.get_running_loop().time()
    for length_s in (1.0, 5.0):
      timers.note_whole(length_s)
    async with timers.running("a", 60.0):
      self.assertEqual(timers.straggles_at("a"), math.inf)
      timers.note_whole(2.0)
      self.assertAlmostEqual(timers.straggles_at("a"), now + 15, delta=1)
      async with timers.running("b", 60.0):
        self.assertEqual(timers.straggles_at("a"), math.inf)
    self.assertEqual(timers.straggles_at("a"), math.inf)


@pytest.mark.parametrize("patience", [-1.0, float("nan")])
def test_patience_is_no_less_than_none(patience):
  with pytest.raises(ConfigError, match=f"queue.patience is {patience}"):
    QueueLimits(max_groups=1, order="finished", max_age=1, patience=patience)
