"""Themes of generated worlds: film, books, spaceflight and sports.

Names have Freebase's form, domain.type.relation. Every relation has a reverse,
as most relations of Freebase do.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from environments.knowledgegraph.problem import Ontology


@dataclasses.dataclass(frozen=True)
class Type:
  """One type of entity."""

  id: str
  naming: str  # a key of `world.NAME_PATTERNS`


@dataclasses.dataclass(frozen=True)
class Relation:
  """One direction of a relation; `reverse` is the name of the other one.

  In `phrase`, which describes the relation's objects, "{}" stands for the
  subject.
  """

  name: str
  domain: str
  range: str
  phrase: str
  reverse: str
  max_objects: int  # of one subject; 0 where the reverse decides


@dataclasses.dataclass(frozen=True)
class Attribute:
  """A number or a date that every entity of a type has."""

  name: str
  domain: str
  phrase: str  # as in "with the highest ..."
  range: str


@dataclasses.dataclass(frozen=True)
class WorldTheme:
  """The schema of one world."""

  types: tuple[Type, ...]
  relations: tuple[Relation, ...]
  attributes: tuple[Attribute, ...]


def ontology_of(themes: tuple[WorldTheme, ...]) -> Ontology:
  """Returns the ontology that describes all of the themes."""
  relations = [relation for theme in themes for relation in theme.relations]
  attributes = [a for theme in themes for a in theme.attributes]
  predicates: list[Relation | Attribute] = [*relations, *attributes]
  return Ontology(
    ranges={p.name: p.range for p in predicates},
    relations=frozenset(r.name for r in relations),
    attributes=frozenset(a.name for a in attributes),
  )


def _theme(
  domain: str,
  *,
  types: Mapping[str, str],
  relations: Iterable[tuple[tuple[str, str, int], tuple[str, str]]],
  attributes: Iterable[tuple[str, str, str]],
) -> WorldTheme:
  """Makes a theme from names without their domain.

  Args:
    domain: such as "film".
    types: name -> naming.
    relations: name, phrase and maximum of objects of a relation; name and
      phrase of its reverse.
    attributes: name, phrase and range.
  """
  directions: list[Relation] = []
  for (name, phrase, max_objects), (reverse, reverse_phrase) in relations:
    name, reverse = f"{domain}.{name}", f"{domain}.{reverse}"
    subject, object_ = (n.rpartition(".")[0] for n in (name, reverse))
    directions += [
      Relation(name, subject, object_, phrase, reverse, max_objects),
      Relation(reverse, object_, subject, reverse_phrase, name, 0),
    ]
  return WorldTheme(
    tuple(Type(f"{domain}.{name}", naming) for name, naming in types.items()),
    tuple(directions),
    tuple(
      Attribute(
        f"{domain}.{n}", f"{domain}.{n.partition('.')[0]}", phrase, range_
      )
      for n, phrase, range_ in attributes
    ),
  )


FILM = _theme(
  "film",
  types={
    "film": "title",
    "director": "person",
    "actor": "person",
    "film_genre": "kind",
    "film_location": "place",
  },
  relations=(
    (
      ("film.directed_by", "directors of {}", 1),
      ("director.film", "films directed by {}"),
    ),
    (("film.starring", "actors in {}", 4), ("actor.film", "films starring {}")),
    (
      ("film.genre", "film genres of {}", 2),
      ("film_genre.films_in_this_genre", "films that belong to {}"),
    ),
    (
      ("film.featured_film_locations", "places where {} were filmed", 2),
      ("film_location.featured_in_films", "films made in {}"),
    ),
    (
      ("director.favorite_genres", "film genres loved by {}", 2),
      ("film_genre.fans", "directors who love {}"),
    ),
    (
      ("actor.places_lived", "places where {} lived", 2),
      ("film_location.residents", "actors who lived in {}"),
    ),
  ),
  attributes=(
    ("film.runtime", "running time", "type.int"),
    ("film.budget", "budget", "type.int"),
    ("actor.height", "height", "type.int"),
    ("director.date_of_birth", "date of birth", "type.datetime"),
  ),
)
BOOK = _theme(
  "book",
  types={
    "book": "title",
    "author": "person",
    "publishing_company": "place",
    "book_subject": "kind",
    "translator": "person",
  },
  relations=(
    (
      ("book.written_by", "authors of {}", 2),
      ("author.works_written", "books written by {}"),
    ),
    (
      ("book.publisher", "publishers of {}", 1),
      ("publishing_company.books_published", "books published by {}"),
    ),
    (
      ("book.subjects", "book subjects of {}", 3),
      ("book_subject.works", "books about {}"),
    ),
    (
      ("book.translated_by", "translators of {}", 2),
      ("translator.books_translated", "books translated by {}"),
    ),
    (
      ("author.influenced_by", "authors who influenced {}", 2),
      ("author.influenced", "authors influenced by {}"),
    ),
    (
      ("author.fields", "book subjects studied by {}", 2),
      ("book_subject.experts", "authors who studied {}"),
    ),
    (
      ("translator.employers", "publishers that employ {}", 2),
      ("publishing_company.translators", "translators employed by {}"),
    ),
  ),
  attributes=(
    ("book.number_of_pages", "number of pages", "type.int"),
    ("book.copies_sold", "number of copies sold", "type.int"),
    ("author.date_of_birth", "date of birth", "type.datetime"),
    ("publishing_company.employees", "number of employees", "type.int"),
  ),
)
SPACE = _theme(
  "spaceflight",
  types={
    "rocket": "title",
    "rocket_engine": "kind",
    "rocket_manufacturer": "place",
    "launch_site": "place",
    "astronaut": "person",
  },
  relations=(
    (
      ("rocket.engines", "rocket engines of {}", 2),
      ("rocket_engine.used_by", "rockets driven by {}"),
    ),
    (
      ("rocket.manufacturer", "rocket makers that built {}", 1),
      ("rocket_manufacturer.rockets", "rockets built by {}"),
    ),
    (
      ("rocket_engine.designed_by", "rocket makers that designed {}", 1),
      ("rocket_manufacturer.engines_designed", "rocket engines designed by {}"),
    ),
    (
      ("rocket.launch_sites", "launch sites of {}", 3),
      ("launch_site.rockets_launched", "rockets launched from {}"),
    ),
    (
      ("astronaut.flown_on", "rockets flown by {}", 2),
      ("rocket.crew", "astronauts who flew on {}"),
    ),
    (
      ("astronaut.trained_at", "launch sites where {} trained", 2),
      ("launch_site.trainees", "astronauts who trained at {}"),
    ),
  ),
  attributes=(
    ("rocket.height", "height", "type.int"),
    ("rocket.mass", "mass", "type.int"),
    ("rocket_engine.thrust", "thrust", "type.int"),
    ("astronaut.date_of_birth", "date of birth", "type.datetime"),
  ),
)
SPORTS = _theme(
  "sports",
  types={
    "sports_team": "place",
    "pro_athlete": "person",
    "coach": "person",
    "sports_facility": "title",
    "position": "kind",
  },
  relations=(
    (
      ("pro_athlete.teams", "teams of {}", 2),
      ("sports_team.roster", "players of {}"),
    ),
    (
      ("pro_athlete.positions", "positions of {}", 2),
      ("position.players", "players who play as {}"),
    ),
    (
      ("coach.teams_coached", "teams coached by {}", 2),
      ("sports_team.coaches", "coaches of {}"),
    ),
    (
      ("sports_team.arena_stadium", "stadiums of {}", 1),
      ("sports_facility.teams", "teams that play at {}"),
    ),
    (
      ("coach.athletes_mentored", "players mentored by {}", 3),
      ("pro_athlete.mentors", "coaches who mentored {}"),
    ),
    (
      ("coach.trains_at", "stadiums where {} train", 1),
      ("sports_facility.coaches", "coaches who train at {}"),
    ),
    (
      ("coach.former_positions", "positions once played by {}", 2),
      ("position.coaches", "coaches who once played as {}"),
    ),
  ),
  attributes=(
    ("pro_athlete.height", "height", "type.int"),
    ("pro_athlete.goals", "goal count", "type.int"),
    ("sports_facility.capacity", "capacity", "type.int"),
    ("sports_team.founded", "date of foundation", "type.datetime"),
  ),
)
THEMES = (FILM, BOOK, SPACE, SPORTS)
