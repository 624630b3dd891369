"""Runs the cells of a sweep on its cores, and restarts those that break.

A cell is a run, and a run resumes. So the sweep keeps nothing that a kill could
lose: a cell that is finished is never started again, and one at whose folder a
process is at work, perhaps of a sweep that was killed, is waited for.
"""

import collections
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import ml_collections

from launch.reports.facts import ROOT
from launch.storage.first_stages import has_first_stages
from launch.sweeps.cells import (
  CellState,
  last_sentence,
  log_of,
  run_of,
  state_of,
)
from launch.sweeps.plan import Cell, SweepPlan, stages_of

MOST_STARTS = 3  # of a cell that breaks, per start of the sweep
REFUSED = 2  # exit status of a config that starting again would not change
_POLL_S = 1.0
LARGE_PAGES = "glibc.malloc.hugetlb=1"  # madvise, where the kernel has that
_MOST_END_S = 120.0  # for a cell that is told to save and end


@dataclasses.dataclass
class CellProcess:
  """A running cell; its output goes to a file."""

  process: "subprocess.Popen[bytes]"
  cores: tuple[int, ...]

  @classmethod
  def start(
    cls, arguments: Sequence[str], log: pathlib.Path, cores: Sequence[int]
  ) -> "CellProcess":
    """Starts `launch.train` in a process group of its own, on these cores."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
      process = subprocess.Popen(
        [sys.executable, "-m", "launch.train", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the sweep to pass on
        env=_environment(),
      )
    # Before it counts them, for the sizes of its pools of threads.
    os.sched_setaffinity(process.pid, cores)
    return cls(process, tuple(cores))

  @property
  def status(self) -> int | None:
    """The exit status, None while it runs."""
    return self.process.poll()

  def ask_to_end(self) -> None:
    """Lets it save and end."""
    if self.status is None:
      self.process.send_signal(signal.SIGTERM)

  def end(self) -> None:
    """Waits until it has ended, and kills it if that takes too long."""
    try:
      self.process.wait(_MOST_END_S)
    except subprocess.TimeoutExpired:
      os.killpg(self.process.pid, signal.SIGKILL)
      self.process.wait()


def _environment() -> dict[str, str]:
  """Returns the environment of a cell.

  `launch` and `configs` are found in it, and its memory is of large pages: XLA
  on CPUs allocates and frees large buffers with every program. With small pages
  the kernel took 26 % of a five-task cell's processor time, with large ones
  12 %. A glibc before 2.35 ignores the word.
  """
  before = os.environ.get("PYTHONPATH", "")
  path = os.pathsep.join(filter(None, (str(ROOT), before)))
  return {"GLIBC_TUNABLES": LARGE_PAGES, **os.environ, "PYTHONPATH": path}


class Runner:
  """Starts, watches and ends the cells of one folder.

  Its caller holds the folder's lock, since it also writes the record: two
  sweeps would mix there.
  """

  def __init__(
    self,
    plan: SweepPlan,
    configs: Mapping[Cell, ml_collections.ConfigDict],
    folder: pathlib.Path,
    *,
    cores: int,
    cores_each: int,
    say: Callable[[str], None],
  ) -> None:
    self._plan, self._folder = plan, folder
    self._cores_each = cores_each
    self._say = say
    self._free = sorted(os.sched_getaffinity(0))[:cores]
    self._running: dict[Cell, CellProcess] = {}
    self._starts: collections.Counter[Cell] = collections.Counter()
    self._stages = {cell: stages_of(config) for cell, config in configs.items()}
    self._steps = {cell: c.train.steps for cell, c in configs.items()}
    self.failures: dict[Cell, str] = {}
    self._finished: set[Cell] = set()

  def run(self, watch: Callable[[], None]) -> None:
    """Runs until no cell can be started; `watch` is called between looks.

    What still runs if it is interrupted saves and ends.
    """
    try:
      while True:
        self._collect()
        self._start_some()
        watch()
        if CellState.RUNNING not in self.states().values():
          return
        time.sleep(_POLL_S)
    finally:
      self.stop()

  def stop(self) -> None:
    """Lets all running cells save and end; the same command goes on."""
    for each in self._running.values():
      each.ask_to_end()
    for each in self._running.values():
      each.end()
    self._running.clear()

  def states(self) -> dict[Cell, CellState]:
    """Returns the state of every cell."""
    return {cell: self._state(cell) for cell in self._plan.cells}

  def _state(self, cell: Cell) -> CellState:
    if cell in self.failures:
      return CellState.FAILED
    if cell in self._running:
      return CellState.RUNNING
    if cell in self._finished:
      return CellState.FINISHED
    state = self._read_state(cell)
    if state is CellState.FINISHED:
      self._finished.add(cell)
    return state

  def _read_state(self, cell: Cell) -> CellState:
    return state_of(run_of(self._folder, cell), self._steps[cell])

  def _collect(self) -> None:
    """Frees what cells that have ended used, and judges their ends."""
    for cell, process in list(self._running.items()):
      if process.status is None:
        continue
      del self._running[cell]
      self._free += process.cores
      state = self._read_state(cell)
      if state is CellState.FINISHED:
        self._say(f"{cell.name} is finished")
        continue
      if state is CellState.RUNNING:  # of a sweep that was killed
        self._starts[cell] -= 1
        self._say(f"{cell.name} is waited for: another process is at work")
        continue
      sentence = last_sentence(log_of(self._folder, cell))
      if process.status == REFUSED or self._starts[cell] >= MOST_STARTS:
        self.failures[cell] = sentence
        self._say(f"{cell.name} is given up: {sentence}")
      else:
        self._say(
          f"{cell.name} ended with status {process.status} and starts again: "
          f"{sentence}"
        )

  def _start_some(self) -> None:
    # Cells that a killed sweep has left use cores, too.
    others = sum(
      state is CellState.RUNNING and cell not in self._running
      for cell, state in self.states().items()
    )
    for cell in self._next():
      free = len(self._free) - others * self._cores_each
      if free < self._cores_each:
        return
      cores = [self._free.pop(0) for _ in range(self._cores_each)]
      self._starts[cell] += 1
      self._running[cell] = CellProcess.start(
        self._plan.arguments(cell, self._folder, self._first(cell)),
        log_of(self._folder, cell),
        cores,
      )
      self._say(f"{cell.name} has started")

  def _next(self) -> Iterator[Cell]:
    """Yields cells to start: those that have begun first.

    Of cells that need the same stages before RL, which are not there yet, one
    makes them and the others wait.
    """
    states = self.states()
    being_made = {
      self._stages[cell]
      for cell, state in states.items()
      if state is CellState.RUNNING
    }
    for wanted in (CellState.STOPPED, CellState.WAITING):
      for cell, state in states.items():
        stages = self._stages[cell]
        if state is not wanted:
          continue
        if not self._first(cell) and stages in being_made:
          continue
        being_made.add(stages)
        yield cell

  def _first(self, cell: Cell) -> Cell | None:
    """Returns a cell that has made the stages before RL of this one."""
    others = (
      other
      for other, stages in self._stages.items()
      if stages == self._stages[cell]
      and other != cell
      and has_first_stages(run_of(self._folder, other))
    )
    return next(others, None)
