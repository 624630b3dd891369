"""Progress of a sweep, in a line now and then."""

import collections
import pathlib
import time
from collections.abc import Mapping

from rich.console import Console

from launch.reports.numbers import duration
from launch.sweeps.cells import CellState, progress_of, run_of
from launch.sweeps.plan import Cell

LINE_EVERY_S = 30.0


class SweepDisplay:
  """Says how many cells are in each state, and where the running ones are."""

  def __init__(self, console: Console, folder: pathlib.Path) -> None:
    self._console, self._folder = console, folder
    self._begun_at = self._line_at = time.monotonic()

  def show(self, states: Mapping[Cell, CellState]) -> None:
    """Prints the states, if the last line is some time ago."""
    now = time.monotonic()
    if now < self._line_at:
      return
    self._line_at = now + LINE_EVERY_S
    counts = collections.Counter(states.values())
    parts = [f"{counts[state]} {state}" for state in CellState if counts[state]]
    spent = duration(now - self._begun_at)
    running = [
      f" | {cell.name} {progress_of(run_of(self._folder, cell))}"
      for cell, state in states.items()
      if state is CellState.RUNNING
    ]
    self.say(
      f"{len(states)} cells: {', '.join(parts)}; {spent} gone{''.join(running)}"
    )

  def say(self, text: str) -> None:
    """Prints a line."""
    self._console.print(text, markup=False, highlight=False, soft_wrap=True)
