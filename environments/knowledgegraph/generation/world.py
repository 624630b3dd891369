"""A made-up world: things with names, related to each other, with numbers."""

import dataclasses
import random
from collections.abc import Iterator

from environments.knowledgegraph.engines.graph import Fact, Graph, Literal, Term
from environments.knowledgegraph.generation import words
from environments.knowledgegraph.generation.schema import Attribute, Theme

ID_DIGITS = "0123456789bcdfghjklmnpqrstvwxyz"  # as in Freebase
FIRST_YEAR, NUM_YEARS = 1900, 100


@dataclasses.dataclass(frozen=True)
class World:
  """A graph, and what its things are."""

  theme: Theme
  graph: Graph
  names: dict[str, str]  # id -> name; no two things have one name
  members: dict[str, list[str]]  # type -> ids


def draw_world(
  rng: random.Random, theme: Theme, *, num_entities: tuple[int, int]
) -> World:
  """A random world; `num_entities` bounds the things of each type."""
  names: dict[str, str] = {}
  members = {
    type_.id: _draw_things(rng, type_.naming, rng.randint(*num_entities), names)
    for type_ in theme.types
  }
  graph = Graph(_relations(rng, theme, members))
  for attribute in theme.attributes:
    things = members[attribute.domain]
    for thing, value in zip(
      things, _draw_values(rng, attribute, len(things)), strict=True
    ):
      graph.add((thing, attribute.name, value))
  return World(theme, graph, names, members)


def _draw_things(
  rng: random.Random, naming: str, count: int, names: dict[str, str]
) -> list[str]:
  """Ids, whose names are added to `names`."""
  first, between, second = words.PATTERNS[naming]
  taken = set(names.values())
  things: list[str] = []
  while len(things) < count:
    name = f"{rng.choice(first)}{between}{rng.choice(second)}"
    id_ = "m.0" + "".join(rng.choices(ID_DIGITS, k=5))
    if name not in taken and id_ not in names:
      taken.add(name)
      names[id_] = name
      things.append(id_)
  return things


def _relations(
  rng: random.Random, theme: Theme, members: dict[str, list[str]]
) -> Iterator[Fact]:
  for relation in theme.relations:
    if not relation.max_objects:  # the reverse of another
      continue
    for thing in members[relation.domain]:
      others = [x for x in members[relation.range] if x != thing]
      for other in rng.sample(others, rng.randint(1, relation.max_objects)):
        yield thing, relation.name, other
        yield other, relation.reverse, thing


def _draw_values(
  rng: random.Random, attribute: Attribute, count: int
) -> list[Term]:
  """Values of which no two are alike."""
  if attribute.range == "type.datetime":
    years = rng.sample(range(FIRST_YEAR, FIRST_YEAR + NUM_YEARS), count)
    return [
      Literal(f"{y}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}", "date")
      for y in years
    ]
  numbers = rng.sample(range(1, 1000), count)
  return [Literal(str(number), "integer") for number in numbers]
