"""Tests of the record of faults, which no resume shortens."""

import pathlib
import tempfile

from absl.testing import absltest

from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import Task
from launch.processes.fault_log import (
  ALARM,
  EPISODE,
  LOST_SERVERS,
  NOTE,
  SERVER,
  START,
  FaultLog,
  read_faults,
  split_alarms,
)
from launch.reports.html import fault_text
from tests.clocks import StoppedClock


class FaultLogTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "faults.jsonl"
    self.clock = StoppedClock(7.0)
    self.log = FaultLog(self.path, clock=self.clock)

  def found(self):
    return [
      (f.version, f.kind, f.count, f.what) for f in read_faults(self.path)
    ]

  def test_a_run_without_faults_has_none(self):
    self.assertEqual(read_faults(self.path), [])
    self.log.started(0)
    self.log.update(1, {LOST_SERVERS: 0.0, "loss": 2.0})
    self.assertEqual(self.found(), [])

  def test_a_counter_that_rose_is_a_fault_and_one_that_stayed_is_none(self):
    self.log.started(0)
    monitor = Monitor()
    monitor.faulted(Task("sums", "train", 0), "EnvironmentFault")
    monitor.faulted(Task("sums", "train", 1), "EnvironmentFault")
    self.log.update(1, {**monitor.snapshot(), LOST_SERVERS: 1.0})
    self.log.update(2, {**monitor.snapshot(), LOST_SERVERS: 1.0})
    monitor.faulted(Task("sums", "train", 1), "EnvironmentFault")
    self.log.update(3, {**monitor.snapshot(), LOST_SERVERS: 1.0})
    self.assertEqual(
      self.found(),
      [
        (1, EPISODE, 2, "EnvironmentFault/sums"),
        (1, SERVER, 1, ""),
        (3, EPISODE, 1, "EnvironmentFault/sums"),
      ],
    )

  def test_a_new_start_counts_from_zero_and_keeps_what_was_there(self):
    self.log.started(0)
    self.log.update(1, {LOST_SERVERS: 2.0})
    again = FaultLog(self.path, clock=self.clock)
    again.started(0)
    again.update(1, {LOST_SERVERS: 1.0})
    self.assertEqual(
      self.found(), [(1, SERVER, 2, ""), (0, START, 1, ""), (1, SERVER, 1, "")]
    )

  def test_half_a_line_of_a_killed_process_is_dropped(self):
    self.log.started(0)
    self.log.update(1, {LOST_SERVERS: 1.0})
    with self.path.open("a") as file:
      file.write('{"time_s": 8.0, "ver')
    self.assertEqual(self.found(), [(1, SERVER, 1, "")])
    self.log.started(1)
    self.assertEqual(self.found(), [(1, SERVER, 1, ""), (1, START, 1, "")])

  def test_alarms_stand_beside_the_faults(self):
    self.log.started(0)
    self.log.update(1, {LOST_SERVERS: 1.0})
    self.log.alarm(4, "since update 1 nothing", is_note=False)
    self.log.alarm(5, "all is learned", is_note=True)
    alarms, faults = split_alarms(read_faults(self.path))
    self.assertEqual(
      [(fault.kind, fault_text(fault)) for fault in alarms],
      [(ALARM, "since update 1 nothing"), (NOTE, "all is learned")],
    )
    self.assertEqual([fault.kind for fault in faults], [SERVER])

  def test_is_told_in_words(self):
    self.log.started(0)
    self.log.update(
      4, {LOST_SERVERS: 2.0, "rollout/fault/EnvironmentFault/sums": 1.0}
    )
    self.log.started(3)
    self.assertEqual(
      [fault_text(fault) for fault in read_faults(self.path)],
      [
        "2 rollout servers lost; others answered",
        "1 episode of sums broken: EnvironmentFault",
        "the learner started again, from update 3",
      ],
    )
