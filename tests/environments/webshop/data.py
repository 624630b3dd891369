"""Where the real WebShop data lies, for tests that cannot do without."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]
DATA = pathlib.Path(
  os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data")
)


def find(name):
  """The path of `name`, or a skipped test that says what is missing."""
  path = DATA / name
  if not path.exists():
    raise unittest.SkipTest(
      f"real data is missing: put {name} below $AGENTRL_DATA (now {DATA})"
    )
  return path
