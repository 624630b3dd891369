"""The suite's limit of time leaves tests out, and says how many."""

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
