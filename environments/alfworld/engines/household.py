"""The household itself, in plain Python: what can be done, and what it changes.

It plays as TextWorld plays ALFWorld's domain, byte for byte: tests compare the
two. Facts are relations between positions in the game.
"""

import bisect
from collections.abc import Iterable, Iterator

from agentrl_jax.errors import ConfigError
from environments.alfworld.engines.goal import compile_goal
from environments.alfworld.engines.narration import (
  HELP,
  NOTHING_HAPPENS,
  describe,
  examine_thing,
  introduce,
  look_around,
  look_at,
)
from environments.alfworld.games.game import CHANGES, CLEANING, KNIVES, Game

# (verb, positions of what it is about); see the methods `_do_...`.
Action = tuple[str, tuple[int, ...]]


class Household:
  """One play of one game.

  Raises `ConfigError` for a game that only the real engine can play.
  """

  def __init__(self, game: Game):
    if game.obstacle:
      raise ConfigError(
        f"the game {str(game.file)!r} {game.obstacle}; play it with "
        "engine='textworld'"
      )
    self._game = game
    self._is_won = compile_goal(game)
    self._place = game.start
    self._held: int | None = None
    self._open = {
      r for r, receptacle in enumerate(game.receptacles) if receptacle.is_open
    }
    self._contents: list[list[int]] = [[] for _ in game.receptacles]
    for o, r in sorted(game.inside):
      self._contents[r].append(o)
    self._at = set(game.at)
    # (thing, receptacle): only what is known to be apart lies next to it, as
    # the real engine looks for the negated fact.
    self._apart: set[tuple[int, int]] = set()
    self._states = [set(thing.states) for thing in game.things]
    self._here: dict[int, list[int]] = {}
    for r, receptacle in enumerate(game.receptacles):
      self._here.setdefault(receptacle.location, []).append(r)
    self._goes = {
      f"go to {receptacle.name}": r
      for r, receptacle in enumerate(game.receptacles)
    }
    self._actions: dict[str, Action] = {}
    self._commands: list[str] = []
    self._find_commands()

  @property
  def commands(self) -> list[str]:
    """What can be done now, sorted as text."""
    return self._commands

  @property
  def is_won(self) -> bool:
    """Whether the goal is reached."""
    return self._is_won(self)

  @property
  def intro(self) -> str:
    """What is told before the first command."""
    seen = self._look(range(len(self._game.receptacles)))
    return introduce(seen, self._game.task)

  def act(self, command: str) -> str:
    """Plays a command; what is told."""
    command = command.strip()
    r = self._goes.get(command)
    if r is not None and self._game.receptacles[r].location != self._place:
      action: Action | None = ("go", (r,))
    else:
      action = self._actions.get(command)
    if action is None:
      return NOTHING_HAPPENS
    verb, about = action
    reply: str = getattr(self, f"_do_{verb}")(*about)
    self._find_commands()
    return reply

  @property
  def held(self) -> int | None:
    """The thing in hand."""
    return self._held

  def contents(self, receptacle: int) -> tuple[int, ...]:
    """What is in a receptacle, open or not."""
    return tuple(self._contents[receptacle])

  def is_inside(self, thing: int, receptacle: int) -> bool:
    return thing in self._contents[receptacle]

  def is_held(self, thing: int) -> bool:
    return self._held == thing

  def is_at(self, location: int) -> bool:
    return self._place == location

  def is_open(self, receptacle: int) -> bool:
    return receptacle in self._open

  def is_thing_at(self, thing: int, location: int) -> bool:
    return (thing, location) in self._at

  def is_in_state(self, thing: int, state: str) -> bool:
    return state in self._states[thing]

  def is_reachable(self, receptacle: int) -> bool:
    is_openable = self._game.receptacles[receptacle].is_openable
    return not is_openable or receptacle in self._open

  # What can be done.

  def _find_commands(self) -> None:
    self._actions = dict(self._possible())
    receptacles, place = self._game.receptacles, self._place
    goes = [
      text for text, r in self._goes.items() if receptacles[r].location != place
    ]
    self._commands = sorted([*self._actions, *goes])

  def _possible(self) -> Iterator[tuple[str, Action]]:
    yield "look", ("look", ())
    yield "inventory", ("inventory", ())
    if self._game.dialect.has_help:
      yield "help", ("help", ())
    if self._held is not None:
      yield from self._with_held(self._held)
    for o in self._near():
      if "toggleable" in self._game.things[o].traits:
        yield f"use {self._game.things[o].name}", ("use", (o,))
    for r in self._here.get(self._place, ()):
      yield from self._at_receptacle(r)

  @property
  def _can_open(self) -> bool:
    return not (self._game.dialect.opens_one and self._open)

  def _near(self) -> Iterator[int]:
    """What can be switched on from here, even in a closed receptacle."""
    if self._game.dialect.uses_what_is_near:
      yield from (o for o, place in self._at if place == self._place)
      return
    for r in self._here.get(self._place, ()):
      yield from self._contents[r]

  def _at_receptacle(self, r: int) -> Iterator[tuple[str, Action]]:
    receptacle, things = self._game.receptacles[r], self._game.things
    yield f"examine {receptacle.name}", ("examine_receptacle", (r,))
    if receptacle.is_openable and r in self._open:
      yield f"close {receptacle.name}", ("close", (r,))
    elif receptacle.is_openable and self._can_open:
      yield f"open {receptacle.name}", ("open", (r,))
    if self._held is None and self.is_reachable(r):
      for o in self._contents[r]:
        if "pickupable" in things[o].traits:
          yield (
            f"take {things[o].name} from {receptacle.name}",
            ("take", (o, r)),
          )

  def _with_held(self, o: int) -> Iterator[tuple[str, Action]]:
    thing = self._game.things[o]
    yield f"examine {thing.name}", ("examine_thing", (o,))
    if thing.type in KNIVES:
      for other, place in self._at:
        sliced = self._game.things[other]
        if place == self._place and "sliceable" in sliced.traits:
          yield f"slice {sliced.name} with {thing.name}", ("slice", (other, o))
    for r in self._here.get(self._place, ()):
      yield from self._with_held_at(o, r)

  def _with_held_at(self, o: int, r: int) -> Iterator[tuple[str, Action]]:
    thing, receptacle = self._game.things[o], self._game.receptacles[r]
    dialect = self._game.dialect
    fits = (receptacle.type, thing.type) in self._game.fits
    if fits and self.is_reachable(r):
      text = dialect.put.format(o=thing.name, r=receptacle.name)
      yield text, ("put", (o, r))
    tool = CHANGES.get(receptacle.type)
    if receptacle.type in dialect.cleans_in:
      tool = CLEANING
    if tool is not None and tool[1] in thing.traits:
      text = f"{tool[0]} {thing.name} with {receptacle.name}"
      yield text, ("change", (o, r))

  # What it does.

  def _do_go(self, r: int) -> str:
    self._place = self._game.receptacles[r].location
    name = self._game.receptacles[r].name
    if self._game.dialect.names_location:
      name = f"loc {self._game.num_locations - self._place}"
    return f"You arrive at {name}. {self._do_examine_receptacle(r)}"

  def _do_open(self, r: int) -> str:
    self._open.add(r)
    name = self._game.receptacles[r].name
    if not self._game.dialect.shows_opened:
      return f"You open the {name}."
    return f"You open the {name}. {self._do_examine_receptacle(r)}"

  def _do_close(self, r: int) -> str:
    self._open.discard(r)
    return f"You close the {self._game.receptacles[r].name}."

  def _do_take(self, o: int, r: int) -> str:
    self._contents[r].remove(o)
    self._apart.add((o, r))
    self._at.discard((o, self._place))
    self._held = o
    return (
      f"You pick up the {self._game.things[o].name} from the "
      f"{self._game.receptacles[r].name}."
    )

  def _do_put(self, o: int, r: int) -> str:
    if o not in self._contents[r]:
      bisect.insort(self._contents[r], o)
    self._apart.discard((o, r))
    self._at.add((o, self._place))
    self._held = None
    return self._game.dialect.put_reply.format(
      o=self._game.things[o].name, r=self._game.receptacles[r].name
    )

  def _do_change(self, o: int, r: int) -> str:
    receptacle = self._game.receptacles[r]
    verb, _, gained, lost = CHANGES.get(receptacle.type, CLEANING)
    self._states[o].add(gained)
    self._states[o].discard(lost)
    name = self._game.things[o].name
    return f"You {verb} the {name} using the {receptacle.name}."

  def _do_use(self, o: int) -> str:
    self._states[o].add("istoggled")  # for ever: there is no turning off
    return f"You turn on the {self._game.things[o].name}."

  def _do_slice(self, o: int, knife: int) -> str:
    self._states[o].add("issliced")
    things = self._game.things
    return f"You sliced the {things[o].name} with the {things[knife].name}."

  def _do_inventory(self) -> str:
    if self._held is None:
      return "You are not carrying anything."
    return f"You are carrying: a {self._game.things[self._held].name}."

  def _do_help(self) -> str:
    return HELP

  def _do_look(self) -> str:
    return self._look(())

  def _do_examine_receptacle(self, r: int) -> str:
    return describe(
      self._game.receptacles[r],
      is_open=r in self._open,
      contents=[self._game.things[o].name for o in self._contents[r]],
    )

  def _do_examine_thing(self, o: int) -> str:
    things = self._game.things
    return examine_thing(
      things[o],
      self._states[o],
      # Two variables of the real engine are never one thing.
      [things[inner].name for inner in things[o].contents if inner != o],
    )

  def _look(self, around: Iterable[int]) -> str:
    """What is at hand; away from everything, the receptacles in `around`."""
    receptacles, things = self._game.receptacles, self._game.things
    here = self._here.get(self._place)
    if not here:
      return look_around([receptacles[r].name for r in around])
    lying = [
      things[o].name
      for o, place in sorted(self._at)
      if place == self._place
      for r in here
      if (o, r) in self._apart
    ]
    return look_at([receptacles[r].name for r in here], lying)
