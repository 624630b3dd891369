"""Generated worlds: named entities with random relations and values."""

import dataclasses
import random
from collections.abc import Iterator

from environments.knowledgegraph.engines.graph import Fact, Graph, Literal, Term
from environments.knowledgegraph.generation.themes import Attribute, WorldTheme

ID_DIGITS = "0123456789bcdfghjklmnpqrstvwxyz"  # as in Freebase
FIRST_YEAR, NUM_YEARS = 1900, 100


def _words(text: str) -> tuple[str, ...]:
  return tuple(text.split())


FIRST_NAMES = _words(
  "Ada Boris Clara Dario Edith Felix Gina Hugo Ida Jonas Kira Lars Mona Nils "
  "Oona Pablo Ruth Stefan Thea Uwe Vera Walt Yara Zeno"
)
LAST_NAMES = _words(
  "Abbott Bauer Castro Dietz Engel Faber Gomez Hansen Ibsen Jensen Keller "
  "Lund Moreau Nagy Ortiz Petrov Quinn Rossi Silva Torres Ulrich Vance Weber"
)
QUALITIES = _words(
  "Amber Bitter Broken Distant Empty Frozen Gentle Hidden Hollow Ivory Last "
  "Little Lonely Narrow Pale Quiet Rapid Scarlet Second Silent Stolen Velvet"
)
THINGS = _words(
  "Anchor Arrow Beacon Candle Castle Desert Echo Feather Harbor Island Journey "
  "Lantern Letter Meadow Mirror Orchard Portrait River Shadow Summer Tide "
  "Voyage Window Winter"
)
PLACE_STARTS = _words(
  "Ald Bel Cor Dun El Fen Gar Hal Is Kel Lor Mar Nor Or Pel Ros Sal Tor Ul Ver"
)
PLACE_ENDS = _words(
  "aby anta burg dale endia eros ford gard haven ia ino ley mark mouth oria "
  "stad ton ville wick"
)
KINDS = _words(
  "classic cosmic electric folk gothic heroic ironic lyric modern mystic noir "
  "pastoral rustic satiric solar urban"
)
GROUNDS = _words("ballad crime dance drama fable march mystery poem quest saga")
# Each pattern joins a word of the first list with one of the second. The words
# are few and short, so that a small tokenizer covers them.
NAME_PATTERNS = {
  "person": (FIRST_NAMES, " ", LAST_NAMES),
  "title": (QUALITIES, " ", THINGS),
  "place": (PLACE_STARTS, "", PLACE_ENDS),
  "kind": (KINDS, " ", GROUNDS),
}


@dataclasses.dataclass(frozen=True)
class World:
  """A graph, and the names and types of its entities."""

  theme: WorldTheme
  graph: Graph
  names: dict[str, str]  # id -> name; names are unique
  members: dict[str, list[str]]  # type -> ids


def draw_world(
  rng: random.Random, theme: WorldTheme, *, num_entities: tuple[int, int]
) -> World:
  """Draws a world; `num_entities` bounds the entities of each type."""
  names: dict[str, str] = {}
  members = {
    type_.id: _draw_entities(
      rng, type_.naming, rng.randint(*num_entities), names
    )
    for type_ in theme.types
  }
  graph = Graph(_draw_relations(rng, theme, members))
  for attribute in theme.attributes:
    entities = members[attribute.domain]
    for entity, value in zip(
      entities, _draw_values(rng, attribute, len(entities)), strict=True
    ):
      graph.add((entity, attribute.name, value))
  return World(theme, graph, names, members)


def _draw_entities(
  rng: random.Random, naming: str, count: int, names: dict[str, str]
) -> list[str]:
  """Draws ids, and adds their names to `names`."""
  starts, separator, ends = NAME_PATTERNS[naming]
  taken = set(names.values())
  entities: list[str] = []
  while len(entities) < count:
    name = f"{rng.choice(starts)}{separator}{rng.choice(ends)}"
    id_ = "m.0" + "".join(rng.choices(ID_DIGITS, k=5))
    if name not in taken and id_ not in names:
      taken.add(name)
      names[id_] = name
      entities.append(id_)
  return entities


def _draw_relations(
  rng: random.Random, theme: WorldTheme, members: dict[str, list[str]]
) -> Iterator[Fact]:
  for relation in theme.relations:
    if not relation.max_objects:
      continue
    for subject in members[relation.domain]:
      others = [x for x in members[relation.range] if x != subject]
      for other in rng.sample(others, rng.randint(1, relation.max_objects)):
        yield subject, relation.name, other
        yield other, relation.reverse, subject


def _draw_values(
  rng: random.Random, attribute: Attribute, count: int
) -> list[Term]:
  """Draws distinct values."""
  if attribute.range == "type.datetime":
    years = rng.sample(range(FIRST_YEAR, FIRST_YEAR + NUM_YEARS), count)
    return [
      Literal(f"{y}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}", "date")
      for y in years
    ]
  numbers = rng.sample(range(1, 1000), count)
  return [Literal(str(number), "integer") for number in numbers]
