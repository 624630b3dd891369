"""Locates real WebShop data, which is not in this repository."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]
DATA = pathlib.Path(
  os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data")
)


def find(name):
  """Returns the path of a file, or skips the test."""
  path = DATA / name
  if not path.exists():
    raise unittest.SkipTest(
      f"real data is missing: put {name} below $AGENTRL_DATA (now {DATA})"
    )
  return path
