"""Paths of AgentBench's data, which is not part of the project."""

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
  """Recorded episodes on AgentBench's own workers; skips likewise."""
  return _find("transcripts/os-std-qwen-8b.jsonl.gz", "recorded OS episodes")


def _find(path: str, name: str) -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  file = pathlib.Path(os.environ.get("AGENTRL_DATA", default)) / path
  if not file.is_file():
    raise unittest.SkipTest(f"needs {name} as $AGENTRL_DATA/{path}")
  return file
