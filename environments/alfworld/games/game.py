"""What an ALFWorld game is made of: receptacles, things, a goal.

Plain frozen data, whether it was read from a game file or generated. Order is
meaning: receptacles and things stand in the order of their ids in PDDL, which
is the order in which the game lists them.
"""

import dataclasses
import pathlib

# A PDDL formula: a word, or a tuple of formulas. All lower case.
Formula = str | tuple["Formula", ...]


@dataclasses.dataclass(frozen=True)
class Receptacle:
  """What holds things: "cabinet 2" is of type "cabinet"."""

  name: str
  type: str
  location: int  # where to stand; several may share one
  is_openable: bool = False
  is_open: bool = False


@dataclasses.dataclass(frozen=True)
class Thing:
  """An object, and what can be done with it."""

  name: str
  type: str
  traits: frozenset[str] = frozenset()  # of TRAITS
  states: frozenset[str] = frozenset()  # of STATES, at the beginning
  contents: tuple[int, ...] = ()  # what a bowl and its like hold


# PDDL's predicates about a thing: those that stay, and those that may change.
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


# What a held thing goes through at a receptacle of some type: the verb, the
# trait that it needs, the state that it gains, the state that it loses.
CHANGES = {
  "microwave": ("heat", "heatable", "ishot", "iscool"),
  "fridge": ("cool", "coolable", "iscool", "ishot"),
}
CLEANING = ("clean", "cleanable", "isclean", "")
KNIVES = ("knife", "butterknife")


@dataclasses.dataclass(frozen=True)
class Dialect:
  """Which version of ALFWorld's rules and words a game follows."""

  put: str = "put {o} in/on {r}"
  put_reply: str = "You put the {o} in/on the {r}."
  names_location: bool = True  # "You arrive at loc 7."; else the receptacle
  has_help: bool = False
  cleans_in: tuple[str, ...] = ("sinkbasin",)
  shows_opened: bool = True  # what is inside is told as it is opened
  opens_one: bool = False  # nothing opens while anything else is open
  uses_what_is_near: bool = False  # by `Game.at`, not by what holds it


AGENTBENCH = Dialect()  # what AgentBench's logic and our own games follow


@dataclasses.dataclass(frozen=True)
class Game:
  """One room and one goal.

  `inside` and `at` are relations, as in the real data: a thing may be in two
  receptacles at once, and be reached from a place where it is not.
  """

  receptacles: tuple[Receptacle, ...]
  things: tuple[Thing, ...]
  num_locations: int
  start: int  # location
  inside: frozenset[tuple[int, int]]  # (thing, receptacle)
  at: frozenset[tuple[int, int]]  # (thing, location)
  fits: frozenset[tuple[str, str]]  # (receptacle type, thing type)
  goal: Formula
  task: str  # as the policy is told, without the full stop
  dialect: Dialect = AGENTBENCH
  file: pathlib.Path | None = None  # where it was read
  obstacle: str = ""  # why the Python engine cannot play it, if it cannot
