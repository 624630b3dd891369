"""A run that collapses warns, or keeps a checkpoint and ends."""

import pathlib
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest

from agentrl_jax.errors import Collapsed
from agentrl_jax.train.collapse import alarm
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from launch.storage.run_directory import RunDirectory
from tests.launch import tiny

LOG = "launch.run.groups.group_source"


def config_of(folder, action):
  """A tiny run in which no batch has enough success."""
  c = tiny.get_config()
  c.workdir = folder
  c.compile_cache = ""
  c.train.steps = 5
  c.collapse_alarm.update(action=action, min_success=0.999)
  return c


def test_both_actions_are_one_run(tmp_path):
  run = RunDirectory(tmp_path / "run")
  run.keep_config(config_of("", "stop"))
  with run.stage("tokenizer"):
    pass
  run.keep_config(config_of("", "warn"))


@pytest.mark.slow
class CollapseTest(absltest.TestCase):
  def test_stops_with_a_checkpoint_and_goes_on_as_a_warning(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    # A policy this small writes no calls.
    numbers = {"SUCCESS_BATCHES": 3, "CALL_BATCHES": 100}
    self.enterContext(mock.patch.multiple(alarm, **numbers))
    with (
      self.assertLogs(LOG, "WARNING") as logs,
      self.assertRaisesRegex(
        Collapsed,
        "update 3: since update 1 less than collapse_alarm.min_success=0.999 "
        ".*Kept: checkpoint of rl step 3",
      ),
    ):
      train(config_of(folder, "stop"))
    self.assertLen(logs.output, 1)
    # The count is in the checkpoint: nothing begins anew, so nothing is told.
    with self.assertNoLogs(LOG, "WARNING"):
      train(config_of(folder, "warn"))
    rows = [
      row
      for row in read_metrics(pathlib.Path(folder) / "tiny" / "metrics.jsonl")
      if row.stage == "rl"
    ]
    self.assertEqual([row.step for row in rows], [1, 2, 3, 4, 5])
    self.assertEqual(
      [row.values["reward/collapsed"] for row in rows], [0, 0, 1, 1, 1]
    )
    self.assertIn("reward/group_std", rows[0].values)
    self.assertEqual(
      [row.values["updates/no_signal"] for row in rows],
      [row.values["gradient_norm"] == 0 for row in rows],
    )
