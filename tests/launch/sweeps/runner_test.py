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
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest

from launch.storage.run_directory import RunDirectory
from launch.sweeps import runner as runners
from launch.sweeps.budget import Budget
from launch.sweeps.cells import CellState, state_of
from launch.sweeps.plan import make_plan, stages_of
from launch.sweeps.runner import (
  LARGE_PAGES,
  REFUSED,
  CellProcess,
  Runner,
  read_failures,
)
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


def starts_of(folder: pathlib.Path) -> list[dict]:
  path = folder / "starts.jsonl"
  lines = path.read_text().splitlines() if path.exists() else []
  return [json.loads(line) for line in lines]


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

  def test_a_check_that_is_interrupted_says_so(self):
    check = start(self.folder, "--check")
    wait_until(lambda: bool(cells_of(self.folder)), "the cell", START_S)
    check.send_signal(signal.SIGTERM)  # as Ctrl-C, which scripts may ignore
    said, _ = check.communicate(timeout=START_S)
    self.assertEqual(check.returncode, 1, said)
    self.assertIn("the same command goes on", " ".join(said.split()))
    self.assertNotIn("Traceback", said)
    self.assertEqual(cells_of(self.folder), [])

  def test_a_check_judges_every_contrast(self):
    """The tiny warm start wins nothing, so no arm can show anything."""
    check = start(self.folder, "--check")
    said, _ = check.communicate(timeout=LIMIT_S)
    self.assertEqual(check.returncode, 0, said)
    said = " ".join(said.split())
    self.assertIn("no PLAN: this sweep is exploratory", said)
    self.assertIn("no_norm - full: a null by construction", said)
    self.assertIn("this sweep can show nothing", said)
    record = json.loads((self.folder / "check/check.json").read_text())
    (contrast,) = record["contrasts"]
    self.assertLen(contrast["batches"], 3)  # all updates of the tiny run
    self.assertEqual(cells_of(self.folder), [])

  def test_twenty_kills_lose_and_repeat_nothing(self):
    draw = random.Random(0)
    finished: dict[str, float] = {}
    sweep = start(self.folder)
    for _ in range(NUM_KILLS):
      time.sleep(draw.uniform(1, 12))
      for cell in CELLS:
        if state_of(self.run_of(cell)) is CellState.FINISHED:
          finished.setdefault(cell, time.time())
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
    for entry in starts_of(self.folder):
      self.assertLess(
        entry["time_s"], finished.get(entry["cell"], float("inf")), entry
      )
    self.assertEqual(cells_of(self.folder), [])
    before = len(starts_of(self.folder))
    again = start(self.folder)
    self.assertIn("4 of 4 cells are finished", again.communicate()[0])
    self.assertLen(starts_of(self.folder), before)

  def test_arms_begin_with_the_same_warm_start(self):
    said, _ = start(self.folder).communicate(timeout=LIMIT_S)
    self.assertIn("4 of 4 cells are finished", said)
    self.assertLen(list((self.folder / "stages").glob("*/shared.json")), 2)
    for seed in (0, 1):
      made, taken = (
        self.run_of(f"{arm}-s{seed}") for arm in ("full", "no_norm")
      )
      if json.loads((made / "shared.json").read_text()) != json.loads(
        (taken / "shared.json").read_text()
      ):
        self.fail("the arms say that different runs made their stages")
      for name in ("tokenizer.json", "evaluations/warm_start_greedy.json"):
        self.assertEqual(
          (made / name).read_bytes(), (taken / name).read_bytes()
        )
      rows = [np.load(run / "demonstrations.npz") for run in (made, taken)]
      np.testing.assert_array_equal(rows[0]["token"], rows[1]["token"])
      facts = json.loads((taken / "summary.json").read_text())["facts"]
      self.assertIn(
        facts["stages_before_rl"]["run"], (f"full-s{seed}", f"no_norm-s{seed}")
      )
    # Two seeds are two warm starts.
    self.assertNotEqual(
      *(
        (self.run_of(f"full-s{seed}") / "shared.json").read_text()
        for seed in (0, 1)
      )
    )

  def test_a_refused_config_fails_its_cells_alone(self):
    # The plan sees no fault in it; the run refuses a folder of another seed.
    foreign = tiny_arms.get_config()
    foreign.seed = 7
    RunDirectory(self.run_of("full-s0")).keep_config(foreign)
    said, _ = start(self.folder, "--seeds=1").communicate(timeout=LIMIT_S)
    self.assertIn("full-s0 failed: ", said)
    self.assertIn("1 of 2 cells are finished", said)
    starts = [entry["cell"] for entry in starts_of(self.folder)]
    self.assertEqual(sorted(starts), ["full-s0", "no_norm-s0"])

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


def run_stubs(
  folder: pathlib.Path,
  *,
  cores: int,
  cores_each: int = 1,
  arms: Sequence[str] = (),
  status: int | None = None,
) -> None:
  """Starts cells of stubs: once, or until all have ended with a status."""
  plan = make_plan(ARMS, arms=arms, num_seeds=2, first_seed=0, overrides=[])
  config = tiny.get_config()
  configs = {cell: config for cell in plan.cells}
  (folder / "stages" / stages_of(config)).mkdir(parents=True, exist_ok=True)
  runner = Runner(
    plan,
    configs,
    folder,
    Budget(cores=1),
    cores_each=cores_each,
    say=lambda text: None,
  )
  runner._free = list(range(cores))
  with (
    mock.patch.object(runners, "_POLL_S", 0.0),
    mock.patch.object(CellProcess, "start") as start,
  ):
    start.return_value = mock.Mock(
      status=status, memory_gib=lambda: 0.0, cores=()
    )
    runner.run(lambda: None, is_enough=lambda: status is None)


class CoresTest(absltest.TestCase):
  """Cells start while the budget has cores for them; processes are stubs."""

  def started(self, *, cores: int, cores_each: int) -> list[str]:
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    run_stubs(folder, cores=cores, cores_each=cores_each)
    return [entry["cell"] for entry in starts_of(folder)]

  def test_as_many_cells_start_as_have_cores(self):
    for cores, each, number in ((1, 1, 1), (3, 1, 3), (5, 2, 2), (8, 1, 4)):
      with self.subTest(cores=cores, each=each):
        names = self.started(cores=cores, cores_each=each)
        self.assertLen(names, number)
        self.assertEqual(names[0], "full-s0")


class FailuresTest(absltest.TestCase):
  def test_why_a_cell_failed_is_kept_until_it_starts_again(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    run_stubs(folder, cores=2, arms=["full"], status=REFUSED)
    self.assertEqual(set(read_failures(folder)), {"full-s0", "full-s1"})
    run_stubs(folder, cores=2, arms=["no_norm"])
    self.assertEqual(set(read_failures(folder)), {"full-s0", "full-s1"})
    run_stubs(folder, cores=1, arms=["full"])
    self.assertEqual(set(read_failures(folder)), {"full-s1"})


if __name__ == "__main__":
  absltest.main()
