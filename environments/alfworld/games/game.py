"""Data of one ALFWorld game: receptacles, things and a goal.

Order has a meaning: receptacles and things are sorted by their PDDL ids, and
the game lists them in this order.
"""

import dataclasses
import pathlib

# A PDDL formula: a word, or a tuple of formulas. All lower case.
Formula = str | tuple["Formula", ...]


@dataclasses.dataclass(frozen=True)
class Receptacle:
  """Furniture that holds things: "cabinet 2" is of type "cabinet"."""

  name: str
  type: str
  location: int  # where to stand; several receptacles may share one
  is_openable: bool = False
  is_open: bool = False


@dataclasses.dataclass(frozen=True)
class Thing:
  """An object that can be moved or used; "object" in PDDL."""

  name: str
  type: str
  traits: frozenset[str] = frozenset()  # subset of TRAITS
  states: frozenset[str] = frozenset()  # subset of STATES, at the beginning
  contents: tuple[int, ...] = ()  # things inside a bowl, cup, pan, ...


# Predicates of the PDDL domain about a thing. Traits never change, states do.
TRAITS = (
  "pickupable",
  "cleanable",
  "heatable",
  "coolable",
  "toggleable",
  "sliceable",
  "isreceptacleobject",
)
STATES = ("isclean", "ishot", "iscool", "issliced", "istoggled")


# Actions on a held thing, by type of receptacle: the verb, the trait that the
# thing needs, the state that it gains, the state that it loses.
CHANGES = {
  "microwave": ("heat", "heatable", "ishot", "iscool"),
  "fridge": ("cool", "coolable", "iscool", "ishot"),
}
CLEANING = ("clean", "cleanable", "isclean", "")
KNIVES = ("knife", "butterknife")


@dataclasses.dataclass(frozen=True)
class GameDialect:
  """Version of ALFWorld's rules and texts that a game follows."""

  put: str = "put {o} in/on {r}"
  put_reply: str = "You put the {o} in/on the {r}."
  names_location: bool = True  # "You arrive at loc 7."; else the receptacle
  has_help: bool = False
  cleans_in: tuple[str, ...] = ("sinkbasin",)
  shows_opened: bool = True  # the reply to "open" lists the contents
  opens_one: bool = False  # nothing opens while anything else is open
  uses_what_is_near: bool = False  # by `Game.at`, not by `Game.inside`


AGENTBENCH = GameDialect()  # AgentBench's logic; generated games follow it


@dataclasses.dataclass(frozen=True)
class Game:
  """One room and one goal.

  `inside` and `at` are relations, as in ALFWorld's data: a thing may be in two
  receptacles at once, and be reachable from a location where it is not.
  """

  receptacles: tuple[Receptacle, ...]
  things: tuple[Thing, ...]
  num_locations: int
  start: int  # location
  inside: frozenset[tuple[int, int]]  # (thing, receptacle)
  at: frozenset[tuple[int, int]]  # (thing, location)
  fits: frozenset[tuple[str, str]]  # (receptacle type, thing type)
  goal: Formula
  task: str  # as the policy reads it, without the full stop
  dialect: GameDialect = AGENTBENCH
  file: pathlib.Path | None = None  # of a loaded game
  unsupported: str = ""  # reason that the Python engine cannot play the game
