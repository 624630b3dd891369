"""Where the tests find AgentBench's data, which is not part of the project."""

import os
import pathlib
import shutil
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def dev_rows() -> pathlib.Path:
  """The path of dev.jsonl; skips the test where it is absent."""
  return _find("agentbench/dbbench/dev.jsonl", "AgentBench's dbbench/dev.jsonl")


def transcripts() -> pathlib.Path:
  """Recorded attempts on AgentBench's own workers; skips likewise."""
  return _find(
    "transcripts/dbbench-std-qwen-8b.jsonl.gz", "recorded DBBench attempts"
  )


def _find(path: str, what: str) -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  found = pathlib.Path(os.environ.get("AGENTRL_DATA", default)) / path
  if not found.is_file():
    raise unittest.SkipTest(f"needs {what} as $AGENTRL_DATA/{path}")
  return found


def needs_mariadb() -> None:
  """Skips the test where there is no MariaDB to start."""
  for program in ("mariadbd", "mariadb-install-db"):
    if shutil.which(program) is None:
      raise unittest.SkipTest(
        f"needs {program} on the PATH (Debian: apt-get install "
        "mariadb-server-core mariadb-client-core)"
      )
