"""Facts of a knowledge graph in memory, indexed by subject and relation.

Entities are ids, as text in Freebase's form ("m.0d05w3"); values are
`Literal`s.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

XSD = "http://www.w3.org/2001/XMLSchema#"
NUMBERS = frozenset({"integer", "int", "float", "double", "decimal"})


@dataclasses.dataclass(frozen=True)
class Literal:
  """A value: its text, and the name of its type in XML Schema."""

  text: str
  datatype: str = "string"
  language: str = ""


Term = str | Literal
Fact = tuple[str, str, Term]  # subject, relation, object


class Graph:
  """A set of facts. It is filled first, and only read afterwards."""

  def __init__(self, facts: Iterable[Fact] = ()):
    self._objects: dict[str, dict[str, dict[Term, None]]] = {}
    for fact in facts:
      self.add(fact)

  def __iter__(self) -> Iterator[Fact]:
    for subject, relations in self._objects.items():
      for relation, objects in relations.items():
        for object_ in objects:
          yield subject, relation, object_

  def add(self, fact: Fact) -> None:
    """Adds a fact."""
    subject, relation, object_ = fact
    relations = self._objects.setdefault(subject, {})
    relations.setdefault(relation, {})[object_] = None

  def about(self, subject: Term) -> Mapping[str, Mapping[Term, None]]:
    """Returns the objects of a subject by relation."""
    if isinstance(subject, Literal):
      return {}
    return self._objects.get(subject, {})

  def objects(self, subject: Term, relation: str) -> Mapping[Term, None]:
    return self.about(subject).get(relation, {})


def sort_key(term: Term) -> tuple[int, float, str]:
  """Orders terms as SPARQL's ORDER BY: entities, numbers, other literals.

  Freebase writes dates so that they are in order when their texts are.
  """
  if isinstance(term, str):
    return (0, 0.0, term)
  if term.datatype in NUMBERS:
    return (1, float(term.text), "")
  return (2, 0.0, term.text)


def answer_text(term: Term) -> str:
  """Writes an answer as AgentBench does: without the Pacific time zone."""
  text = term if isinstance(term, str) else term.text
  return text.replace("-08:00", "")
