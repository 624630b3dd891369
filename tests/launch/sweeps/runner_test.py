"""A sweep that is killed loses nothing and repeats nothing: real processes."""

import json
import os
import pathlib
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from launch.storage.run_config import read_config
from launch.storage.run_directory import RunDirectory
from launch.sweeps.cells import CellState, state_of
from launch.sweeps.plan import make_plan
from launch.sweeps.runner import LARGE_PAGES, CellProcess, Runner
from tests.clocks import wait_until
from tests.launch import tiny
from tests.launch.sweeps import tiny_arms

ROOT = pathlib.Path(__file__).parents[3]
ARMS = "tests/launch/sweeps/tiny_arms.py"
CELLS = ("full-s0", "full-s1", "no_norm-s0", "no_norm-s1")
NUM_KILLS = 20
LIMIT_S = 1500


START_S = 300.0  # for a sweep to start its first cells


def start(folder: pathlib.Path, *more: str) -> subprocess.Popen:
  return subprocess.Popen(
    [
      sys.executable,
      "-m",
      "launch.sweep",
      f"--ablation={ARMS}",
      "--seeds=2",
      f"--folder={folder}",
      *more,
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    cwd=ROOT,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
  )


def cells_of(folder: pathlib.Path) -> list[int]:
  """Process ids of the cells at work, whoever started them."""
  return processes_with(f"--config.workdir={folder / 'cells'}".encode())


def processes_with(mark: bytes) -> list[int]:
  """Process ids whose command line has a word."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
      words = path.read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
      continue
    if mark in words:
      found.append(int(path.parent.name))
  return found


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S)
class SweepTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enterContext(tempfile.TemporaryDirectory())
    ).resolve()
    self.addCleanup(self.end_cells)

  def end_cells(self):
    for pid in processes_with(f"--folder={self.folder}".encode()):
      os.kill(pid, signal.SIGKILL)
    for pid in cells_of(self.folder):
      os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not cells_of(self.folder))

  def run_of(self, cell):
    return self.folder / "cells" / cell

  def test_twenty_kills_lose_and_repeat_nothing(self):
    draw = random.Random(0)
    sweep = start(self.folder)
    for _ in range(NUM_KILLS):
      time.sleep(draw.uniform(1, 12))
      cells = cells_of(self.folder)
      if draw.random() < 0.5 and cells:
        os.kill(draw.choice(cells), signal.SIGKILL)
        continue
      sweep.kill()  # its cells go on, and the next sweep waits for them
      sweep.communicate()
      sweep = start(self.folder)
    said, _ = sweep.communicate(timeout=LIMIT_S)
    if sweep.returncode:  # a cell was killed three times under one sweep
      sweep = start(self.folder)
      said, _ = sweep.communicate(timeout=LIMIT_S)
    self.assertEqual(sweep.returncode, 0, said)
    for cell in CELLS:
      self.assertIs(state_of(self.run_of(cell)), CellState.FINISHED)
      ledger = (self.run_of(cell) / "trained_groups.jsonl").read_text()
      versions = [json.loads(line)["version"] for line in ledger.splitlines()]
      self.assertEqual(versions, [0, 1, 2])
    self.assertEqual(cells_of(self.folder), [])
    logs = self.folder / "logs"
    before = {path: path.stat().st_size for path in logs.iterdir()}
    again = start(self.folder)
    self.assertIn("4 of 4 cells are finished", again.communicate()[0])
    self.assertEqual(before, {path: path.stat().st_size for path in before})

  def test_arms_begin_with_the_same_warm_start(self):
    said, _ = start(self.folder).communicate(timeout=LIMIT_S)
    self.assertIn("4 of 4 cells are finished", said)
    for seed in (0, 1):
      made, taken = (
        self.run_of(f"{arm}-s{seed}") for arm in ("full", "no_norm")
      )
      sources = [
        read_config(run / "config.yaml")["warm_start"]["from_run"]
        for run in (made, taken)
      ]
      self.assertCountEqual(sources, ["", str(made)])
      for name in ("tokenizer.json", "evaluations/warm_start_greedy.json"):
        self.assertEqual(
          (made / name).read_bytes(), (taken / name).read_bytes()
        )
      rows = [np.load(run / "demonstrations.npz") for run in (made, taken)]
      np.testing.assert_array_equal(rows[0]["token"], rows[1]["token"])

  def test_a_refused_config_fails_its_cells_alone(self):
    # The plan sees no fault in it; the run refuses a folder of another seed.
    foreign = tiny_arms.get_config()
    foreign.seed = 7
    RunDirectory(self.run_of("full-s0")).keep_config(foreign)
    done = self.run_of("full-s0") / "done"  # a stage: the folder is a run's
    (done / "tokenizer.json").write_text("{}")
    said, _ = start(self.folder, "--seeds=1").communicate(timeout=LIMIT_S)
    self.assertIn("full-s0 failed: ", said)
    self.assertIn("1 of 2 cells are finished", said)
    for cell in ("full-s0", "no_norm-s0"):
      self.assertTrue((self.folder / "logs" / f"{cell}.log").exists())

  def test_two_sweeps_of_one_folder_do_not_mix(self):
    first = start(self.folder)
    wait_until(lambda: bool(cells_of(self.folder)), "the first cells", START_S)
    second, _ = start(self.folder).communicate(timeout=LIMIT_S)
    self.assertIn("another sweep is at work in", second)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=LIMIT_S)
    self.assertIn("the same command goes on", said)
    self.assertEqual(cells_of(self.folder), [])


class EnvironmentTest(absltest.TestCase):
  def tunables(self) -> str:
    """Starts a cell whose program prints one variable; returns what it said."""
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    program = folder / "python"
    program.write_text('#!/bin/sh\nprintf %s "$GLIBC_TUNABLES"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    log = folder / "logs" / "cell.log"
    with mock.patch.object(sys, "executable", str(program)):
      cell = CellProcess.start([], log, [min(os.sched_getaffinity(0))])
      cell.process.wait(60)
    return log.read_text()

  def test_memory_is_of_large_pages_unless_the_user_says_otherwise(self):
    with mock.patch.dict(os.environ):
      os.environ.pop("GLIBC_TUNABLES", None)
      self.assertEqual(self.tunables(), LARGE_PAGES)
      os.environ["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=7"
      self.assertEqual(self.tunables(), "glibc.malloc.tcache_count=7")


class CoresTest(parameterized.TestCase):
  """Cells start while there are cores for them; their processes are stubs."""

  @parameterized.parameters((1, 1, 1), (3, 1, 3), (5, 2, 2), (8, 1, 4))
  def test_as_many_cells_start_as_have_cores(self, cores, each, number):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    plan = make_plan(ARMS, arms=[], num_seeds=2, first_seed=0, overrides=[])
    configs = dict.fromkeys(plan.cells, tiny.get_config())
    runner = Runner(
      plan, configs, folder, cores=1, cores_each=each, say=lambda text: None
    )
    runner._free = list(range(cores))
    with (
      mock.patch.object(Runner, "_first", return_value=plan.cells[-1]),
      mock.patch.object(CellProcess, "start") as started,
      self.assertRaises(KeyboardInterrupt),
    ):
      runner.run(mock.Mock(side_effect=KeyboardInterrupt))
    self.assertEqual(started.call_count, number)
    self.assertIn(":full", started.call_args_list[0].args[0][0])
