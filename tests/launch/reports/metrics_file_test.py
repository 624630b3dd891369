"""Rows of metrics are read as they were written, whatever was killed."""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from tensorboardX.proto import event_pb2

from launch.reports import metrics_file

ROOT = pathlib.Path(__file__).parents[3]


def events_in(path: pathlib.Path) -> list[event_pb2.Event]:
  """The records of a TensorBoard file: length, checksum, body, checksum."""
  raw, found = path.read_bytes(), []
  while raw:
    (size,) = struct.unpack("<Q", raw[:8])
    found.append(event_pb2.Event.FromString(raw[12 : 12 + size]))
    raw = raw[12 + size + 4 :]
  return found


class MetricsTest(unittest.TestCase):
  def setUp(self):
    self.directory = (
      pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "run"
    )
    self.path = self.directory / metrics_file.FILE

  def open(self, **kwargs) -> metrics_file.MetricsWriter:
    return metrics_file.MetricsWriter(self.directory, **kwargs)

  def scalars(self) -> dict[tuple[str, int, str], list[float]]:
    """Values that TensorBoard shows, by stage, step and tag."""
    found: dict[tuple[str, int, str], list[float]] = {}
    for path in sorted(self.directory.glob("tensorboard/*/events*")):
      for event in events_in(path):
        for value in event.summary.value:
          key = path.parent.name, event.step, value.tag
          found.setdefault(key, []).append(value.simple_value)
    return found

  def steps(self) -> list[tuple[str, int]]:
    return [
      (row.stage, row.step) for row in metrics_file.read_metrics(self.path)
    ]

  def test_reads_what_was_written(self):
    with self.open(clock=lambda: 1234.5678) as writer:
      writer.write(3, {"loss": np.float32(0.5), "n": 2}, stage="warm_start")
    (row,) = metrics_file.read_metrics(self.path)
    self.assertEqual(
      row, metrics_file.Row("warm_start", 3, 1234.568, {"loss": 0.5, "n": 2.0})
    )

  def test_a_line_is_one_flat_object(self):
    with self.open(clock=lambda: 7.0) as writer:
      writer.write(1, {"reward/mean": 0.25}, stage="rl")
    self.assertEqual(
      json.loads(self.path.read_text()),
      {"stage": "rl", "step": 1, "time_s": 7.0, "reward/mean": 0.25},
    )

  def test_rows_are_on_disk_before_the_writer_is_closed(self):
    with self.open() as writer:
      writer.write(1, {"loss": 0.5}, stage="rl")
      self.assertEqual(self.steps(), [("rl", 1)])
      self.assertEqual(self.scalars(), {("rl", 1, "loss"): [0.5]})

  def test_what_is_not_finite_becomes_null_and_is_counted(self):
    with self.open() as writer:
      values = {"a": math.nan, "b": math.inf, "c": 1.0}
      writer.write(1, values, stage="rl")
      self.assertEqual(writer.num_not_finite, 2)
    line = json.loads(self.path.read_text())
    self.assertIsNone(line["a"])
    self.assertIsNone(line["b"])
    self.assertEqual(line[metrics_file.NUM_NOT_FINITE], 2)
    (row,) = metrics_file.read_metrics(self.path)
    self.assertTrue(math.isnan(row.values["a"]))
    self.assertEqual(
      self.scalars(),
      {("rl", 1, "c"): [1.0], ("rl", 1, metrics_file.NUM_NOT_FINITE): [2.0]},
    )

  def test_a_resumed_run_repeats_and_orphans_no_row(self):
    with self.open() as writer:
      writer.write(9, {"loss": 1.0}, stage="warm_start")
      for step in (1, 2, 2, 3):
        writer.write(step, {"reward": step}, stage="rl")
      writer.write(0, {"success": 0.5}, stage="evaluation")
    with self.open() as writer:
      writer.truncate_after("rl", 2)
      kept = [("warm_start", 9), ("rl", 1), ("rl", 2), ("rl", 2)]
      self.assertEqual(self.steps(), kept)
      writer.write(3, {"reward": 30.0}, stage="rl")
    self.assertEqual(self.steps(), [*kept, ("rl", 3)])
    self.assertEqual(
      self.scalars(),
      {
        ("warm_start", 9, "loss"): [1.0],
        ("rl", 1, "reward"): [1.0],
        ("rl", 2, "reward"): [2.0, 2.0],
        ("rl", 3, "reward"): [30.0],
      },
    )

  def test_resuming_before_the_first_step_forgets_the_stage(self):
    with self.open() as writer:
      writer.write(9, {"loss": 1.0}, stage="warm_start")
      writer.write(1, {"reward": 1.0}, stage="rl")
      writer.truncate_after("rl", 0)
    self.assertEqual(self.steps(), [("warm_start", 9)])

  def test_resuming_where_the_stage_stood_keeps_what_came_after(self):
    written = [("warm_start", 9), ("rl", 1), ("rl", 2), ("evaluation", 0)]
    with self.open() as writer:
      for stage, step in written:
        writer.write(step, {"loss": 1.0}, stage=stage)
      for stage, step in (("rl", 2), ("warm_start", 9), ("not_begun", 0)):
        writer.truncate_after(stage, step)
        with self.subTest(stage=stage):
          self.assertEqual(self.steps(), written)

  def test_reopening_keeps_both_copies(self):
    for step in (1, 2):
      with self.open() as writer:
        writer.write(step, {"loss": step}, stage="rl")
    self.assertEqual(self.steps(), [("rl", 1), ("rl", 2)])
    self.assertEqual(
      self.scalars(), {("rl", 1, "loss"): [1.0], ("rl", 2, "loss"): [2.0]}
    )

  def test_a_half_line_is_not_read_and_is_dropped_on_opening(self):
    with self.open() as writer:
      writer.write(1, {"loss": 1.0}, stage="rl")
    with self.path.open("a") as file:
      file.write('{"stage": "rl", "st')
    self.assertEqual(self.steps(), [("rl", 1)])
    with self.open() as writer:
      writer.write(2, {"loss": 1.0}, stage="rl")
    self.assertEqual(self.steps(), [("rl", 1), ("rl", 2)])

  def test_a_line_that_is_no_row_is_named(self):
    self.directory.mkdir()
    for line in ("nonsense", "[1]", '{"step": 1}', "null"):
      with self.subTest(line=line):
        self.path.write_text(line + "\n")
        with self.assertRaisesRegex(ValueError, r"metrics\.jsonl:1 is not"):
          metrics_file.read_metrics(self.path)

  def test_needs_no_jax(self):
    program = (
      "import sys, launch.reports.metrics_file\nsys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
