"""Where the tests find AgentBench's and Freebase's data, which is not ours."""

import os
import pathlib
import unittest

ROOT = pathlib.Path(__file__).parents[3]


def questions(name: str) -> str:
  """The path of AgentBench's dev.json or train.json; skips where absent."""
  return str(_find(f"agentbench/knowledgegraph/{name}.json"))


def ontology() -> str:
  """The path of AgentBench's ontology folder; skips likewise."""
  return str(_find("agentbench/knowledgegraph/ontology/vocab.json").parent)


def freebase() -> str:
  """The path of FB15k-237.tar.gz; skips likewise."""
  return str(_find("freebase/FB15k-237.tar.gz"))


def _find(path: str) -> pathlib.Path:
  default = ROOT.parent / "shared" / "data"
  found = pathlib.Path(os.environ.get("AGENTRL_DATA", default)) / path
  if not found.is_file():
    raise unittest.SkipTest(f"needs $AGENTRL_DATA/{path}")
  return found
