"""Writes a game down for the real engine: PDDL problem, domain and grammar.

Domain and grammar are ALFWorld's own, taken from the installed package and
turned into the version that AgentBench plays.
"""

import importlib.util
import json
import pathlib
import re
from collections.abc import Iterator, Mapping

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.dialects import recognise
from environments.alfworld.games.game import AGENTBENCH, Formula, Game

_HELP_RULE = re.compile(r"\(:action help\b.*?\n\)\n", re.DOTALL)
_HELP_WORDS = re.compile(r"^action help \{.*?^\}$", re.DOTALL | re.MULTILINE)
_REWORDING = {
  '"move {o} to {r}"': '"put {o} in/on {r}"',
  "You move the {o.name} to the": "You put the {o.name} in/on the",
  "You arrive at {r.name}.": "You arrive at {lend.name}.",
}
# Words of the domain that a problem must declare, used or not.
_TYPES = {
  "rtype": {"sinkbasin", "microwave", "fridge"},
  "otype": {"knife", "butterknife"},
}


def render_game(game: Game) -> Mapping[str, str]:
  """What TextWorld loads: a generated game, or the file of a loaded one."""
  if game.file is not None:
    data = json.loads(game.file.read_text(encoding="utf-8"))
    return {
      key: data[key] for key in ("pddl_domain", "grammar", "pddl_problem")
    }
  domain, grammar = _logic()
  return {
    "pddl_domain": domain,
    "grammar": grammar.replace("UNKNOWN GOAL", json.dumps(game.task)[1:-1]),
    "pddl_problem": render_problem(game),
  }


def render_problem(game: Game) -> str:
  """The game as a PDDL problem; ids give things the names that they have."""
  receptacles = [_id(r.type, i) for i, r in enumerate(game.receptacles)]
  things = [_id(o.type, i) for i, o in enumerate(game.things)]
  places = [f"loc_bar_{i:03}" for i in range(game.num_locations)]
  types = {
    "rtype": {r.type for r in game.receptacles} | {r for r, _ in game.fits},
    "otype": {o.type for o in game.things} | {o for _, o in game.fits},
  }
  declared = ["agent1 - agent"]
  declared += [f"{place} - location" for place in places]
  declared += [f"{name} - receptacle" for name in receptacles]
  declared += [f"{name} - object" for name in things]
  for kind, used in types.items():
    declared += [f"{t}type - {kind}" for t in sorted(used | _TYPES[kind])]
  facts = _facts(game, receptacles, things, places)
  lines = [
    "(define (problem household) (:domain alfred)",
    "(:objects",
    *declared,
    ")",
    "(:init",
    *(f"({' '.join(fact)})" for fact in facts),
    ")",
    f"(:goal {_written(game.goal)}))",
  ]
  return "\n".join(lines)


def _facts(
  game: Game, receptacles: list[str], things: list[str], places: list[str]
) -> Iterator[tuple[str, ...]]:
  yield "atLocation", "agent1", places[game.start]
  for place in places:  # a place is called by number: all must be mentioned
    yield "examined", place
  for name, r in zip(receptacles, game.receptacles, strict=True):
    yield "receptacleType", name, f"{r.type}type"
    yield "receptacleAtLocation", name, places[r.location]
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
    ("objectAtLocation", things[o], places[p]) for o, p in sorted(game.at)
  )
  yield from (
    ("canContain", f"{r}type", f"{o}type") for r, o in sorted(game.fits)
  )


def _id(kind: str, position: int) -> str:
  """An id that is called by its type; a basin is one by its id's end."""
  family = kind.removesuffix("basin")
  end = "" if family == kind else f"_bar_{kind}"
  return f"{family}_bar_{position:03}{end}"


def _written(formula: Formula) -> str:
  if isinstance(formula, str):
    return formula
  return f"({' '.join(_written(part) for part in formula)})"


def _logic() -> tuple[str, str]:
  found = importlib.util.find_spec("alfworld")
  if found is None or found.origin is None:
    raise ConfigError("the real engine needs the package alfworld")
  folder = pathlib.Path(found.origin).parent / "data"
  domain = (folder / "alfred.pddl").read_text(encoding="utf-8")
  grammar = (folder / "alfred.twl2").read_text(encoding="utf-8")
  domain = _HELP_RULE.sub("", domain)
  grammar = _HELP_WORDS.sub("", grammar)
  for old, new in _REWORDING.items():
    grammar = grammar.replace(old, new)
  if recognise(domain, grammar) != AGENTBENCH:
    raise ConfigError(
      "the installed alfworld has other rules or words than 0.4.2, from which "
      "generated games are made: install alfworld==0.4.2"
    )
  return domain, grammar
