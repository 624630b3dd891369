"""AgentBench's data and MariaDB, or a skip of the tests that need them."""

import functools
import pathlib
import shutil
import unittest

from environments.dbbench.engines.mariadb_server import Address, PrivateServer
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


@functools.cache
def mariadb_address() -> Address:
  """Returns the address of a server that the tests of a process share.

  It stops when Python exits. Skips the test if MariaDB is not installed.
  """
  needs_mariadb()
  return PrivateServer().start()
