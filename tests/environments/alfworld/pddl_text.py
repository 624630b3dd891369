"""Writes games as ALFWorld's PDDL problems."""

from collections.abc import Iterator

from environments.alfworld.games.game import Formula, Game

# Types that the domain mentions: a problem must declare them, used or not.
_DOMAIN_TYPES = {
  "rtype": {"sinkbasin", "microwave", "fridge"},
  "otype": {"knife", "butterknife"},
}


def render_problem(game: Game) -> str:
  """Writes the game as a PDDL problem, with ids that keep all names."""
  receptacles = [_id(r.type, i) for i, r in enumerate(game.receptacles)]
  things = [_id(o.type, i) for i, o in enumerate(game.things)]
  locations = [f"loc_bar_{i:03}" for i in range(game.num_locations)]
  types = {
    "rtype": {r.type for r in game.receptacles} | {r for r, _ in game.fits},
    "otype": {o.type for o in game.things} | {o for _, o in game.fits},
  }
  declared = ["agent1 - agent"]
  declared += [f"{location} - location" for location in locations]
  declared += [f"{name} - receptacle" for name in receptacles]
  declared += [f"{name} - object" for name in things]
  for kind, used in types.items():
    declared += [
      f"{name}type - {kind}" for name in sorted(used | _DOMAIN_TYPES[kind])
    ]
  facts = _initial_facts(game, receptacles, things, locations)
  lines = [
    "(define (problem household) (:domain alfred)",
    "(:objects",
    *declared,
    ")",
    "(:init",
    *(f"({' '.join(fact)})" for fact in facts),
    ")",
    f"(:goal {_render(game.goal)}))",
  ]
  return "\n".join(lines)


def _initial_facts(
  game: Game, receptacles: list[str], things: list[str], locations: list[str]
) -> Iterator[tuple[str, ...]]:
  yield "atLocation", "agent1", locations[game.start]
  # A location's name is a number that counts the mentioned ids: mention all.
  for location in locations:
    yield "examined", location
  for name, r in zip(receptacles, game.receptacles, strict=True):
    yield "receptacleType", name, f"{r.type}type"
    yield "receptacleAtLocation", name, locations[r.location]
    flags = {"openable": r.is_openable, "opened": r.is_open}
    yield from ((flag, name) for flag, is_set in flags.items() if is_set)
  for name, o in zip(things, game.things, strict=True):
    yield "objectType", name, f"{o.type}type"
    yield from ((fact, name) for fact in sorted(o.traits | o.states))
    yield from (("inReceptacleObject", things[x], name) for x in o.contents)
  yield from (
    ("inReceptacle", things[o], receptacles[r]) for o, r in sorted(game.inside)
  )
  yield from (
    ("objectAtLocation", things[o], locations[p]) for o, p in sorted(game.at)
  )
  yield from (
    ("canContain", f"{r}type", f"{o}type") for r, o in sorted(game.fits)
  )


def _id(kind: str, index: int) -> str:
  """Makes an id from which `display_names` reads the type."""
  family = kind.removesuffix("basin")
  suffix = "" if family == kind else f"_bar_{kind}"
  return f"{family}_bar_{index:03}{suffix}"


def _render(formula: Formula) -> str:
  if isinstance(formula, str):
    return formula
  return f"({' '.join(_render(part) for part in formula)})"
