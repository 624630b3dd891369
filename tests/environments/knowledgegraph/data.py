"""Paths of AgentBench's data; tests without it are skipped."""

from tests.environments.shared_data import find


def questions(name: str) -> str:
  """Returns the path of dev.json or train.json."""
  return str(find(f"agentbench/knowledgegraph/{name}.json"))


def ontology() -> str:
  """Returns the path of AgentBench's ontology folder."""
  return str(find("agentbench/knowledgegraph/ontology/vocab.json").parent)
