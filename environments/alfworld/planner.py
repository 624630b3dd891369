"""What to do next in a household, for someone who knows where everything is.

A plan is never kept: the next command follows from how things stand, so that
whatever went before, mistakes included, is made good.
"""

from collections.abc import Iterable

from environments.alfworld.engines.household import Household
from environments.alfworld.games.game import Game
from environments.alfworld.games.tasks import (
  ABLE_FOR,
  LOOK,
  TOOL_FOR,
  TWO,
  Wanted,
)

IDLE = "look"  # when nothing helps


class Planner:
  """Knows one game; asked for the next command again and again."""

  def __init__(self, game: Game, wanted: Wanted):
    self._game = game
    self._wanted = wanted

  def next_command(self, household: Household) -> str:
    """The first step of the rest of the way; `IDLE` if there is none."""
    held = household.held
    if held is None:
      return self._fetch(household)
    if not self._is_wanted(held):
      return self.put_down(household, held)
    if self._wanted.type == LOOK:
      return self._light(household)
    state = self._wanted.state
    if state and not household.is_in_state(held, state):
      return self._change(household, held, state)
    return self.put_in(household, held, self._goals(household))

  def put_down(self, household: Household, thing: int) -> str:
    """Frees the hand, of what is wanted only where it is not wanted."""
    places = range(len(self._game.receptacles))
    if self._is_wanted(thing):
      return self.put_in(
        household,
        thing,
        [r for r in places if self._type(r) != self._wanted.target],
      )
    return self.put_in(household, thing, places)

  def put_in(
    self, household: Household, thing: int, receptacles: Iterable[int]
  ) -> str:
    """Puts a thing into the nearest of some receptacles that takes it."""
    kind = self._game.things[thing].type
    fitting = [
      r for r in receptacles if (self._type(r), kind) in self._game.fits
    ]
    if not fitting:
      return IDLE
    r = min(fitting, key=lambda r: self._steps_to(household, r))
    return self._reach(household, r) or self._game.dialect.put.format(
      o=self._game.things[thing].name, r=self._game.receptacles[r].name
    )

  def take(self, household: Household, thing: int) -> str:
    """Takes a thing from where it is."""
    found = [
      r
      for r in range(len(self._game.receptacles))
      if thing in household.contents(r)
    ]
    if not found:
      return IDLE
    r = min(found, key=lambda r: self._steps_to(household, r))
    return self._reach(household, r) or (
      f"take {self._game.things[thing].name} from "
      f"{self._game.receptacles[r].name}"
    )

  def _fetch(self, household: Household) -> str:
    # Of two things, the one that lies in place already stays there.
    goals = self._goals(household) if self._wanted.type == TWO else []
    done = {o for r in goals for o in household.contents(r)}
    candidates = [
      o
      for o in range(len(self._game.things))
      if self._is_wanted(o) and o not in done
    ]
    commands = [(self._distance(household, o), o) for o in candidates]
    if not commands:
      return IDLE
    return self.take(household, min(commands)[1])

  def _light(self, household: Household) -> str:
    lamps = [
      (self._steps_to(household, r), r, o)
      for r in range(len(self._game.receptacles))
      for o in household.contents(r)
      if self._game.things[o].type == self._wanted.target
    ]
    if not lamps:
      return IDLE
    _, r, lamp = min(lamps)
    if not household.is_at(self._game.receptacles[r].location):
      return f"go to {self._game.receptacles[r].name}"
    return f"use {self._game.things[lamp].name}"

  def _change(self, household: Household, held: int, state: str) -> str:
    tools = [
      r
      for r in range(len(self._game.receptacles))
      if self._type(r) == TOOL_FOR[state]
    ]
    if not tools:
      return IDLE
    receptacle = self._game.receptacles[
      min(tools, key=lambda r: self._steps_to(household, r))
    ]
    if not household.is_at(receptacle.location):
      return f"go to {receptacle.name}"
    verb = {"isclean": "clean", "ishot": "heat", "iscool": "cool"}[state]
    return f"{verb} {self._game.things[held].name} with {receptacle.name}"

  def _goals(self, household: Household) -> list[int]:
    """Receptacles that the task means; for two things, the one begun with."""
    found = [
      r
      for r in range(len(self._game.receptacles))
      if self._type(r) == self._wanted.target
    ]
    if self._wanted.type != TWO:
      return found
    kinds = self._game.things

    def begun(r: int) -> tuple[int, bool]:
      inside = household.contents(r)
      count = sum(kinds[o].type == self._wanted.thing for o in inside)
      return count, household.is_reachable(r)

    return [max(found, key=begun)] if found else []

  def _is_wanted(self, thing: int) -> bool:
    it = self._game.things[thing]
    needed = {"pickupable"}
    if self._wanted.state:
      needed.add(ABLE_FOR[self._wanted.state])
    return it.type == self._wanted.thing and needed <= it.traits

  def _type(self, receptacle: int) -> str:
    return self._game.receptacles[receptacle].type

  def _reach(self, household: Household, r: int) -> str:
    """The next command on the way into a receptacle; "" when it is there."""
    receptacle = self._game.receptacles[r]
    if not household.is_at(receptacle.location):
      return f"go to {receptacle.name}"
    return "" if household.is_reachable(r) else f"open {receptacle.name}"

  def _steps_to(self, household: Household, r: int) -> int:
    """Commands until one can reach into a receptacle."""
    away = not household.is_at(self._game.receptacles[r].location)
    return away + (not household.is_reachable(r))

  def _distance(self, household: Household, thing: int) -> int:
    return min(
      (
        self._steps_to(household, r)
        for r in range(len(self._game.receptacles))
        if thing in household.contents(r)
      ),
      default=len(self._game.receptacles),
    )
