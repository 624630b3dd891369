"""Reads PDDL: nested lists of words, and a problem of ALFWorld's domain."""

import collections
import re
from collections.abc import Iterable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import (
  STATES,
  TRAITS,
  Dialect,
  Formula,
  Game,
  Receptacle,
  Thing,
)

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")

# The arguments of each fact, by predicate.
_Facts = Mapping[str, Sequence[tuple[str, ...]]]


def parse(text: str) -> Formula:
  """The first expression in `text`, in lower case, without comments."""
  stack: list[list[Formula]] = [[]]
  for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
    if token == "(":
      stack.append([])
    elif token != ")":
      stack[-1].append(token)
    elif len(stack) > 1:
      inner = tuple(stack.pop())
      stack[-1].append(inner)
    else:
      break  # a bracket too many, as some of ALFWorld's files have
    if token == ")" and len(stack) == 1:
      return stack[0][0]
  raise ConfigError(f"PDDL that lacks {len(stack) - 1} closing brackets")


def read_problem(text: str, *, task: str, dialect: Dialect) -> Game:
  """The game that a PDDL problem describes.

  Raises `ConfigError` where the problem is not of ALFWorld's domain.
  """
  facts, goal = _sections(parse(text))
  names = display_names(
    word for rows in facts.values() for row in rows for word in row
  )
  places = {
    name: place
    for place, name in enumerate(
      sorted(n for n in names if n.startswith("loc_bar_"))
    )
  }
  things = sorted(
    {
      row[0]
      for p in ("objecttype", "inreceptacle", "objectatlocation")
      for row in facts[p]
    }
  )
  receptacles = sorted({row[0] for row in facts["receptacleatlocation"]})
  obstacle = ""
  if len(facts["receptacleatlocation"]) != len(receptacles):
    obstacle = "has a receptacle in two places"
  if facts["holds"]:
    obstacle = "begins with a thing in hand"
  if len(facts["atlocation"]) != 1:
    raise ConfigError("the game does not say where the agent starts")
  thing_at = {name: o for o, name in enumerate(things)}
  receptacle_at = {name: r for r, name in enumerate(receptacles)}
  return Game(
    receptacles=_receptacles(receptacles, facts, names, places),
    things=_things(things, facts, names),
    num_locations=len(places),
    start=places[facts["atlocation"][0][1]],
    inside=frozenset(
      (thing_at[o], receptacle_at[r])
      for o, r in facts["inreceptacle"]
      if r in receptacle_at
    ),
    at=frozenset(
      (thing_at[o], places[place]) for o, place in facts["objectatlocation"]
    ),
    fits=frozenset((_kind(r), _kind(o)) for r, o in facts["cancontain"]),
    goal=goal,
    task=task,
    dialect=dialect,
    obstacle=obstacle,
  )


def display_names(ids: Iterable[str]) -> dict[str, str]:
  """What things are called: "mug 2" for mug_bar__plus_01_dot_20_bar_...

  Numbers go down along the sorted ids; a basin is one by its id's end.
  """
  kinds = {name: _family(name) for name in sorted(set(ids)) if "_bar_" in name}
  left = collections.Counter(kinds.values())
  names = {}
  for name, kind in kinds.items():
    names[name] = f"{kind} {left[kind]}"
    left[kind] -= 1
  return names


def _family(name: str) -> str:
  family = name.split("_bar_", 1)[0]
  return f"{family}basin" if "basin" in name else family


def _kind(name: str) -> str:
  """ "cabinet" for CabinetType."""
  return name.removesuffix("type")


def _sections(problem: Formula) -> tuple[_Facts, Formula]:
  facts: dict[str, list[tuple[str, ...]]] = collections.defaultdict(list)
  goal: Formula = ()
  for section in problem:
    if section[:1] == (":init",):
      for fact in dict.fromkeys(section[1:]):  # some are said twice
        if isinstance(fact, tuple) and fact[0] != "=":
          facts[str(fact[0])].append(tuple(str(word) for word in fact[1:]))
    elif section[:1] == (":goal",):
      goal = section[1]
  if not facts["receptacleatlocation"] or not goal:
    raise ConfigError(
      "a PDDL problem without receptacles or without a goal is no ALFWorld game"
    )
  return facts, goal


def _receptacles(
  ids: Sequence[str],
  facts: _Facts,
  names: Mapping[str, str],
  places: Mapping[str, int],
) -> tuple[Receptacle, ...]:
  types = _pairs(facts["receptacletype"])
  at = _pairs(facts["receptacleatlocation"])
  openable = {row[0] for row in facts["openable"]}
  opened = {row[0] for row in facts["opened"]}
  return tuple(
    Receptacle(
      name=names[name],
      type=_kind(types.get(name, "")),
      location=places[at[name]],
      is_openable=name in openable,
      is_open=name in opened,
    )
    for name in ids
  )


def _things(
  ids: Sequence[str], facts: _Facts, names: Mapping[str, str]
) -> tuple[Thing, ...]:
  types = _pairs(facts["objecttype"])
  traits, states = (
    {
      name: frozenset(p for p in predicates if (name,) in facts[p])
      for name in ids
    }
    for predicates in (TRAITS, STATES)
  )
  position = {name: o for o, name in enumerate(ids)}
  contents: dict[str, list[int]] = collections.defaultdict(list)
  for inner, outer in sorted(facts["inreceptacleobject"]):
    contents[outer].append(position[inner])
  return tuple(
    Thing(
      name=names[name],
      type=_kind(types.get(name, "")),
      traits=traits[name],
      states=states[name],
      contents=tuple(contents[name]),
    )
    for name in ids
  )


def _pairs(rows: Iterable[tuple[str, ...]]) -> dict[str, str]:
  return {name: value for name, value in rows}
