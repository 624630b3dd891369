"""What a world consists of: types, relations, attributes.

Names are formed as Freebase's: domain.type.relation. Every relation has its
reverse, as most of Freebase's have. A phrase says in words what a relation
leads to; "{}" stands for what it starts from.
"""

import dataclasses

from environments.knowledgegraph.ontology import Ontology


@dataclasses.dataclass(frozen=True)
class Type:
  """One type of thing."""

  id: str
  plural: str
  naming: str  # a pattern of `words`


@dataclasses.dataclass(frozen=True)
class Relation:
  """One direction of a relation; `reverse` is the name of the other."""

  name: str
  domain: str
  range: str
  phrase: str
  reverse: str
  max_objects: int  # that one thing has; the reverse has as many as happen


@dataclasses.dataclass(frozen=True)
class Attribute:
  """A number or a date that every thing of a type has."""

  name: str
  domain: str
  phrase: str  # as in "with the highest ..."
  range: str = "type.int"


@dataclasses.dataclass(frozen=True)
class Theme:
  """What one world is about."""

  types: tuple[Type, ...]
  relations: tuple[Relation, ...]
  attributes: tuple[Attribute, ...]


def ontology_of(themes: tuple[Theme, ...]) -> Ontology:
  """What the themes say about their relations."""
  relations = [relation for theme in themes for relation in theme.relations]
  attributes = [a for theme in themes for a in theme.attributes]
  everything: list[Relation | Attribute] = [*relations, *attributes]
  return Ontology(
    ranges={r.name: r.range for r in everything},
    domains={r.name: r.domain for r in everything},
    relations=frozenset(r.name for r in relations),
    attributes=frozenset(a.name for a in attributes),
    reverses={r.name: r.reverse for r in relations},
  )
