"""Where the tests find AgentBench's data, which is not part of the project."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def dev_rows() -> pathlib.Path:
  """The path of dev.jsonl; skips the test where it is absent."""
  folder = pathlib.Path(
    os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data")
  )
  path = folder / "agentbench" / "dbbench" / "dev.jsonl"
  if not path.is_file():
    raise unittest.SkipTest(
      "needs AgentBench's data/dbbench/dev.jsonl as "
      "$AGENTRL_DATA/agentbench/dbbench/dev.jsonl"
    )
  return path
