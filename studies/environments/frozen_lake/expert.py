"""Scripted expert of FrozenLake, with or without mistakes."""

from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert
from studies.environments.frozen_lake.grid import (
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
  BROKEN_JSON,
  "unknown_direction",  # moves north, south, west or east
)
_OTHER_NAMES = {"left": "west", "down": "south", "right": "east", "up": "north"}


class Walker(ErringExpert):
  """Takes a shortest way around the holes, from wherever it stands.

  Mistakes are drawn in every turn.
  """

  def __init__(self, *, seed: int, mistakes: Mapping[str, float]):
    super().__init__(
      seed=seed, mistakes=mistakes, known=MISTAKES, where="FrozenLake's expert"
    )
    self._grid: Grid | None = None

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    # After an error the player stands where it stood.
    self._grid = read(messages[-1].content) or self._grid
    move = best_move(self._grid) if self._grid else "down"
    if self._grid and self.draws("ignore_holes"):
      move = best_move(self._grid, lambda grid: shortest_way(grid, avoid=""))
    if self.draws("stray"):
      move = self.rng.choice([*MOVES])
    if self.draws("no_call"):
      return Message("assistant", f"I go {move}.")
    if self.draws("unknown_direction"):
      move = _OTHER_NAMES[move]
    return self.erring_call("move", {"direction": move})
