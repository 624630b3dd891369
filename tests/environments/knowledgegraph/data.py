"""Locates AgentBench's and Freebase's data, which is not in this repository."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def questions(name: str) -> str:
  """Returns the path of dev.json or train.json; skips the test without it."""
  return str(_find(f"agentbench/knowledgegraph/{name}.json"))


def ontology() -> str:
  """Returns the path of AgentBench's ontology folder, or skips the test."""
  return str(_find("agentbench/knowledgegraph/ontology/vocab.json").parent)


def freebase() -> str:
  """Returns the path of FB15k-237.tar.gz, or skips the test."""
  return str(_find("freebase/FB15k-237.tar.gz"))


def _find(path: str) -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  file = pathlib.Path(os.environ.get("AGENTRL_DATA", default)) / path
  if not file.is_file():
    raise unittest.SkipTest(f"needs $AGENTRL_DATA/{path}")
  return file
