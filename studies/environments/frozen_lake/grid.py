"""The lake as text, and shortest ways over it.

Pure functions, which the expert and scripted policies share: they read what a
policy reads, a line per row and a space between two cells.
"""

import collections
from collections.abc import Callable, Mapping, Sequence

PLAYER, ICE, HOLE, GOAL = "P", "_", "O", "G"
# Steps in row and column, in the order of Gymnasium's actions.
MOVES: Mapping[str, tuple[int, int]] = {
  "left": (0, -1),
  "down": (1, 0),
  "right": (0, 1),
  "up": (-1, 0),
}

Grid = tuple[tuple[str, ...], ...]
Place = tuple[int, int]  # row, column


def draw(lake: Sequence[str], player: Place) -> str:
  """Returns the text of a lake in Gymnasium's letters (S, F, H, G)."""
  letters = {"S": ICE, "F": ICE, "H": HOLE, "G": GOAL}
  rows = [[letters[letter] for letter in row] for row in lake]
  rows[player[0]][player[1]] = PLAYER
  return "\n".join(" ".join(row) for row in rows)


def read(text: str) -> Grid | None:
  """Returns the grid at the end of a text; None without a player."""
  cells = {PLAYER, ICE, HOLE, GOAL}
  rows: list[tuple[str, ...]] = []
  for line in reversed(text.splitlines()):
    row = tuple(line.split(" "))
    if not set(row) <= cells or (rows and len(row) != len(rows[0])):
      break
    rows.insert(0, row)
  grid = tuple(rows)
  return grid if any(PLAYER in row for row in grid) else None


def find(grid: Grid, cell: str) -> Place | None:
  """Returns the first place with this cell, or None."""
  for row, cells in enumerate(grid):
    if cell in cells:
      return row, cells.index(cell)
  return None


def shortest_way(grid: Grid, *, avoid: str = HOLE) -> list[str]:
  """Returns the moves of a shortest way from the player to the goal.

  Of equally short ways, the one whose first moves come first in `MOVES`. Empty
  if there is no way, or if the player stands on the goal.

  Args:
    grid: has a player.
    avoid: cells that the way must not touch; "" walks over holes.
  """
  start, goal = find(grid, PLAYER), find(grid, GOAL)
  assert start is not None
  ways: dict[Place, list[str]] = {start: []}
  queue = collections.deque([start])
  while queue:
    place = queue.popleft()
    if place == goal:
      return ways[place]
    for name in MOVES:
      beside = neighbour(grid, place, name)
      if beside not in ways and grid[beside[0]][beside[1]] not in [*avoid]:
        ways[beside] = [*ways[place], name]
        queue.append(beside)
  return []


def neighbour(grid: Grid, place: Place, move: str) -> Place:
  """Returns where a move leads; the place itself at the edge."""
  row, column = (x + d for x, d in zip(place, MOVES[move], strict=True))
  inside = 0 <= row < len(grid) and 0 <= column < len(grid[0])
  return (row, column) if inside else place


def cell_after(grid: Grid, move: str) -> str:
  """Returns the cell to which a move of the player leads."""
  start = find(grid, PLAYER)
  assert start is not None
  row, column = neighbour(grid, start, move)
  return grid[row][column]


def best_move(
  grid: Grid, way: Callable[[Grid], list[str]] = shortest_way
) -> str:
  """Returns the first move of a way, or one that falls into no hole."""
  if moves := way(grid):
    return moves[0]
  return next((m for m in MOVES if cell_after(grid, m) != HOLE), "left")
