"""AgentBench's data and MariaDB, or a skip of the tests that need them."""

import pathlib
import shutil
import unittest

from tests.environments.shared_data import find


def dev_rows() -> pathlib.Path:
  """Returns the path of AgentBench's dev.jsonl."""
  return find("agentbench/dbbench/dev.jsonl")


def transcripts() -> pathlib.Path:
  """Returns the path of episodes recorded on AgentBench's workers."""
  return find("transcripts/dbbench-std-qwen-8b.jsonl.gz")


def needs_mariadb() -> None:
  """Skips the test if MariaDB is not installed."""
  for program in ("mariadbd", "mariadb-install-db"):
    if shutil.which(program) is None:
      raise unittest.SkipTest(
        f"needs {program} on the PATH (Debian: apt-get install "
        "mariadb-server-core mariadb-client-core)"
      )
