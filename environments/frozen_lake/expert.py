"""Scripted expert of FrozenLake, with or without mistakes."""

import json
import random
from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.interface import Expert
from agentrl_jax.env.mistakes import require_known
from environments.frozen_lake.grid import (
  MOVES,
  Grid,
  best_move,
  read,
  shortest_way,
)

MISTAKES = (
  "stray",  # moves in a random direction
  "ignore_holes",  # takes the shortest way as if holes were ice
  "no_call",  # writes the direction as text and calls no tool
  "broken_json",  # the closing brace of a call is missing
  "unknown_direction",  # moves north, south, west or east
)
_OTHER_NAMES = {"left": "west", "down": "south", "right": "east", "up": "north"}


class Walker(Expert):
  """Takes a shortest way around the holes, from wherever it stands.

  Mistakes are drawn in every turn.
  """

  def __init__(self, *, seed: int, mistakes: Mapping[str, float]):
    require_known(mistakes, MISTAKES, where="FrozenLake's expert")
    self._mistakes = mistakes
    self._rng = random.Random(seed)
    self._grid: Grid | None = None

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    # After an error the player stands where it stood.
    self._grid = read(messages[-1].content) or self._grid
    move = best_move(self._grid) if self._grid else "down"
    if self._grid and self._draws("ignore_holes"):
      move = best_move(self._grid, lambda grid: shortest_way(grid, avoid=""))
    if self._draws("stray"):
      move = self._rng.choice([*MOVES])
    if self._draws("no_call"):
      return Message("assistant", f"I go {move}.")
    if self._draws("unknown_direction"):
      move = _OTHER_NAMES[move]
    text = json.dumps({"direction": move})
    if self._draws("broken_json"):
      text = text[:-1]
    return Message("assistant", tool_calls=(self.write_call("move", text),))

  def _draws(self, mistake: str) -> bool:
    return self._rng.random() < self._mistakes.get(mistake, 0.0)
