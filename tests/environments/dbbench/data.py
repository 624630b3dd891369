"""Paths of AgentBench's data, which is not part of the project."""

import os
import pathlib
import shutil
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def dev_rows() -> pathlib.Path:
  """Returns the path of dev.jsonl; skips the test if it is absent."""
  return _find("agentbench/dbbench/dev.jsonl", "AgentBench's dbbench/dev.jsonl")


def transcripts() -> pathlib.Path:
  """Returns the path of episodes recorded on AgentBench's workers, or skips."""
  return _find(
    "transcripts/dbbench-std-qwen-8b.jsonl.gz", "recorded DBBench episodes"
  )


def _find(path: str, description: str) -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  file = pathlib.Path(os.environ.get("AGENTRL_DATA", default)) / path
  if not file.is_file():
    raise unittest.SkipTest(f"needs {description} as $AGENTRL_DATA/{path}")
  return file


def needs_mariadb() -> None:
  """Skips the test if MariaDB is not installed."""
  for program in ("mariadbd", "mariadb-install-db"):
    if shutil.which(program) is None:
      raise unittest.SkipTest(
        f"needs {program} on the PATH (Debian: apt-get install "
        "mariadb-server-core mariadb-client-core)"
      )
