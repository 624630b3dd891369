"""Scripted expert of ALFWorld: a planner, with or without mistakes.

The expert plays its own copy of the household, in the same state as the
session's, and the planner sees the whole state. A mistake spoils the answers in
one named way, so that a policy warmed up on them has something to unlearn.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from agentrl_jax.errors import ConfigError
from environments.alfworld.action_matching import match_action
from environments.alfworld.games import tasks
from environments.alfworld.games.game import CHANGES, CLEANING, Game
from environments.alfworld.household import Household
from environments.options import ALFWorldOptions

MISTAKES = ALFWorldOptions.mistakes
PER_EPISODE, PER_TURN = MISTAKES[:4], MISTAKES[4:]
SEARCH, WRONG_THING, WRONG_PLACE, FORGET = PER_EPISODE
WANDER, REPEAT, PROSE, INEXACT = PER_TURN
IDLE = "look"  # the planner's command when nothing helps


class HouseholdPlanner:
  """Finds the next command of a short solution to one game.

  It keeps no plan: every command follows from the current state, so the planner
  also recovers from mistakes.
  """

  def __init__(self, game: Game, spec: tasks.TaskSpec, household: Household):
    self._game = game
    self._spec = spec
    self._household = household

  def next_command(self) -> str:
    """Returns the first command of the rest of the solution, or `IDLE`."""
    held = self._household.held
    if held is None:
      return self._fetch()
    if not self._is_wanted(held):
      return self.put_down(held)
    if self._spec.type == tasks.LOOK:
      return self._light()
    state = self._spec.state
    if state and not self._household.is_in_state(held, state):
      return self._change(held, state)
    return self.put_in(held, self._goal_receptacles())

  def put_down(self, thing: int) -> str:
    """Frees the hand; puts a thing that the task wants off the target."""
    receptacles = range(len(self._game.receptacles))
    if self._is_wanted(thing):
      targets = self.targets()
      return self.put_in(thing, [r for r in receptacles if r not in targets])
    return self.put_in(thing, receptacles)

  def put_in(self, thing: int, receptacles: Iterable[int]) -> str:
    """Puts a thing into the nearest of some receptacles that accepts it."""
    kind = self._game.things[thing].type
    accepting = [
      r
      for r in receptacles
      if (self._game.receptacles[r].type, kind) in self._game.fits
    ]
    if not accepting:
      return IDLE
    r = min(accepting, key=self._steps_to)
    return self._reach(r) or self._game.dialect.put.format(
      o=self._game.things[thing].name, r=self._game.receptacles[r].name
    )

  def targets(self) -> list[int]:
    """Lists the receptacles of the task's target type."""
    return self._receptacles_of(self._spec.target)

  def _fetch(self) -> str:
    # A thing that already lies in its place stays there, if two are wanted.
    in_place = {
      o
      for r in (
        self._goal_receptacles() if self._spec.type == tasks.TWO else []
      )
      for o in self._household.contents(r)
    }
    candidates = [
      o
      for o in range(len(self._game.things))
      if self._is_wanted(o) and o not in in_place
    ]
    if not candidates:
      return IDLE
    thing = min(candidates, key=self._distance)
    receptacles = self._receptacles_with(thing)
    if not receptacles:
      return IDLE
    r = min(receptacles, key=self._steps_to)
    return self._reach(r) or (
      f"take {self._game.things[thing].name} from "
      f"{self._game.receptacles[r].name}"
    )

  def _light(self) -> str:
    lamps = [
      (self._steps_to(r), r, o)
      for r in range(len(self._game.receptacles))
      for o in self._household.contents(r)
      if self._game.things[o].type == self._spec.target
    ]
    if not lamps:
      return IDLE
    _, r, lamp = min(lamps)
    return self._go_to(r) or f"use {self._game.things[lamp].name}"

  def _change(self, held: int, state: str) -> str:
    tools = self._receptacles_of(tasks.TOOL_FOR[state])
    if not tools:
      return IDLE
    r = min(tools, key=self._steps_to)
    receptacle = self._game.receptacles[r]
    verb = CHANGES.get(receptacle.type, CLEANING)[0]
    return self._go_to(r) or (
      f"{verb} {self._game.things[held].name} with {receptacle.name}"
    )

  def _goal_receptacles(self) -> list[int]:
    """Lists targets; for two things, the target that holds most of them."""
    targets = self.targets()
    if self._spec.type != tasks.TWO or not targets:
      return targets

    def progress(r: int) -> tuple[int, bool]:
      contents = self._household.contents(r)
      types = [self._game.things[o].type for o in contents]
      return types.count(self._spec.thing), self._household.is_reachable(r)

    return [max(targets, key=progress)]

  def _is_wanted(self, o: int) -> bool:
    thing = self._game.things[o]
    required = {"pickupable"}
    if self._spec.state:
      required.add(tasks.TRAIT_FOR[self._spec.state])
    return thing.type == self._spec.thing and required <= thing.traits

  def _receptacles_of(self, kind: str) -> list[int]:
    return [
      r
      for r, receptacle in enumerate(self._game.receptacles)
      if receptacle.type == kind
    ]

  def _receptacles_with(self, thing: int) -> list[int]:
    return [
      r
      for r in range(len(self._game.receptacles))
      if thing in self._household.contents(r)
    ]

  def _go_to(self, r: int) -> str:
    """Returns the command that goes to a receptacle, "" if already there."""
    receptacle = self._game.receptacles[r]
    if self._household.is_at(receptacle.location):
      return ""
    return f"go to {receptacle.name}"

  def _reach(self, r: int) -> str:
    """Returns the next command to reach into a receptacle, "" if none."""
    if command := self._go_to(r):
      return command
    if self._household.is_reachable(r):
      return ""
    return f"open {self._game.receptacles[r].name}"

  def _steps_to(self, r: int) -> int:
    """Counts the commands until the hand reaches into a receptacle."""
    return bool(self._go_to(r)) + (not self._household.is_reachable(r))

  def _distance(self, thing: int) -> int:
    return min(
      map(self._steps_to, self._receptacles_with(thing)),
      default=len(self._game.receptacles),
    )


class HouseholdExpert(Expert):
  """Plays one game.

  Raises `ConfigError` for a goal that is not of ALFWorld's six task types.
  """

  def __init__(self, game: Game, *, seed: int, mistakes: Mapping[str, float]):
    require_known(mistakes, MISTAKES, where="ALFWorld's expert")
    spec = tasks.read_goal(game.goal)
    if spec is None:
      raise ConfigError(
        f"ALFWorld's expert does not know how to {game.task!r}; it knows tasks "
        "of the six types of ALFWorld alone"
      )
    self._game = game
    self._spec = spec
    self._household = Household(game)
    self._planner = HouseholdPlanner(game, spec, self._household)
    self._rng = random.Random(f"{game.task}/{game.inside!r}/{seed}")
    self._rates = mistakes
    self._pending = {m for m in PER_EPISODE if self._draws(m)}
    self._searched: set[int] = set()  # receptacles
    self._last_command = ""

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next action; its household replies as the messages do."""
    mistake = next((m for m in PER_TURN if self._draws(m)), "")
    if mistake == REPEAT and self._last_command:
      command = self._last_command
    else:
      command = self._command(mistake)
    if mistake == PROSE:
      return Message("assistant", f"I will {command}.")
    self._last_command = command
    written = _reworded(command) if mistake == INEXACT else command
    self._household.act(match_action(written, self._household.commands))
    return self.call("take_action", action=written)

  def _draws(self, mistake: str) -> bool:
    return self._rng.random() < self._rates.get(mistake, 0.0)

  def _command(self, mistake: str) -> str:
    if mistake == WANDER:
      commands = self._household.commands
      go_commands = [c for c in commands if c.startswith("go to ")]
      if go_commands:
        return self._rng.choice(go_commands)
    return (
      self._take_wrong_thing()
      or self._put_in_wrong_place()
      or self._search()
      or self._planned()
    )

  def _planned(self) -> str:
    command = self._planner.next_command()
    held = self._household.held
    if FORGET not in self._pending or held is None:
      return command
    if self._spec.type == tasks.LOOK:
      return IDLE if command.startswith("use ") else command
    if self._spec.state and self._game.things[held].type == self._spec.thing:
      return self._planner.put_in(held, self._planner.targets())
    return command

  def _take_wrong_thing(self) -> str:
    """Takes another thing, once; "" where that is not to be done or not now."""
    if WRONG_THING not in self._pending or self._household.held is not None:
      return ""
    movable = {kind for _, kind in self._game.fits} - {self._spec.thing}
    commands = [
      command
      for thing in self._game.things
      for receptacle in self._game.receptacles
      if thing.type in movable
      and (command := f"take {thing.name} from {receptacle.name}")
      in self._household.commands
    ]
    if not commands:
      return ""
    self._pending.discard(WRONG_THING)
    return self._rng.choice(commands)

  def _put_in_wrong_place(self) -> str:
    """Puts the task's thing off the target, once; "" as above."""
    held = self._household.held
    if (
      WRONG_PLACE not in self._pending
      or held is None
      or self._game.things[held].type != self._spec.thing
    ):
      return ""
    command = self._planner.put_down(held)
    if not command.startswith(("go to", "open")):
      self._pending.discard(WRONG_PLACE)
    return command

  def _search(self) -> str:
    """Looks into the next receptacle; "" once the task's thing was seen."""
    if SEARCH not in self._pending or self._household.held is not None:
      return ""
    if any(
      self._game.things[o].type == self._spec.thing
      for r in self._searched - set(self._planner.targets())
      for o in self._household.contents(r)
    ):
      return ""
    for r, receptacle in enumerate(self._game.receptacles):
      if r in self._searched:
        continue
      if not self._household.is_at(receptacle.location):
        return f"go to {receptacle.name}"
      if not self._household.is_reachable(r):
        return f"open {receptacle.name}"
      self._searched.add(r)
      return self._search()
    return ""


def _reworded(command: str) -> str:
  """Rewords a command as a policy that ignores the format would."""
  words = command.split()
  if words[0] in ("put", "move", "take"):
    return " ".join(w for w in words if not w.isdigit())
  return f"please {command}"
