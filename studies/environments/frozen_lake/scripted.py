"""Scripted policies: walks that hardly look, and one that plans."""

import functools
from collections.abc import Sequence

from agentrl_jax.data.records import Message, Tool
from agentrl_jax.env.scripted import (
  Constant,
  RandomCall,
  ScriptedPolicies,
  ScriptedPolicy,
)
from studies.environments.frozen_lake.grid import (
  HOLE,
  MOVES,
  Grid,
  best_move,
  cell_after,
  read,
)


class _Reader(ScriptedPolicy):
  """Base of walkers that read the latest lake."""

  def answer(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> Message:
    """Moves by the latest observation."""
    grids = [grid for m in messages if (grid := read(m.content))]
    return self.call("move", direction=self.move(grids[-1]))

  def move(self, grid: Grid) -> str:
    """Returns a direction."""
    raise NotImplementedError


class DownThenRight(_Reader):
  """Walks along the edge, whatever is there."""

  def move(self, grid: Grid) -> str:
    """Goes down, then right."""
    return "down" if self.num_calls < len(grid) - 1 else "right"


class NextCell(_Reader):
  """Goes right or down, where the next cell is no hole."""

  def move(self, grid: Grid) -> str:
    """Looks one cell ahead."""
    moves = [*MOVES]
    self.rng.shuffle(moves)
    moves.sort(key=lambda move: move not in ("right", "down"))
    return next((m for m in moves if cell_after(grid, m) != HOLE), "left")


class Planner(_Reader):
  """Takes a shortest way."""

  def move(self, grid: Grid) -> str:
    """Plans anew in every turn."""
    return best_move(grid)


POLICIES: ScriptedPolicies = {
  "constant": functools.partial(
    Constant, tool="move", arguments={"direction": "down"}
  ),
  "random": RandomCall,
  "down_then_right": DownThenRight,
  "next_cell": NextCell,
  "planner": Planner,
}
