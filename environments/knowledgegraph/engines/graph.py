"""Facts in memory: for each thing its relations, and where each one leads.

Things are ids (text, as in Freebase: "m.0d05w3"), values are `Literal`s. What
can be said about relations themselves is in `ontology`.
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
Fact = tuple[str, str, Term]


class Graph:
  """Facts by subject and relation. Filled once, then only read."""

  def __init__(self, facts: Iterable[Fact] = ()):
    self._objects: dict[str, dict[str, dict[Term, None]]] = {}
    self._num_facts = 0
    for fact in facts:
      self.add(fact)

  def __len__(self) -> int:
    return self._num_facts

  def __contains__(self, fact: Fact) -> bool:
    subject, relation, thing = fact
    return thing in self._objects.get(subject, {}).get(relation, ())

  def __iter__(self) -> Iterator[Fact]:
    for subject, relations in self._objects.items():
      for relation, things in relations.items():
        for thing in things:
          yield subject, relation, thing

  def add(self, fact: Fact) -> bool:
    """Adds a fact; says whether it was not there before."""
    subject, relation, thing = fact
    things = self._objects.setdefault(subject, {}).setdefault(relation, {})
    if thing in things:
      return False
    things[thing] = None
    self._num_facts += 1
    return True

  def remove(self, fact: Fact) -> None:
    """Takes a fact out that is in, and what would be left empty."""
    subject, relation, thing = fact
    del self._objects[subject][relation][thing]
    self._num_facts -= 1
    if not self._objects[subject][relation]:
      del self._objects[subject][relation]
    if not self._objects[subject]:
      del self._objects[subject]

  def subjects(self) -> Iterable[str]:
    """All things of which something is told, in the order of the facts."""
    return self._objects.keys()

  def about(self, subject: Term) -> Mapping[str, Mapping[Term, None]]:
    """The relations of a thing, each with what it leads to."""
    if isinstance(subject, Literal):
      return {}
    return self._objects.get(subject, {})

  def objects(self, subject: Term, relation: str) -> Mapping[Term, None]:
    """What a relation of one thing leads to."""
    return self.about(subject).get(relation, {})


def order_of(term: Term) -> tuple[int, float, str]:
  """Sorts as SPARQL's ORDER BY: things first, then numbers, then the rest.

  Dates in Freebase are written so that their text sorts as they do.
  """
  if isinstance(term, str):
    return (0, 0.0, term)
  if term.datatype in NUMBERS:
    return (1, float(term.text), "")
  return (2, 0.0, term.text)


def answer_text(term: Term) -> str:
  """How AgentBench writes a result: bare ids, and no Pacific time zone."""
  text = term if isinstance(term, str) else term.text
  return text.replace("-08:00", "")
