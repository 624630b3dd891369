"""Metrics at Weights & Biases, by its real package."""

import importlib
import json
import os
import pathlib
import struct
import tempfile
import threading
import time
import unittest
from unittest import mock

import pytest

from agentrl_jax.errors import ConfigError
from launch.reports.metrics_file import MetricsWriter, Row
from launch.run import trackers
from launch.run.trackers import FILE, tracked
from tests import programs
from tests.launch import tiny

ROWS = [
  Row("warm_start", 1, 5.0, {"loss": 2.5}),
  Row("rl", 1, 6.0, {"reward/mean": 0.25, "eval/pass@1": 1.0}),
  Row("rl", 2, 7.0, {"reward/mean": 0.75, "gone": float("nan")}),
]


class Scripted:
  """A tracker that fails or waits, as told."""

  id = "scripted"

  def __init__(self, *_):
    self.go_on, self.rows = threading.Event(), []
    self.go_on.set()
    self.error = None

  def send(self, row):
    self.go_on.wait(30)
    if self.error:
      raise self.error
    self.rows.append(row)

  def close(self, is_finished):
    self.is_finished = is_finished


class TrackersTest(unittest.TestCase):
  def setUp(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)
    self.enterContext(mock.patch.dict(os.environ))
    self.config = tiny.get_config()

  def track(self, *names, rows=ROWS):
    with tracked(names, self.folder, self.config) as put:
      for row in rows:
        put(row)
    return self.ids()

  def ids(self):
    return json.loads((self.folder / FILE).read_text())

  def scripted(self):
    made = Scripted()
    self.enterContext(
      mock.patch.dict(trackers.TRACKERS, {"scripted": lambda *_: made})
    )
    return made

  def test_no_tracker_is_no_work(self):
    with tracked((), self.folder, self.config) as put:
      self.assertIsNone(put)
    self.assertEqual(list(self.folder.iterdir()), [])

  def test_wandb_has_them_offline(self):
    self.require("wandb")
    os.environ["WANDB_MODE"] = "offline"
    ids = self.track("wandb")
    (path,) = self.folder.glob(f"wandb/offline-*/run-{ids['wandb']}.wandb")
    for _ in range(200):  # the package's own process may still write it
      if rows := list(histories(path.read_bytes())):
        break
      time.sleep(0.1)
    history = [
      {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
      for items in rows
    ]
    found = [{k: v for k, v in row.items() if k[0] != "_"} for row in history]
    self.assertEqual(
      found,
      [
        {"warm_start/loss": 2.5, "warm_start/step": 1},
        {"rl/reward/mean": 0.25, "rl/eval/pass@1": 1.0, "rl/step": 1},
        {"rl/reward/mean": 0.75, "rl/step": 2},
      ],
    )

  def require(self, name):
    try:
      return importlib.import_module(name)
    except ImportError as error:
      raise unittest.SkipTest(f"{error}: make originals") from error

  def test_one_that_fails_or_hangs_costs_rows_and_no_update(self):
    made = self.scripted()
    made.error = OSError("the network is away")
    with self.assertLogs(trackers.__name__) as logs:
      self.track("scripted")
    self.assertEqual(len(logs.output), 2, logs.output)
    self.assertIn("the network is away", logs.output[0])
    self.assertIn("3 rows of metrics were not sent", logs.output[1])
    with self.assertLogs(trackers.__name__) as logs:
      self.track("scripted", rows=ROWS[:1])
    self.assertIn("the network is away", logs.output[0])
    made.error = None
    made.go_on.clear()
    with (
      mock.patch.object(trackers, "_MOST_ROWS", 2),
      mock.patch.object(trackers, "_CLOSE_S", 0.1),
      self.assertLogs(trackers.__name__) as logs,
    ):
      self.track("scripted", rows=ROWS * 10)  # returns though nothing is taken
    self.assertIn("too slow", logs.output[0])
    made.go_on.set()

  def test_a_run_that_is_stopped_is_not_finished_there(self):
    made = self.scripted()
    with (
      self.assertRaises(KeyboardInterrupt),
      tracked(("scripted",), self.folder, self.config),
    ):
      raise KeyboardInterrupt
    self.assertIs(made.is_finished, False)
    self.track("scripted")
    self.assertIs(made.is_finished, True)

  def test_rows_are_those_of_the_file(self):
    made = self.scripted()
    with (
      tracked(("scripted",), self.folder, self.config) as put,
      MetricsWriter(self.folder, copy_to=put) as metrics,
    ):
      metrics.write(4, {"loss": 0.5}, stage="rl")
    (row,) = made.rows
    self.assertEqual(
      (row.stage, row.step, row.values), ("rl", 4, {"loss": 0.5})
    )

  def test_what_cannot_be_is_refused(self):
    self.refuse("tensorboard", "report.trackers")
    with mock.patch.dict("sys.modules", {"wandb": None}):
      self.refuse("wandb", "pip install wandb")

  def refuse(self, name, words):
    with (
      self.subTest(name),
      self.assertRaisesRegex(ConfigError, words),
      tracked((name,), self.folder, self.config),
    ):
      self.fail("was accepted")

  @pytest.mark.slow
  def test_a_run_without_a_key_ends_before_it_begins(self):
    self.require("wandb")
    os.environ.pop("WANDB_API_KEY", None)
    os.environ.update(WANDB_MODE="online", HOME=str(self.folder))
    ended = self.train("wandb")
    self.assertEqual(ended.returncode, 2, ended.stderr)
    self.assertIn("wandb takes no run: No API key", ended.stderr)
    self.assertNotIn("Traceback", ended.stderr)

  def train(self, tracker):
    return programs.run(
      "launch.train",
      "--config=tests/launch/tiny.py",
      f"--config.workdir={self.folder}",
      f"--config.report.trackers=('{tracker}',)",
      deadline_s=400,
    )


def histories(content):
  """Reads the rows of a file of wandb: LevelDB's log, of protobuf records."""
  from wandb.proto import wandb_internal_pb2

  content, record = content[7:], b""  # after the file's own head
  while len(content) > 7:
    _, size, kind = struct.unpack("<IHB", content[:7])
    record += content[7 : 7 + size]
    content = content[7 + size :]
    if kind in (1, 4):  # whole, or its last part
      read = wandb_internal_pb2.Record()
      read.ParseFromString(record)
      record = b""
      if read.WhichOneof("record_type") == "history":
        yield read.history.item
