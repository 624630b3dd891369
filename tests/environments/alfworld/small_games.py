"""Games small enough to be read, for tests that say what should happen."""

import dataclasses

from environments.alfworld.games.game import Game, Receptacle, Thing
from environments.alfworld.games.tasks import Wanted, goal_of
from environments.alfworld.generation.catalogue import FITS, TRAITS_OF

MUG = Wanted("pick_and_place_simple", "mug", "desk")


def make_game(receptacles, things, wanted=MUG, **changes) -> Game:
  """A game of {"desk 1": {...}} and {"mug 1": "desk 1"}, in the order given.

  Every receptacle has a place of its own, unless `location` names another.
  """
  places = {name: r for r, name in enumerate(receptacles)}
  made = tuple(
    Receptacle(
      name,
      name.split()[0],
      places[more.get("location", name)],
      is_openable=more.get("is_openable", False),
      is_open=more.get("is_open", False),
    )
    for name, more in receptacles.items()
  )
  positions = {receptacle.name: r for r, receptacle in enumerate(made)}
  inside = {(o, positions[where]) for o, where in enumerate(things.values())}
  game = Game(
    receptacles=made,
    things=tuple(
      Thing(name, name.split()[0], TRAITS_OF.get(name.split()[0], frozenset()))
      for name in things
    ),
    num_locations=len(places) + 1,
    start=len(places),
    inside=frozenset(inside),
    at=frozenset((o, made[r].location) for o, r in inside),
    fits=frozenset(
      (r.type, o.split()[0])
      for r in made
      for o in things
      if r.type in FITS.get(o.split()[0], ())
    ),
    goal=goal_of(wanted),
    task="put a mug in desk",
  )
  return dataclasses.replace(game, **changes)


def study() -> Game:
  """A mug in a closed cabinet, a lamp and a pen on one of two desks."""
  return make_game(
    {"cabinet 1": {"is_openable": True}, "desk 2": {}, "desk 1": {}},
    {"desklamp 1": "desk 1", "mug 1": "cabinet 1", "pen 1": "desk 1"},
  )


def kitchen(wanted=MUG) -> Game:
  """What it takes to clean, heat, cool and slice."""
  return make_game(
    {
      "countertop 1": {},
      "desk 1": {},
      "fridge 1": {"is_openable": True},
      "microwave 1": {"is_openable": True},
      "shelf 1": {"location": "countertop 1"},
      "sinkbasin 1": {},
    },
    {
      "apple 1": "fridge 1",
      "bread 1": "countertop 1",
      "knife 1": "countertop 1",
      "mug 2": "shelf 1",
      "mug 1": "countertop 1",
    },
    wanted,
  )
