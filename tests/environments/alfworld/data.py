"""Locates data that is not part of the project; skips tests without it."""

import importlib.util
import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def transcripts() -> tuple[pathlib.Path, ...]:
  """Lists files of episodes that were recorded on AgentBench's workers."""
  folder = _shared() / "transcripts"
  paths = tuple(sorted(folder.glob("alfworld-std-*.jsonl.gz")))
  if not paths:
    raise unittest.SkipTest(
      "needs recorded ALFWorld episodes as "
      "$AGENTRL_DATA/transcripts/alfworld-std-*.jsonl.gz"
    )
  return paths


def partial_rooms() -> pathlib.Path:
  """AgentBench's test rooms, as far as transcripts show them."""
  return _file("transcripts/alfworld_rooms_partial.json")


def game_list(name: str) -> pathlib.Path:
  """One of AgentBench's lists of games."""
  return _file(f"agentbench/alfworld/{name}.json")


def games() -> pathlib.Path:
  """The folder of ALFWorld's own games."""
  folder = pathlib.Path(os.environ.get("ALFWORLD_DATA", "no such folder"))
  if not (folder / "json_2.1.1").is_dir():
    raise unittest.SkipTest(
      "needs ALFWorld's games as $ALFWORLD_DATA/json_2.1.1 (alfworld-download)"
    )
  return folder


def needs_textworld() -> None:
  """Skips the test where the real engine is not installed."""
  for package in ("alfworld", "textworld", "fast_downward"):
    if importlib.util.find_spec(package) is None:
      raise unittest.SkipTest(
        f"needs the package {package}: pip install -e '.[alfworld]'"
      )


def _file(path: str) -> pathlib.Path:
  file = _shared() / path
  if not file.is_file():
    raise unittest.SkipTest(f"needs $AGENTRL_DATA/{path}")
  return file


def _shared() -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  return pathlib.Path(os.environ.get("AGENTRL_DATA", default))
