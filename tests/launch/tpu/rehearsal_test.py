"""A short rehearsal: three kills, and the checks must be able to fail."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest

from tests.launch.tpu import rehearsal
from tests.service.docker.engine_for_tests import connect_or_skip

LIMIT_S = 3600


@pytest.mark.docker
class RehearsalTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    connect_or_skip(cls)

  @pytest.mark.full
  @pytest.mark.timeout(LIMIT_S)
  def test_a_run_survives_three_kills_and_leaves_nothing(self):
    with tempfile.TemporaryDirectory() as folder:
      checks = rehearsal.rehearse(
        pathlib.Path(folder).resolve(),
        minutes=30,
        kill_every_s=45,
        updates=30,
        seed=1,
        most_kills=3,
      )
    failed = [check for check in checks if not check.holds]
    self.assertEqual(failed, [])

  def test_a_marked_process_counts_as_left(self):
    with tempfile.TemporaryDirectory() as folder:
      run = _ended(pathlib.Path(folder))
      self.assertEqual(run.left(), [])
      process = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        env={**os.environ, **run.mark},
        stdin=subprocess.PIPE,
      )
      self.addCleanup(process.stdin.close)
      self.addCleanup(process.wait)
      self.addCleanup(process.kill)
      self.assertEqual(run.left(), [process.pid])
      with mock.patch.object(rehearsal, "WATCHERS_S", 0.0):
        claims = _failed(run)
    self.assertIn("no process is left", claims)

  def test_a_ledger_that_is_not_equal_is_found(self):
    with tempfile.TemporaryDirectory() as folder:
      run = _ended(pathlib.Path(folder))
      self.assertEqual(
        _failed(run),
        [
          "metrics have a row per update",
          "trajectories have a file per update",
          "the report is there",
        ],
      )
      _write(run, [["000000", "000001"], ["000001", "000003"]], position=4)
      self.assertIn("no group is trained on twice", _failed(run))
      _write(run, [["000000", "000001"], ["000002"]], position=4)
      self.assertIn("every update has 2 groups", _failed(run))
      _write(run, [["000000", "000001"], ["000002", "000009"]], position=4)
      self.assertIn(
        "every group that was started is in one place at most", _failed(run)
      )
      (run.root / "rl" / "2").rename(run.root / "rl" / "1")
      self.assertIn("the last checkpoint is the last update", _failed(run))


def _ended(folder: pathlib.Path) -> rehearsal.Rehearsal:
  """Returns a rehearsal without a process, as if its run had ended."""
  run = rehearsal.Rehearsal(folder, updates=2, seed=0)
  _write(run, [["000000", "000001"], ["000002", "000003"]], position=4)
  (run.root / "metrics.jsonl").touch()
  return run


def _failed(run: rehearsal.Rehearsal) -> list[str]:
  return [check.claim for check in run.checks(0) if not check.holds]


def _write(run, groups, *, position) -> None:
  run.root.mkdir(parents=True, exist_ok=True)
  (run.root / "trained_groups.jsonl").write_text(
    "".join(
      json.dumps({"version": i, "groups": each}) + "\n"
      for i, each in enumerate(groups)
    )
  )
  about = run.root / "rl" / str(len(groups)) / "about"
  about.mkdir(parents=True, exist_ok=True)
  controller = {"queued": [], "in_flight": [], "stream": {"position": position}}
  (about / "metadata").write_text(
    json.dumps({"position": {"controller": controller}})
  )


if __name__ == "__main__":
  absltest.main()
