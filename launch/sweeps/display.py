"""Progress of all cells of a sweep, in one table or in lines of a log."""

import collections
import pathlib
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launch.reports.numbers import duration, stage_name
from launch.sweeps.cells import CellState, Progress, progress_of, run_of
from launch.sweeps.plan import Cell

LINE_EVERY_S = 30.0  # without a terminal
_MOST_ROWS = 20  # of cells that run or failed


class SweepDisplay:
  """Shows the cells that run, and how many are in each state."""

  def __init__(
    self, console: Console, folder: pathlib.Path, steps: Mapping[Cell, int]
  ) -> None:
    """`steps` has the number of updates that each cell makes."""
    self._console, self._folder, self._steps = console, folder, steps
    self._begun_at = time.monotonic()
    self._line_at = 0.0
    self._states: Mapping[Cell, CellState] = {}
    self._live: Live | None = None

  def __enter__(self) -> Self:
    if self._console.is_terminal:
      self._live = Live(
        get_renderable=self.render, console=self._console, refresh_per_second=1
      )
      self._live.start()
    return self

  def __exit__(self, *error: object) -> None:
    if self._live:
      self._live.stop()

  def show(self, states: Mapping[Cell, CellState]) -> None:
    """Takes the states; prints a line now and then without a terminal."""
    self._states = states
    if self._live is None and time.monotonic() >= self._line_at:
      self._line_at = time.monotonic() + LINE_EVERY_S
      self.say(self.line())

  def say(self, text: str) -> None:
    """Prints a line above the table."""
    self._console.print(text, markup=False, highlight=False, soft_wrap=True)

  def line(self) -> str:
    """Renders the counts, and each running cell, in one line."""
    running = [
      f"{cell.name} {self._where(cell, self._progress(cell))}"
      for cell, state in self._states.items()
      if state is CellState.RUNNING
    ]
    return " | ".join([self._head(), *running])

  def render(self) -> RenderableType:
    """Renders the counts, and a table of cells that run or failed."""
    table = Table("cell", "state", "stage", "reward", box=None)
    shown = [
      (cell, state)
      for cell, state in self._states.items()
      if state in (CellState.RUNNING, CellState.FAILED, CellState.STOPPED)
    ]
    for cell, state in shown[:_MOST_ROWS]:
      progress = self._progress(cell)
      reward = progress.reward if progress else None
      table.add_row(
        cell.name,
        state.value,
        self._where(cell, progress),
        "" if reward is None else f"{reward:.2f}",
      )
    return Group(Text(self._head(), style="bold"), table)

  def _head(self) -> str:
    counts = collections.Counter(self._states.values())
    parts = [f"{counts[state]} {state}" for state in CellState if counts[state]]
    spent = duration(time.monotonic() - self._begun_at)
    return f"{len(self._states)} cells: {', '.join(parts)}; {spent} gone"

  def _progress(self, cell: Cell) -> Progress | None:
    return progress_of(run_of(self._folder, cell))

  def _where(self, cell: Cell, progress: Progress | None) -> str:
    if progress is None:
      return "starts"
    if progress.stage == "rl":
      return f"RL {progress.step}/{self._steps[cell]}"
    return f"{stage_name(progress.stage)} {progress.step}"
