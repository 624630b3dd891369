"""Events are counted, and named as metrics."""

import dataclasses
import unittest

from agentrl_jax.controller.metrics import DropReason, Monitor
from agentrl_jax.data.records import Status
from tests.controller.stage import a_group, a_task, a_trajectory


class MonitorTest(unittest.TestCase):
  def test_attempts_by_task(self):
    monitor = Monitor()
    ends = (
      (Status.COMPLETED, 1.0, 2.0),
      (Status.COMPLETED, 0.0, 4.0),
      (Status.TASK_LIMIT_REACHED, 0.0, 6.0),
    )
    for status, reward, seconds in ends:
      monitor.started(a_task())
      monitor.finished(a_trajectory(status=status, reward=reward), seconds)
    monitor.started(a_task())
    monitor.faulted(a_task(), "EnvironmentFault")
    monitor.masked(a_task())
    numbers = monitor.snapshot()
    expected = {
      "rollout/started": 4,
      "rollout/finished": 3,
      "rollout/masked": 1,
      "rollout/faults": 1,
      "rollout/fault/EnvironmentFault": 1,
      "rollout/status/completed": 2,
      "rollout/status/task_limit_reached": 1,
      "rollout/success": 1 / 3,
      "rollout/reward": 1 / 3,
      "rollout/episode_s": 4.0,
      "rollout/turns": 1.0,
      "rollout/tokens": 7.0,
      "rollout/sampled_tokens": 12,
      "rollout/token_identity": 1.0,
    }
    for name, number in expected.items():
      with self.subTest(name=name):
        self.assertAlmostEqual(numbers[f"{name}/arithmetic"], number)

  def test_groups_take_as_long_as_their_slowest_episode(self):
    monitor = Monitor()
    self.assertNotIn("rollout/group_s/arithmetic", monitor.snapshot())
    monitor.grouped(a_group(0), 3.0)
    monitor.grouped(a_group(1), 5.0)
    numbers = monitor.snapshot()
    self.assertEqual(numbers["rollout/group_s/arithmetic"], 4.0)
    self.assertEqual(numbers["groups/finished/arithmetic"], 2)

  def test_tasks_are_kept_apart(self):
    monitor = Monitor()
    other = dataclasses.replace(a_task(), name="dbbench")
    trajectory = dataclasses.replace(a_trajectory(reward=0.0), task=other)
    monitor.finished(a_trajectory(reward=1.0), 1.0)
    monitor.finished(trajectory, 1.0)
    numbers = monitor.snapshot()
    self.assertEqual(numbers["rollout/success/arithmetic"], 1.0)
    self.assertEqual(numbers["rollout/success/dbbench"], 0.0)

  def test_success_looks_back_on_a_window(self):
    monitor = Monitor()
    for reward in [0.0] * 600 + [1.0] * 512:
      monitor.finished(a_trajectory(reward=reward), 1.0)
    wanted = {
      "rollout/success/arithmetic": 1.0,
      "rollout/finished/arithmetic": 1112,
    }
    self.assertLessEqual(wanted.items(), monitor.snapshot().items())

  def test_staleness_and_queue(self):
    monitor = Monitor()
    monitor.taken([a_group(0, version=3), a_group(1, version=5)], version=5)
    monitor.queue(3, 4)
    wanted = {
      "staleness/groups/2": 1,
      "staleness/groups/0": 1,
      "staleness/mean": 1.0,
      "staleness/max": 2,
      "queue/groups": 3,
      "queue/fill": 0.75,
    }
    self.assertLessEqual(wanted.items(), monitor.snapshot().items())

  def test_a_new_monitor_reports_an_empty_queue(self):
    self.assertEqual(Monitor().snapshot(), {"queue/groups": 0.0})

  def test_every_number_is_a_float(self):
    monitor = Monitor()
    monitor.finished(a_trajectory(), 1.0)
    monitor.dropped(a_group().task, DropReason.FAULTS)
    monitor.taken([a_group()], version=1)
    kinds = {type(number) for number in monitor.snapshot().values()}
    self.assertEqual(kinds, {float})
