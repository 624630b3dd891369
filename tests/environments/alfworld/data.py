"""Where the tests find what is not part of the project."""

import importlib.util
import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def transcripts() -> tuple[pathlib.Path, ...]:
  """Recorded attempts on AgentBench's own workers; skips where absent."""
  folder = _shared() / "transcripts"
  found = tuple(sorted(folder.glob("alfworld-std-*.jsonl.gz")))
  if not found:
    raise unittest.SkipTest(
      "needs recorded ALFWorld attempts as "
      "$AGENTRL_DATA/transcripts/alfworld-std-*.jsonl.gz"
    )
  return found


def partial_rooms() -> pathlib.Path:
  """AgentBench's test rooms, as far as transcripts show them."""
  return _file("transcripts/alfworld_rooms_partial.json")


def game_list(name: str) -> pathlib.Path:
  """One of AgentBench's lists of games."""
  return _file(f"agentbench/alfworld/{name}.json")


def games() -> pathlib.Path:
  """ALFWorld's own games; skips where ALFWORLD_DATA names no such folder."""
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
  found = _shared() / path
  if not found.is_file():
    raise unittest.SkipTest(f"needs $AGENTRL_DATA/{path}")
  return found


def _shared() -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  return pathlib.Path(os.environ.get("AGENTRL_DATA", default))
