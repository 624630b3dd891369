"""Rebuilds AgentBench's test rooms from transcripts.

The file has for each game: the receptacles in order, those that were opened,
the contents that were seen, and the receptacles that share a location. Contents
that no transcript shows are left empty.
"""

import dataclasses
import json
import re

from environments.alfworld.games.game import AGENTBENCH, Game, Receptacle, Thing
from environments.alfworld.games.tasks import PHRASES, TaskSpec, goal_of
from environments.alfworld.generation.catalogue import FITS, TRAITS_OF

OPENABLE = ("cabinet", "drawer", "fridge", "microwave", "safe")
HEAVY = ("bathtub", "curtains", "floorlamp", "houseplant", "mirror", "sink")
HEAVY += ("showerglass", "television", "window")
SLICE = TaskSpec("pick_and_place_simple", "slice", "nowhere")  # never won
# The dialect of the games about slices, and of no others.
OLDER = dataclasses.replace(
  AGENTBENCH, shows_opened=False, opens_one=True, uses_what_is_near=True
)


def read_rooms(path) -> dict[int, Game]:
  rooms = json.loads(path.read_text(encoding="utf-8"))
  return {int(index): _game(room) for index, room in rooms.items()}


def _game(room) -> Game:
  names, seen = room["recs"], room["cont"]
  places: dict[str, int] = {}
  for name in names:
    shared = [places[n] for n in room["same"].get(name, ()) if n in places]
    places[name] = shared[0] if shared else len(set(places.values()))
  things = sorted({o for inside in seen.values() for o in inside}, key=_order)
  number = {name: o for o, name in enumerate(things)}
  inside = {
    (number[o], r) for r, name in enumerate(names) for o in seen.get(name, ())
  }
  opens = _openable(room)
  return Game(
    receptacles=tuple(
      Receptacle(name, _type(name), places[name], is_openable=name in opens)
      for name in names
    ),
    things=tuple(
      Thing(name, _type(name), _traits(_type(name))) for name in things
    ),
    num_locations=len(names) + 1,
    start=len(names),
    inside=frozenset(inside),
    at=frozenset((o, places[names[r]]) for o, r in inside),
    fits=frozenset((r, o) for o, kinds in FITS.items() for r in kinds),
    goal=goal_of(_spec(room["desc"])),
    task=room["desc"],
    dialect=OLDER if _spec(room["desc"]) is SLICE else AGENTBENCH,
  )


def _openable(room) -> set[str]:
  """Receptacles that were opened, or never seen and of an openable type."""
  return set(room["openable"]) | {
    name
    for name in room["recs"]
    if name not in room["cont"] and _type(name) in OPENABLE
  }


def _spec(desc) -> TaskSpec:
  for kind, phrases in PHRASES.items():
    for phrase in phrases:
      pattern = re.escape(phrase).replace(r"\{o\}", r"([a-z]+)")
      match = re.fullmatch(pattern.replace(r"\{r\}", r"([a-z]+)"), desc)
      if match:
        return TaskSpec(kind, match[1], match[2])
  return SLICE


def _traits(kind) -> frozenset[str]:
  unknown = frozenset() if kind in HEAVY else frozenset({"pickupable"})
  return TRAITS_OF.get(kind, unknown)


def _order(name) -> tuple[str, int]:
  kind, count = name.split()
  return f"{kind}_", -int(count)


def _type(name) -> str:
  return name.split()[0]
