"""What a task is made of: a question, its entities, the answer, gold calls."""

import dataclasses
from collections.abc import Mapping

from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.ontology import Ontology


@dataclasses.dataclass(frozen=True)
class GoldCall:
  """One call of the gold list; arguments are ids, names, "#k", in order."""

  name: str
  arguments: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
  """One question."""

  question: str
  entities: Mapping[str, str]  # the name in the question -> the id
  answers: frozenset[str]  # ids, or the text of a number
  gold_calls: tuple[GoldCall, ...]
  kind: str = ""  # what its metric is named after


@dataclasses.dataclass(frozen=True)
class Scene:
  """A problem, the facts that it is asked about, and what is known of them."""

  problem: Problem
  graph: Graph
  ontology: Ontology
  is_synthesised: bool = False  # whether the facts were made up to fit
