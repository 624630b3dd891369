"""Locates data that is not part of the project; skips tests without it."""

import os
import pathlib
import unittest

from tests.environments.shared_data import DATA, find


def transcripts() -> tuple[pathlib.Path, ...]:
  """Lists files of episodes that were recorded on AgentBench's workers."""
  name = "transcripts/alfworld-std-*.jsonl.gz"
  paths = tuple(sorted(DATA.glob(name)))
  if not paths:
    raise unittest.SkipTest(f"needs $AGENTRL_DATA/{name}")
  return paths


def game_list(name: str) -> pathlib.Path:
  """Returns the path of one of AgentBench's lists of games."""
  return find(f"agentbench/alfworld/{name}.json")


def games() -> pathlib.Path:
  """Returns the folder of ALFWorld's own games."""
  folder = pathlib.Path(os.environ.get("ALFWORLD_DATA", "no such folder"))
  if not (folder / "json_2.1.1").is_dir():
    raise unittest.SkipTest(
      "needs ALFWorld's games as $ALFWORLD_DATA/json_2.1.1 (alfworld-download)"
    )
  return folder
