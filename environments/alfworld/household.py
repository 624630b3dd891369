"""ALFWorld's household in plain Python: admissible commands and effects.

It replies as TextWorld does for ALFWorld's domain, byte for byte: tests compare
the two engines. All facts are relations between indices in the game.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import CHANGES, CLEANING, KNIVES, Game
from environments.alfworld.goal import compile_goal

NOTHING_HAPPENS = "Nothing happens."
_HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
# Descriptions of a thing in some states; the first entry that applies is used.
_CONDITIONS = (
  (("isclean", "ishot", "issliced"), "a hot and clean sliced"),
  (("isclean", "iscool", "issliced"), "a cool and clean sliced"),
  (("isclean", "issliced"), "a clean sliced"),
  (("ishot", "issliced"), "a hot sliced"),
  (("iscool", "issliced"), "a cool sliced"),
  (("isclean", "ishot"), "a hot and clean"),
  (("isclean", "iscool"), "a cool and clean"),
  (("ishot",), "a hot"),
  (("isclean",), "a clean"),
  (("iscool",), "a cold"),
)

# A verb, which names the method `_do_...`, and its arguments: indices.
Action = tuple[str, tuple[int, ...]]


class Household:
  """One play of one game.

  Raises `ConfigError` for a game whose rules or words are not known.
  """

  def __init__(self, game: Game):
    if game.unsupported:
      raise ConfigError(
        f"the game {str(game.file)!r} {game.unsupported}; leave it out of "
        "`source`"
      )
    self._game = game
    self._is_won = compile_goal(game)
    self._location = game.start
    self.held: int | None = None  # the thing in hand
    self._open = {
      r for r, receptacle in enumerate(game.receptacles) if receptacle.is_open
    }
    self._contents: list[list[int]] = [[] for _ in game.receptacles]
    for o, r in sorted(game.inside):
      self._contents[r].append(o)
    self._thing_locations = set(game.at)
    # (thing, receptacle) pairs that an action has separated. A look lists only
    # these as "next to" a receptacle, because the real engine looks for a
    # negated fact, which only actions add.
    self._separated: set[tuple[int, int]] = set()
    self._states = [set(thing.states) for thing in game.things]
    self._receptacles_at: dict[int, list[int]] = {}
    for r, receptacle in enumerate(game.receptacles):
      self._receptacles_at.setdefault(receptacle.location, []).append(r)
    self._go_commands = {
      f"go to {receptacle.name}": r
      for r, receptacle in enumerate(game.receptacles)
    }
    self._actions: dict[str, Action] = {}
    self.commands: list[str] = []  # admissible ones, sorted as text
    self._update_commands()

  @property
  def is_won(self) -> bool:
    """Tests if the goal is reached."""
    return self._is_won(self)

  @property
  def intro(self) -> str:
    """The text before the first command."""
    seen = self._look(range(len(self._game.receptacles)))
    banner = "-= Welcome to TextWorld, ALFRED! =-"
    return f"{banner}\n\n{seen}\n\nYour task is to: {self._game.task}."

  def act(self, command: str) -> str:
    """Plays a command and returns the feedback."""
    command = command.strip()
    r = self._go_commands.get(command)
    if r is not None and self._game.receptacles[r].location != self._location:
      action: Action | None = ("go", (r,))
    else:
      action = self._actions.get(command)
    if action is None:
      return NOTHING_HAPPENS
    verb, arguments = action
    reply: str = getattr(self, f"_do_{verb}")(*arguments)
    self._update_commands()
    return reply

  def contents(self, receptacle: int) -> tuple[int, ...]:
    """Things in a receptacle, open or closed."""
    return tuple(self._contents[receptacle])

  def is_inside(self, thing: int, receptacle: int) -> bool:
    return thing in self._contents[receptacle]

  def is_held(self, thing: int) -> bool:
    return self.held == thing

  def is_at(self, location: int) -> bool:
    return self._location == location

  def is_open(self, receptacle: int) -> bool:
    return receptacle in self._open

  def is_thing_at(self, thing: int, location: int) -> bool:
    return (thing, location) in self._thing_locations

  def is_in_state(self, thing: int, state: str) -> bool:
    return state in self._states[thing]

  def is_reachable(self, receptacle: int) -> bool:
    """Tests if no closed door keeps things in or out."""
    is_openable = self._game.receptacles[receptacle].is_openable
    return not is_openable or receptacle in self._open

  # Admissible commands.

  def _update_commands(self) -> None:
    self._actions = dict(self._local_actions())
    receptacles = self._game.receptacles
    go_commands = [
      text
      for text, r in self._go_commands.items()
      if receptacles[r].location != self._location
    ]
    self.commands = sorted([*self._actions, *go_commands])

  def _local_actions(self) -> Iterator[tuple[str, Action]]:
    """Yields all actions at this location, by their commands."""
    yield "look", ("look", ())
    yield "inventory", ("inventory", ())
    if self._game.dialect.has_help:
      yield "help", ("help", ())
    if self.held is not None:
      yield from self._with_held(self.held)
    for o in self._usable():
      if "toggleable" in self._game.things[o].traits:
        yield f"use {self._game.things[o].name}", ("use", (o,))
    for r in self._receptacles_here:
      yield from self._at_receptacle(r)

  @property
  def _receptacles_here(self) -> Sequence[int]:
    return self._receptacles_at.get(self._location, ())

  @property
  def _things_here(self) -> Iterator[int]:
    return (o for o, place in self._thing_locations if place == self._location)

  def _usable(self) -> Iterator[int]:
    """Yields things that a lamp switch reaches, even in closed receptacles."""
    if self._game.dialect.uses_what_is_near:
      yield from self._things_here
      return
    for r in self._receptacles_here:
      yield from self._contents[r]

  def _at_receptacle(self, r: int) -> Iterator[tuple[str, Action]]:
    receptacle, things = self._game.receptacles[r], self._game.things
    yield f"examine {receptacle.name}", ("examine_receptacle", (r,))
    if receptacle.is_openable and r in self._open:
      yield f"close {receptacle.name}", ("close", (r,))
    elif receptacle.is_openable and not (
      self._game.dialect.opens_one and self._open
    ):
      yield f"open {receptacle.name}", ("open", (r,))
    if self.held is None and self.is_reachable(r):
      for o in self._contents[r]:
        if "pickupable" in things[o].traits:
          text = f"take {things[o].name} from {receptacle.name}"
          yield text, ("take", (o, r))

  def _with_held(self, o: int) -> Iterator[tuple[str, Action]]:
    thing = self._game.things[o]
    yield f"examine {thing.name}", ("examine_thing", (o,))
    if thing.type in KNIVES:
      for other in self._things_here:
        sliced = self._game.things[other]
        if "sliceable" in sliced.traits:
          yield f"slice {sliced.name} with {thing.name}", ("slice", (other, o))
    for r in self._receptacles_here:
      yield from self._with_held_at(o, r)

  def _with_held_at(self, o: int, r: int) -> Iterator[tuple[str, Action]]:
    thing, receptacle = self._game.things[o], self._game.receptacles[r]
    dialect = self._game.dialect
    fits = (receptacle.type, thing.type) in self._game.fits
    if fits and self.is_reachable(r):
      text = dialect.put.format(o=thing.name, r=receptacle.name)
      yield text, ("put", (o, r))
    change = CHANGES.get(receptacle.type)
    if receptacle.type in dialect.cleans_in:
      change = CLEANING
    if change is not None and change[1] in thing.traits:
      text = f"{change[0]} {thing.name} with {receptacle.name}"
      yield text, ("change", (o, r))

  # Effects of actions; each method returns the feedback.

  def _do_go(self, r: int) -> str:
    self._location = self._game.receptacles[r].location
    name = self._game.receptacles[r].name
    if self._game.dialect.names_location:
      name = f"loc {self._game.num_locations - self._location}"
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
    self._separated.add((o, r))
    self._thing_locations.discard((o, self._location))
    self.held = o
    return (
      f"You pick up the {self._game.things[o].name} from the "
      f"{self._game.receptacles[r].name}."
    )

  def _do_put(self, o: int, r: int) -> str:
    if o not in self._contents[r]:
      bisect.insort(self._contents[r], o)
    self._separated.discard((o, r))
    self._thing_locations.add((o, self._location))
    self.held = None
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
    self._states[o].add("istoggled")  # the domain has no action to turn it off
    return f"You turn on the {self._game.things[o].name}."

  def _do_slice(self, o: int, knife: int) -> str:
    self._states[o].add("issliced")
    things = self._game.things
    return f"You sliced the {things[o].name} with the {things[knife].name}."

  def _do_inventory(self) -> str:
    if self.held is None:
      return "You are not carrying anything."
    return f"You are carrying: a {self._game.things[self.held].name}."

  def _do_help(self) -> str:
    return _HELP

  def _do_look(self) -> str:
    return self._look(())

  def _do_examine_receptacle(self, r: int) -> str:
    receptacle = self._game.receptacles[r]
    if receptacle.is_openable and r not in self._open:
      return f"The {receptacle.name} is closed."
    seen = self._list_things(self._contents[r])
    if receptacle.is_openable:
      return f"The {receptacle.name} is open. In it, you see {seen}."
    return f"On the {receptacle.name}, you see {seen}."

  def _do_examine_thing(self, o: int) -> str:
    thing, states = self._game.things[o], self._states[o]
    if "isreceptacleobject" in thing.traits:
      # The real engine never binds two variables to one thing, so a thing does
      # not list itself.
      seen = self._list_things(inner for inner in thing.contents if inner != o)
      return f"This is a normal {thing.name}. In it, you see {seen}."
    for required, text in _CONDITIONS:
      if states.issuperset(required):
        return f"This is {text} {thing.name}."
    if "toggleable" in thing.traits and "istoggled" in states:
      return f"This {thing.name} is on."
    if "sliceable" in thing.traits and "issliced" in states:
      return f"This is a sliced {thing.name}."
    return f"There's nothing special about {thing.name}."

  def _look(self, visible: Iterable[int]) -> str:
    """Describes this location.

    At a location without receptacles the text lists those of `visible`.
    """
    receptacles = self._game.receptacles
    if not self._receptacles_here:
      seen = _join([f"a {receptacles[r].name}" for r in visible])
      return (
        "You are in the middle of a room. Looking quickly around you, you see "
        f"{seen}."
      )
    seen = self._list_things(
      o
      for o in sorted(self._things_here)
      for r in self._receptacles_here
      if (o, r) in self._separated
    )
    facing = _join([receptacles[r].name for r in self._receptacles_here])
    return f"You are facing the {facing}. Next to it, you see {seen}."

  def _list_things(self, things: Iterable[int]) -> str:
    return _join([f"a {self._game.things[o].name}" for o in things])


def _join(names: Sequence[str]) -> str:
  """Joins to "a", "a, and b", "a, b, and c"; "nothing" for none."""
  if len(names) < 2:
    return names[0] if names else "nothing"
  return f"{', '.join(names[:-1])}, and {names[-1]}"
