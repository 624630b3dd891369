"""Tests that a run leaves out: after a limit of time, and those passed."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SMALL = "tests/data/packing_test.py"


def run(*options):
  finished = subprocess.run(
    [sys.executable, "-m", "pytest", "-n0", SMALL, *options],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=240,
  )
  return finished.stdout


@pytest.mark.slow
def test_none_starts_after_the_limit():
  out = run("--within=0")
  assert re.search(r"SKIPPED \[\d+\] .*left out: --within=0 s are over", out)
  assert re.search(r"^\d+ skipped in", out, re.MULTILINE), out


@pytest.mark.slow
def test_all_start_before_it():
  assert re.search(r"^\d+ passed in", run("--within=1e9"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_what_has_passed_is_left_out(tmp_path, workers):
  file = tmp_path / "passed.json"
  run(workers, f"--passed={file}", "-k", "too_long")
  some = re.findall(SMALL, file.read_text())
  assert some  # of its tests have the word
  out = run(workers, f"--passed={file}")
  left = len(re.findall(SMALL, file.read_text())) - len(some)
  assert left and f"{left} passed" in out, out
  skipped = tmp_path / "skipped.json"
  run(workers, f"--passed={skipped}", "--within=0")
  assert skipped.read_text() == "[]"
