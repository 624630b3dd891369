"""A graph as N-Triples, which every SPARQL store loads."""

from environments.knowledgegraph.engines.graph import (
  XSD,
  Fact,
  Graph,
  Literal,
  Term,
)
from environments.knowledgegraph.engines.sparql import iri

ESCAPES = str.maketrans(
  {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)


def n_triples(graph: Graph) -> str:
  """One line per fact."""
  return "".join(map(_line, graph))


def _line(fact: Fact) -> str:
  subject, relation, thing = fact
  return f"{iri(subject)} {iri(relation)} {_term(thing)} .\n"


def _term(term: Term) -> str:
  if not isinstance(term, Literal):
    return iri(term)
  text = f'"{term.text.translate(ESCAPES)}"'
  if term.language:
    return f"{text}@{term.language}"
  return f"{text}^^<{XSD}{term.datatype}>"
