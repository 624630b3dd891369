"""A scripted player of ALFWorld, with or without mistakes.

It plays along in a household of its own, which stands as the real one does, and
asks a planner that sees through every door. A mistake spoils its answers in one
named way, so that a policy warmed up on such play has something to unlearn.
"""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.messages import Message, ToolCall
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from agentrl_jax.errors import ConfigError
from environments.alfworld.action_matching import snap
from environments.alfworld.engines.household import Household
from environments.alfworld.games.game import Game
from environments.alfworld.games.tasks import LOOK, Wanted
from environments.alfworld.planner import IDLE, Planner

# Drawn once per attempt.
SEARCH = "search"  # does not know where things are, and looks for them
WRONG_THING = "wrong_thing"  # first takes something else
WRONG_PLACE = "wrong_place"  # first puts it where it does not belong
FORGET = "forget"  # does not clean, heat, cool or light
# Drawn every turn.
WANDER = "wander"  # goes somewhere for no reason
REPEAT = "repeat"  # says again what was said last
PROSE = "prose"  # writes the action down and calls nothing
INEXACT = "inexact"  # words the action in another way

PER_ATTEMPT = (SEARCH, WRONG_THING, WRONG_PLACE, FORGET)
PER_TURN = (WANDER, REPEAT, PROSE, INEXACT)
MISTAKES = (*PER_ATTEMPT, *PER_TURN)


class HouseholdExpert(Expert):
  """Plays one game."""

  def __init__(
    self,
    game: Game,
    wanted: Wanted,
    *,
    seed: int = 0,
    mistakes: Mapping[str, float],
  ):
    self._game = game
    self._wanted = wanted
    self._household = Household(game)
    self._planner = Planner(game, wanted)
    self._rng = random.Random(f"{game.task}/{game.inside!r}/{seed}")
    self._chances = mistakes
    self._made = {
      m for m in PER_ATTEMPT if self._rng.random() < mistakes.get(m, 0.0)
    }
    self._seen: set[int] = set()  # receptacles looked into, for a search
    self._last = ""
    self._num_calls = 0

  def answer(self, messages: Sequence[Message]) -> Message:
    """The next action; the messages are what the own household says too."""
    now = next((m for m in PER_TURN if self._draws(m)), "")
    command = self._last if now == REPEAT and self._last else self._command(now)
    if now == PROSE:
      return Message("assistant", f"I will {command}.")
    self._last = command
    written = _reworded(command) if now == INEXACT else command
    self._play(written)
    self._num_calls += 1
    call = ToolCall(
      "take_action",
      json.dumps({"action": written}),
      id=f"call_{self._num_calls}",
    )
    return Message("assistant", tool_calls=(call,))

  def _draws(self, mistake: str) -> bool:
    return self._rng.random() < self._chances.get(mistake, 0.0)

  def _command(self, now: str) -> str:
    going = [c for c in self._household.commands if c.startswith("go to ")]
    if now == WANDER and going:
      return self._rng.choice(going)
    return self._detour() or self._search() or self._planned()

  def _planned(self) -> str:
    command = self._planner.next_command(self._household)
    held = self._household.held
    if FORGET not in self._made or held is None:
      return command
    if self._wanted.type == LOOK:
      return IDLE if command.startswith("use ") else command
    if (
      self._wanted.state and self._game.things[held].type == self._wanted.thing
    ):
      return self._planner.put_in(self._household, held, self._targets())
    return command

  def _detour(self) -> str:
    """A mistake on the way, once; "" when it is done or was not drawn."""
    held = self._household.held
    if WRONG_THING in self._made and held is None:
      others = [
        f"take {thing.name} from {receptacle.name}"
        for thing in self._game.things
        for receptacle in self._game.receptacles
        if thing.type != self._wanted.thing
        and any(thing.type == fitting for _, fitting in self._game.fits)
        and f"take {thing.name} from {receptacle.name}"
        in self._household.commands
      ]
      if others:
        self._made.discard(WRONG_THING)
        return self._rng.choice(others)
    if WRONG_PLACE in self._made and held is not None:
      kind = self._game.things[held].type
      if kind == self._wanted.thing:
        command = self._planner.put_down(self._household, held)
        if not command.startswith(("go to", "open")):
          self._made.discard(WRONG_PLACE)
        return command
    return ""

  def _search(self) -> str:
    """Where a stranger would look next; "" when what is wanted is in sight."""
    if SEARCH not in self._made or self._household.held is not None:
      return ""
    if any(
      self._game.things[o].type == self._wanted.thing
      for r in self._seen - set(self._targets())
      for o in self._household.contents(r)
    ):
      return ""
    for r, receptacle in enumerate(self._game.receptacles):
      if r in self._seen:
        continue
      if not self._household.is_at(receptacle.location):
        return f"go to {receptacle.name}"
      if not self._household.is_reachable(r):
        return f"open {receptacle.name}"
      self._seen.add(r)
      return self._search()
    return ""

  def _targets(self) -> list[int]:
    return [
      r
      for r, receptacle in enumerate(self._game.receptacles)
      if receptacle.type == self._wanted.target
    ]

  def _play(self, written: str) -> None:
    self._household.act(snap(written, self._household.commands))


def expert_for(
  game: Game, wanted: Wanted | None, *, seed: int, mistakes: Mapping[str, float]
) -> HouseholdExpert:
  """A player of the game; raises `ConfigError` for what nobody plays here."""
  require_known(mistakes, MISTAKES, where="ALFWorld's expert")
  if wanted is None:
    raise ConfigError(
      f"ALFWorld's expert does not know how to {game.task!r}; it knows tasks "
      "of the six types of ALFWorld alone"
    )
  return HouseholdExpert(game, wanted, seed=seed, mistakes=mistakes)


def _reworded(command: str) -> str:
  """The same in other words, as a policy that forgets the form puts it."""
  words = command.split()
  if words[0] in ("put", "move", "take"):
    return " ".join(w for w in words if not w.isdigit())
  return f"please {command}"
