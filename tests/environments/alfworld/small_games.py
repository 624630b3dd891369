"""Small games written by hand, as objects and as game files."""

import dataclasses
import json
import pathlib
from unittest import mock

from environments.alfworld.games import game_files
from environments.alfworld.games.game import Game, Receptacle, Thing
from environments.alfworld.games.tasks import TaskSpec, goal_of
from environments.alfworld.generation.catalogue import FITS, TRAITS_OF

MUG = TaskSpec("pick_and_place_simple", "mug", "desk")
# ALFWorld's own logic is no part of the project. The Python engine reads none:
# it only recognises the checksums.
DOMAIN = "(define (domain alfred) (:action look :parameters (?a - agent)))"
STUDY = pathlib.Path(__file__).with_name("study.pddl")  # as in `study`
GRAMMAR = '{"task": [{"rhs": "Your task is to: %s."}]}'


def make_game(receptacles, things, spec=MUG, **changes) -> Game:
  """Makes a game of {"desk 1": {...}} and {"mug 1": "desk 1"}, in this order.

  Every receptacle has its own location, unless `location` names the receptacle
  that it stands with.
  """
  names = list(receptacles)
  locations = {name: r for r, name in enumerate(names)}
  all_receptacles = tuple(
    Receptacle(
      name,
      name.split()[0],
      locations[options.get("location", name)],
      is_openable=options.get("is_openable", False),
      is_open=options.get("is_open", False),
    )
    for name, options in receptacles.items()
  )
  inside = {(o, names.index(r)) for o, r in enumerate(things.values())}
  types = {name.split()[0] for name in things}
  game = Game(
    receptacles=all_receptacles,
    things=tuple(
      Thing(name, name.split()[0], TRAITS_OF.get(name.split()[0], frozenset()))
      for name in things
    ),
    num_locations=len(names) + 1,
    start=len(names),
    inside=frozenset(inside),
    at=frozenset((o, all_receptacles[r].location) for o, r in inside),
    fits=frozenset(
      (r.type, kind)
      for r in all_receptacles
      for kind in types
      if r.type in FITS.get(kind, ())
    ),
    goal=goal_of(spec),
    task="put a mug in desk",
  )
  return dataclasses.replace(game, **changes)


def study() -> Game:
  """A mug in a closed cabinet; a lamp and a pen on one of two desks."""
  return make_game(
    {"cabinet 1": {"is_openable": True}, "desk 2": {}, "desk 1": {}},
    {"desklamp 1": "desk 1", "mug 1": "cabinet 1", "pen 1": "desk 1"},
  )


def kitchen() -> Game:
  """A room in which things can be cleaned, heated, cooled and sliced."""
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
  )


def write_game(path, *, task="put a mug in desk", **changes) -> None:
  """Writes the study as a game file; `changes` replace keys, None drops one."""
  body = {
    "pddl_domain": DOMAIN,
    "grammar": GRAMMAR % task,
    "pddl_problem": STUDY.read_text(),
    "solvable": True,
  } | changes
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({k: v for k, v in body.items() if v is not None}))


def known_logic():
  """Registers the logic of `write_game` as AgentBench's while it is patched."""
  domain = game_files.domain_checksum(DOMAIN)
  grammar = game_files.grammar_checksum(GRAMMAR)
  return mock.patch.multiple(
    game_files, _DOMAINS={domain: {}}, _GRAMMARS={grammar: {}}
  )
