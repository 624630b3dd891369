import gzip
import os
import pathlib
import tempfile
import unittest

import numpy as np

from agentrl_jax.data.record_file import read_groups
from launch.viewing.trajectory_index import (
  TrajectoryIndex,
  UnknownTrajectoryError,
)
from tests.launch.viewing.a_run import add_update, make_run


class TrajectoryIndexTest(unittest.TestCase):
  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = make_run(pathlib.Path(folder.name) / "a", updates=2)
    self.index = TrajectoryIndex(self.folder.root)

  def test_lists_what_the_records_say(self):
    listed = {t.id: t for t in self.index.listing().trajectories}
    for path in (self.folder.trajectories(1), self.folder.trajectories(0)):
      stem = path.name.partition(".")[0]
      for line, group in enumerate(read_groups(path)):
        for place, trajectory in enumerate(group.trajectories):
          found = listed.pop(f"{stem}.{line}.{place}")
          versions = [v for turn in trajectory.turns for v in turn.version]
          wanted = {
            "task": trajectory.task.name,
            "index": trajectory.task.index,
            "attempt": trajectory.attempt,
            "status": trajectory.status.value,
            "num_tokens": trajectory.num_tokens,
            "num_sampled": trajectory.num_sampled,
            "num_cut": place == 2,
            "is_success": trajectory.is_success,
            "update": int(stem),
            "oldest_version": min(versions),
            "newest_version": max(versions),
            "policy_slots": [0, 1],
          }
          for name, value in wanted.items():
            self.assertEqual(getattr(found, name), value, name)
          self.assertAlmostEqual(found.group_mean, 1 / 3)
    (evaluated,) = listed.values()
    self.assertEqual((evaluated.played, evaluated.update), ("rl greedy", None))

  def test_newest_updates_come_first_and_evaluations_last(self):
    played = [t.update for t in self.index.listing().trajectories]
    self.assertEqual(played, [1] * 6 + [0] * 6 + [None])

  def test_follows_a_run_and_reads_no_file_twice(self):
    before = self.index.listing()
    self.assertEqual(self.index.listing().tag, before.tag)
    old = self.folder.trajectories(0)
    stat = old.stat()
    old.write_bytes(b"x" * stat.st_size)  # of the same size and time
    os.utime(old, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    add_update(self.folder, 2)
    after = self.index.listing()
    self.assertNotEqual(after.tag, before.tag)
    self.assertEqual(after.problems, [])
    self.assertEqual(len(after.trajectories), len(before.trajectories) + 6)

  def test_a_run_that_goes_back_loses_its_rows(self):
    self.index.listing()
    self.folder.trajectories(1).unlink()
    with self.assertRaises(UnknownTrajectoryError):
      self.index.trajectory("000001.0.0")
    updates = {t.update for t in self.index.listing().trajectories}
    self.assertEqual(updates, {0, None})

  def test_a_file_that_was_cut_off_is_named_and_hides_no_other(self):
    path = self.folder.trajectories(1)
    with gzip.open(path) as file:
      whole = file.read()
    first = whole.index(b"\n") + 1
    path.write_bytes(gzip.compress(whole[: first + 50]))
    listing = self.index.listing()
    (problem,) = listing.problems
    self.assertIn("trajectories/000001.jsonl.gz cannot be read", problem)
    updates = [t.update for t in listing.trajectories]
    self.assertEqual(updates, [1] * 3 + [0] * 6 + [None])

  def test_reads_the_trajectory_of_an_id(self):
    self.index.listing()
    for listed in self.index.listing().trajectories:
      trajectory = self.index.trajectory(listed.id).trajectory
      self.assertEqual(trajectory.attempt, listed.attempt)
      self.assertEqual(trajectory.task.name, listed.task)
      self.assertTrue(trajectory.transcript)

  def test_reads_what_the_learner_made_of_it(self):
    self.index.listing()
    trained = self.index.trajectory("000001.0.0")
    self.assertEqual(len(trained.learned), len(trained.trajectory.turns))
    for found, turn in zip(
      trained.learned, trained.trajectory.turns, strict=True
    ):
      np.testing.assert_allclose(found.logprob, turn.behavior_logprob + 0.3)
      np.testing.assert_array_equal(found.advantage, np.float32(1.25))
    for id in ("000001.0.2", "rl_greedy.0.0"):  # left out, and evaluated
      self.assertIsNone(self.index.trajectory(id).learned)

  def test_an_id_is_no_path(self):
    self.index.listing()
    for id in (
      "",
      "0",
      "000001.0.3",
      "000001.9.0",
      "000001.-1.0",
      "000001.0.-1",
      "../config.0.0",
      "000001.0.0.0",
      "000001.٣.0",
      "../../etc/passwd",
    ):
      with self.subTest(id), self.assertRaises(UnknownTrajectoryError):
        self.index.trajectory(id)

  def test_a_run_that_has_kept_nothing_is_listed_as_empty(self):
    with tempfile.TemporaryDirectory() as folder:
      listing = TrajectoryIndex(pathlib.Path(folder)).listing()
    self.assertEqual((listing.trajectories, listing.problems), ([], []))
