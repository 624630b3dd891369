"""Paths of AgentBench's data; tests without it are skipped."""

import pathlib

from tests.environments.shared_data import find


def tasks(name: str) -> str:
  """Returns the path of dev.json or train.json."""
  return str(find(f"agentbench/os_interaction/{name}"))


def transcripts() -> pathlib.Path:
  """Returns the path of episodes recorded on AgentBench's own workers."""
  return find("transcripts/os-std-qwen-8b.jsonl.gz")
