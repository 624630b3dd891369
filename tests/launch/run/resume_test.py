"""Killed and stopped at any moment, a run becomes what it would have been.

Real processes: two learners of two devices each, joined by `jax.distributed`.
"""

import math
import pathlib
import random
import shutil
import signal
import tempfile
import time

import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.data.record_file import read_groups
from agentrl_jax.model.policy import Policy
from launch.config.settings import read_settings
from launch.processes.link import LOST
from launch.reports.metrics_file import read_metrics
from launch.storage.load_params import load_params
from launch.storage.run_directory import RunDirectory
from tests.launch import tiny
from tests.launch.processes.learners import (
  Learners,
  ledger_of,
  position_of,
  state_of,
)

STEPS = 6
LEARNERS = {
  "mesh.data": 2,
  "mesh.fsdp": 2,
  "train.micro_batch": 4,
  # For one whose peer was killed before it joined.
  "processes.join_timeout_s": 90.0,
  # With a critic even an attempt that fails as all others do teaches something.
  "model.value_head": True,
  "advantage.estimator": "gae",
  "loss.value_coefficient": 0.5,
  "optimizer.learning_rate": 1e-3,
}
# Every process finds out what the grammar allowed, and all find the same.
CONSTRAINED = {"sampling.calls": "well_formed"}
# What is drawn, and what is trained on, follows from what came of it.
LEARNING = {"admission.refills_per_step": 1}
# Evaluations during RL are played in lockstep, too.
EVALUATED = {
  "evaluation.every": 2,
  "evaluation.num_tasks_during": 4,
  "evaluation.num_sampled_during": 4,
  "evaluation.concurrency_during": 3,
  "checkpoint.keep_best": "sampled",
}
# Nothing is left to timing.
EXACT = {
  **LEARNERS,
  **EVALUATED,
  "queue.order": "started",
  "admission.max_staleness": 0,
  "train.steps": STEPS,
}
# Everything is.
ASYNCHRONOUS = {
  **LEARNERS,
  "engine.driver": "jetstream",
  "queue.order": "finished",
  "admission.max_staleness": 2,
  "admission.max_concurrent_groups": 3,
}


def assert_same_state(root, other, step):
  found, expected = state_of(root, step), state_of(other, step)
  assert found.keys() == expected.keys()
  for name, leaf in expected.items():
    np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def validations_of(root):
  """The rows of evaluations during RL, without what depends on time."""
  return [
    (row.stage, row.step, dict(row.values, **{"eval/seconds": 0}))
    for row in read_metrics(root / "metrics.jsonl")
    if row.stage.startswith("validation_")
  ]


def assert_none_lost_none_twice(root, steps):
  """Every group that was ever begun is somewhere, once."""
  position = position_of(root, steps)["controller"]
  trained = [int(g) for entry in ledger_of(root) for g in entry["groups"]]
  queued = [int(group["id"]) for group in position["queued"]]
  in_flight = [number for number, _ in position["in_flight"]]
  num_started = position["stream"]["position"]
  assert sorted(trained + queued + in_flight) == list(range(num_started))
  versions = [entry["version"] for entry in ledger_of(root)]
  assert versions == list(range(steps))


@pytest.mark.parametrize("changes", [EXACT, ASYNCHRONOUS])
@pytest.mark.parametrize("more", [{}, CONSTRAINED, LEARNING])
def test_every_variant_is_a_config(changes, more):
  config = tiny.get_config()
  config.update_from_flattened_dict(changes | more)
  settings = read_settings(config)
  assert math.prod(settings.mesh.values()) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.full
class TwoProcessesTest(absltest.TestCase):
  """One run goes through, another is killed, then stopped, then ends."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    programs = {"compile_cache": str(cls.folder / "compiled")}
    through = Learners(cls.folder / "through", EXACT | programs)
    cls.through, cls.through_ended = through, through.end()
    assert cls.through_ended == [0, 0], through.said()
    _copy_before_rl(through.root, cls.folder / "again" / "tiny")

    def start():
      return Learners(cls.folder / "again", EXACT | programs)

    cls.killed = start()
    cls.root = cls.killed.root
    cls.killed.wait_for_update(1)
    cls.killed.send(signal.SIGKILL, [random.Random(0).randrange(2)])
    cls.killed_ended = cls.killed.end()
    cls.stopped = start()
    cls.stopped.wait_for_update(3)
    cls.stopped.send(signal.SIGTERM, [1])
    cls.stopped_ended = cls.stopped.end()
    cls.last = start()
    cls.last_ended = cls.last.end()

  def test_ends_as_it_should(self):
    self.assertEqual(self.through_ended, [0, 0], self.through.said())
    self.assertEqual(
      sorted(self.killed_ended), [-signal.SIGKILL, LOST], self.killed.said()
    )
    self.assertEqual(self.stopped_ended, [143, 143], self.stopped.said())
    self.assertEqual(self.last_ended, [0, 0], self.last.said())

  def test_the_other_process_says_who_was_lost(self):
    self.assertRegex(self.killed.said(), r"learner process \d was lost")
    self.assertNotIn("Traceback", self.killed.said())

  def test_the_result_is_the_same_to_the_bit(self):
    for step in (STEPS - 2, STEPS):
      assert_same_state(self.root, self.through.root, step)
    self.assertEqual(ledger_of(self.root), ledger_of(self.through.root))

  def test_evaluations_during_rl_are_repeated(self):
    found, expected = map(validations_of, (self.root, self.through.root))
    self.assertEqual(found, expected)
    self.assertLen(found, 2 * (STEPS // 2 + 1))
    for version in range(0, STEPS + 1, 2):
      policy = f"validation_{version:06d}"
      kept, others = (
        [*read_groups(RunDirectory(root).trajectories_of(policy, "sampled"))]
        for root in (self.root, self.through.root)
      )
      for group, other in zip(kept, others, strict=True):
        sampled, same = (
          np.concatenate([turn.sampled for turn in g.trajectories[0].turns])
          for g in (group, other)
        )
        np.testing.assert_array_equal(sampled, same)
      versions = {v for t in kept[0].trajectories[0].turns for v in t.version}
      self.assertEqual(versions, {version})

  def test_something_was_learned(self):
    first, last = (state_of(self.root, step) for step in (STEPS - 2, STEPS))
    self.assertTrue(
      (first["params.embedding"] != last["params.embedding"]).any()
    )

  def test_one_process_of_one_device_reads_what_they_wrote(self):
    config = tiny.get_config()
    one = {"mesh.data": 1, "mesh.fsdp": 1}
    config.update_from_flattened_dict(EXACT | one)
    settings = read_settings(config)
    policy = Policy(settings.model, settings.compute)
    # Refused if the checksum of a leaf were another on this mesh.
    run = RunDirectory(self.root)
    params = load_params(settings, policy, run, "rl", STEPS)
    written = state_of(self.root, STEPS)
    np.testing.assert_array_equal(
      params["embedding"], written["params.embedding"]
    )

  def test_no_group_is_lost_and_none_comes_twice(self):
    assert_none_lost_none_twice(self.root, STEPS)


def _copy_before_rl(root: pathlib.Path, to: pathlib.Path) -> None:
  """A run as it was before reinforcement learning."""
  shutil.copytree(root, to)
  shutil.rmtree(to / "rl")
  (to / "trained_groups.jsonl").unlink()
  (to / "best.json").unlink()
  for path in (to / "trajectories").glob("validation_*"):
    path.unlink()
  lines = (to / "metrics.jsonl").read_text().splitlines(keepends=True)
  kept = "".join(line for line in lines if '"validation_' not in line)
  (to / "metrics.jsonl").write_text(kept)
  # By place, not by pattern: a checkpoint's own files have names of any kind.
  for marker in [to / "done" / "rl.json", *(to / "done").glob("*_rl_*")]:
    marker.unlink()


def _killed_at_random(folder, changes, *, seed, number, num_processes):
  """Goes on with a run until it was killed so many times; then it ends."""
  draw = random.Random(seed)
  num_killed = 0
  while True:
    learners = Learners(folder, changes, num_processes=num_processes)
    if num_killed == number:
      return learners, learners.end()
    if draw.random() < 0.25:
      when, wait_s = "after the start", draw.uniform(0, 8)
      time.sleep(wait_s)
    else:
      num_updates = len(ledger_of(learners.root)) + 1
      when, wait_s = f"after update {num_updates}", draw.uniform(0, 0.5)
      try:
        learners.wait_for_update(num_updates, wait_s)
      except AssertionError:
        if learners.are_alive():
          raise
    ended = not any(p.is_alive() for p in learners.processes)
    victims = draw.choice(
      [[n] for n in range(num_processes)] + [list(range(num_processes))]
    )
    learners.send(signal.SIGKILL, victims)
    statuses = learners.end()
    assert "Traceback" not in learners.said(), learners.said()
    if ended:
      return learners, statuses
    num_killed += 1
    print(f"kill {num_killed}: {wait_s:.3f} s {when}, {victims}: {statuses}")  # noqa: T201


@pytest.mark.full
@pytest.mark.timeout(3600)
class TwentyKillsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )
    self.programs = {"compile_cache": str(self.folder / "compiled")}
    self.seed = random.SystemRandom().randrange(2**31)
    print(f"seed {self.seed}")  # noqa: T201

  def test_one_process_to_the_bit(self):
    self._exact(1)

  def test_two_processes_to_the_bit(self):
    self._exact(2)

  def _exact(self, num_processes):
    steps = 24
    changes = (
      EXACT
      | CONSTRAINED
      | LEARNING
      | self.programs
      | {"train.steps": steps, "mesh.data": num_processes}
    )
    through = Learners(
      self.folder / "through", changes, num_processes=num_processes
    )
    self.assertEqual(set(through.end()), {0}, through.said())
    last, ended = _killed_at_random(
      self.folder / "killed",
      changes,
      seed=self.seed,
      number=20,
      num_processes=num_processes,
    )
    self.assertEqual(set(ended), {0}, last.said())
    assert_same_state(last.root, through.root, steps)
    self.assertEqual(ledger_of(last.root), ledger_of(through.root))

  def test_asynchronous_loses_nothing(self):
    steps = 24
    changes = ASYNCHRONOUS | self.programs | {"train.steps": steps}
    last, ended = _killed_at_random(
      self.folder / "killed",
      changes,
      seed=self.seed,
      number=20,
      num_processes=2,
    )
    self.assertEqual(set(ended), {0}, last.said())
    assert_none_lost_none_twice(last.root, steps)
