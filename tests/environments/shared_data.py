"""Data that is not in this repository: files below $AGENTRL_DATA."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[2]
DATA = pathlib.Path(
  os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data")
)


def find(path: str) -> pathlib.Path:
  """Returns the path of a file, or skips the test that needs it."""
  if not (DATA / path).is_file():
    raise unittest.SkipTest(f"needs $AGENTRL_DATA/{path} (now {DATA / path})")
  return DATA / path
