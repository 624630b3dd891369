"""What made-up worlds are about: films, books, rockets, sports."""

from environments.knowledgegraph.generation.schema import (
  Attribute,
  Relation,
  Theme,
  Type,
)


def _pair(
  name: str, phrase: str, back: str, back_phrase: str, max_objects: int
) -> tuple[Relation, Relation]:
  """Both directions, told by "domain.type.relation" each."""
  domain, range_ = name.rpartition(".")[0], back.rpartition(".")[0]
  return (
    Relation(name, domain, range_, phrase, back, max_objects),
    Relation(back, range_, domain, back_phrase, name, 0),
  )


FILM = Theme(
  types=(
    Type("film.film", "films", "title"),
    Type("film.director", "directors", "person"),
    Type("film.actor", "actors", "person"),
    Type("film.film_genre", "film genres", "kind"),
    Type("film.film_location", "film locations", "place"),
  ),
  relations=(
    *_pair(
      "film.film.directed_by",
      "directors of {}",
      "film.director.film",
      "films directed by {}",
      1,
    ),
    *_pair(
      "film.film.starring",
      "actors in {}",
      "film.actor.film",
      "films starring {}",
      4,
    ),
    *_pair(
      "film.film.genre",
      "film genres of {}",
      "film.film_genre.films_in_this_genre",
      "films that belong to {}",
      2,
    ),
    *_pair(
      "film.film.featured_film_locations",
      "places where {} were filmed",
      "film.film_location.featured_in_films",
      "films made in {}",
      2,
    ),
    *_pair(
      "film.director.favorite_genres",
      "film genres loved by {}",
      "film.film_genre.fans",
      "directors who love {}",
      2,
    ),
    *_pair(
      "film.actor.places_lived",
      "places where {} lived",
      "film.film_location.residents",
      "actors who lived in {}",
      2,
    ),
  ),
  attributes=(
    Attribute("film.film.runtime", "film.film", "running time"),
    Attribute("film.film.budget", "film.film", "budget"),
    Attribute("film.actor.height", "film.actor", "height"),
    Attribute(
      "film.director.date_of_birth",
      "film.director",
      "date of birth",
      "type.datetime",
    ),
  ),
)
BOOK = Theme(
  types=(
    Type("book.book", "books", "title"),
    Type("book.author", "authors", "person"),
    Type("book.publishing_company", "publishers", "place"),
    Type("book.book_subject", "book subjects", "kind"),
    Type("book.translator", "translators", "person"),
  ),
  relations=(
    *_pair(
      "book.book.written_by",
      "authors of {}",
      "book.author.works_written",
      "books written by {}",
      2,
    ),
    *_pair(
      "book.book.publisher",
      "publishers of {}",
      "book.publishing_company.books_published",
      "books published by {}",
      1,
    ),
    *_pair(
      "book.book.subjects",
      "book subjects of {}",
      "book.book_subject.works",
      "books about {}",
      3,
    ),
    *_pair(
      "book.book.translated_by",
      "translators of {}",
      "book.translator.books_translated",
      "books translated by {}",
      2,
    ),
    *_pair(
      "book.author.influenced_by",
      "authors who influenced {}",
      "book.author.influenced",
      "authors influenced by {}",
      2,
    ),
    *_pair(
      "book.author.fields",
      "book subjects studied by {}",
      "book.book_subject.experts",
      "authors who studied {}",
      2,
    ),
    *_pair(
      "book.translator.employers",
      "publishers that employ {}",
      "book.publishing_company.translators",
      "translators employed by {}",
      2,
    ),
  ),
  attributes=(
    Attribute("book.book.number_of_pages", "book.book", "number of pages"),
    Attribute("book.book.copies_sold", "book.book", "number of copies sold"),
    Attribute(
      "book.author.date_of_birth",
      "book.author",
      "date of birth",
      "type.datetime",
    ),
    Attribute(
      "book.publishing_company.employees",
      "book.publishing_company",
      "number of employees",
    ),
  ),
)
SPACE = Theme(
  types=(
    Type("spaceflight.rocket", "rockets", "title"),
    Type("spaceflight.rocket_engine", "rocket engines", "kind"),
    Type("spaceflight.rocket_manufacturer", "rocket makers", "place"),
    Type("spaceflight.launch_site", "launch sites", "place"),
    Type("spaceflight.astronaut", "astronauts", "person"),
  ),
  relations=(
    *_pair(
      "spaceflight.rocket.engines",
      "rocket engines of {}",
      "spaceflight.rocket_engine.used_by",
      "rockets driven by {}",
      2,
    ),
    *_pair(
      "spaceflight.rocket.manufacturer",
      "rocket makers that built {}",
      "spaceflight.rocket_manufacturer.rockets",
      "rockets built by {}",
      1,
    ),
    *_pair(
      "spaceflight.rocket_engine.designed_by",
      "rocket makers that designed {}",
      "spaceflight.rocket_manufacturer.engines_designed",
      "rocket engines designed by {}",
      1,
    ),
    *_pair(
      "spaceflight.rocket.launch_sites",
      "launch sites of {}",
      "spaceflight.launch_site.rockets_launched",
      "rockets launched from {}",
      3,
    ),
    *_pair(
      "spaceflight.astronaut.flown_on",
      "rockets flown by {}",
      "spaceflight.rocket.crew",
      "astronauts who flew on {}",
      2,
    ),
    *_pair(
      "spaceflight.astronaut.trained_at",
      "launch sites where {} trained",
      "spaceflight.launch_site.trainees",
      "astronauts who trained at {}",
      2,
    ),
  ),
  attributes=(
    Attribute("spaceflight.rocket.height", "spaceflight.rocket", "height"),
    Attribute("spaceflight.rocket.mass", "spaceflight.rocket", "mass"),
    Attribute(
      "spaceflight.rocket_engine.thrust", "spaceflight.rocket_engine", "thrust"
    ),
    Attribute(
      "spaceflight.astronaut.date_of_birth",
      "spaceflight.astronaut",
      "date of birth",
      "type.datetime",
    ),
  ),
)
SPORTS = Theme(
  types=(
    Type("sports.sports_team", "teams", "place"),
    Type("sports.pro_athlete", "players", "person"),
    Type("sports.coach", "coaches", "person"),
    Type("sports.sports_facility", "stadiums", "title"),
    Type("sports.position", "positions", "kind"),
  ),
  relations=(
    *_pair(
      "sports.pro_athlete.teams",
      "teams of {}",
      "sports.sports_team.roster",
      "players of {}",
      2,
    ),
    *_pair(
      "sports.pro_athlete.positions",
      "positions of {}",
      "sports.position.players",
      "players who play as {}",
      2,
    ),
    *_pair(
      "sports.coach.teams_coached",
      "teams coached by {}",
      "sports.sports_team.coaches",
      "coaches of {}",
      2,
    ),
    *_pair(
      "sports.sports_team.arena_stadium",
      "stadiums of {}",
      "sports.sports_facility.teams",
      "teams that play at {}",
      1,
    ),
    *_pair(
      "sports.coach.athletes_mentored",
      "players mentored by {}",
      "sports.pro_athlete.mentors",
      "coaches who mentored {}",
      3,
    ),
    *_pair(
      "sports.coach.trains_at",
      "stadiums where {} train",
      "sports.sports_facility.coaches",
      "coaches who train at {}",
      1,
    ),
    *_pair(
      "sports.coach.former_positions",
      "positions once played by {}",
      "sports.position.coaches",
      "coaches who once played as {}",
      2,
    ),
  ),
  attributes=(
    Attribute("sports.pro_athlete.height", "sports.pro_athlete", "height"),
    Attribute("sports.pro_athlete.goals", "sports.pro_athlete", "goal count"),
    Attribute(
      "sports.sports_facility.capacity", "sports.sports_facility", "capacity"
    ),
    Attribute(
      "sports.sports_team.founded",
      "sports.sports_team",
      "date of foundation",
      "type.datetime",
    ),
  ),
)
THEMES = (FILM, BOOK, SPACE, SPORTS)
