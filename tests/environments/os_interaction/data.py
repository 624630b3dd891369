"""Where the tests find AgentBench's data, which is not part of the project."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def tasks(name: str) -> str:
  """The path of dev.json or train.json; skips the test where it is absent."""
  return str(
    _find(f"agentbench/os_interaction/{name}", "AgentBench's OS tasks")
  )


def transcripts() -> pathlib.Path:
  """Recorded attempts on AgentBench's own workers; skips likewise."""
  return _find("transcripts/os-std-qwen-8b.jsonl.gz", "recorded OS attempts")


def _find(path: str, what: str) -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  found = pathlib.Path(os.environ.get("AGENTRL_DATA", default)) / path
  if not found.is_file():
    raise unittest.SkipTest(f"needs {what} as $AGENTRL_DATA/{path}")
  return found
