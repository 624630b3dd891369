"""Runs the cells of a sweep within its budget, and restarts those that break.

A cell is a run, and a run resumes. So the sweep keeps nothing that a kill could
lose: a cell that is finished is never started again, and one at whose folder a
process is at work, perhaps of a sweep that was killed, is waited for.
"""

import collections
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import ml_collections

from agentrl_jax.files import append_whole, reading, write_whole
from launch.reports.facts import ROOT
from launch.sweeps.budget import Budget
from launch.sweeps.cells import (
  CellState,
  last_sentence,
  log_of,
  run_of,
  state_of,
)
from launch.sweeps.plan import Cell, SweepPlan, stages_of

STARTS = "starts.jsonl"  # each start of a cell: its time, cell and cores
FAILURES = "failures.json"  # the last sentence of each cell that was given up
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
  begun_at: float  # by time.monotonic

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
    return cls(process, tuple(cores), time.monotonic())

  @property
  def status(self) -> int | None:
    """The exit status, None while it runs."""
    return self.process.poll()

  def memory_gib(self) -> float:
    """Returns the resident memory of the process and those below it."""
    return sum(_resident(pid) for pid in _family(self.process.pid)) / 2**30

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


def _family(pid: int) -> list[int]:
  """Lists a process and all below it."""
  found = [pid]
  for parent in found:
    path = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
    try:
      found += [int(word) for word in path.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
      continue
  return found


def _resident(pid: int) -> int:
  """Returns a process's resident bytes, 0 if it has ended."""
  try:
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
  except (FileNotFoundError, ProcessLookupError):
    return 0
  return int(pages) * os.sysconf("SC_PAGE_SIZE")


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
    budget: Budget,
    *,
    cores_each: int,
    say: Callable[[str], None],
  ) -> None:
    self._plan, self._folder, self._budget = plan, folder, budget
    self._cores_each = cores_each
    self._say = say
    self._free = sorted(os.sched_getaffinity(0))[: budget.cores]
    self._running: dict[Cell, CellProcess] = {}
    self._starts: collections.Counter[Cell] = collections.Counter()
    self._most_gib = 0.0  # that a cell has had
    self._stages = {cell: stages_of(config) for cell, config in configs.items()}
    self._steps = {cell: c.train.steps for cell, c in configs.items()}
    self._deadline = time.monotonic() + 3600 * budget.hours
    self.failures: dict[Cell, str] = {}
    self._finished: set[Cell] = set()
    # By name, also of cells of other starts, until they are started again.
    self._given_up = dict(read_failures(folder))

  def run(
    self,
    watch: Callable[[], None],
    *,
    is_enough: Callable[[], bool] = lambda: False,
  ) -> None:
    """Runs until no cell can be started, or until `is_enough()`.

    `watch` is called between looks. What still runs saves and ends.
    """
    try:
      while True:
        self._collect()
        self._start_some()
        watch()
        if is_enough():
          return
        if not self._running and not self._is_waiting_for_others():
          return
        if time.monotonic() > self._deadline:
          self._say("the time of the budget is up: the cells save and end")
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

  def _is_waiting_for_others(self) -> bool:
    """True while processes that this sweep has not started are at work."""
    return CellState.RUNNING in self.states().values()

  def _collect(self) -> None:
    """Frees what cells that have ended used, and judges their ends."""
    for cell, process in list(self._running.items()):
      if process.status is None:
        self._most_gib = max(self._most_gib, process.memory_gib())
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
        self.failures[cell] = self._given_up[cell.name] = sentence
        self._write_failures()
        self._say(f"{cell.name} is given up: {sentence}")
      else:
        self._say(
          f"{cell.name} ended with status {process.status} and starts again: "
          f"{sentence}"
        )
    self._make_room()

  def _make_room(self) -> None:
    """Ends the youngest cell if all take more memory than there is."""
    used = sum(each.memory_gib() for each in self._running.values())
    if used <= self._budget.memory_gib or len(self._running) < 2:
      return
    cell = max(self._running, key=lambda c: self._running[c].begun_at)
    self._say(
      f"{cell.name} waits: {used:.1f} GiB are in use, of "
      f"{self._budget.memory_gib:g}"
    )
    process = self._running.pop(cell)
    process.ask_to_end()
    process.end()
    self._starts[cell] -= 1  # it is not broken
    self._free += process.cores

  def _start_some(self) -> None:
    # Cells that a killed sweep has left use cores of the budget, too.
    others = sum(
      state is CellState.RUNNING and cell not in self._running
      for cell, state in self.states().items()
    )
    for cell in self._next():
      free = len(self._free) - others * self._cores_each
      if free < self._cores_each or not self._has_memory():
        return
      cores = [self._free.pop(0) for _ in range(self._cores_each)]
      self._note_start(cell, cores)
      if self._given_up.pop(cell.name, None) is not None:
        self._write_failures()
      self._starts[cell] += 1
      self._running[cell] = CellProcess.start(
        self._plan.arguments(cell, self._folder),
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
        if not self._has_stages(stages) and stages in being_made:
          continue
        being_made.add(stages)
        yield cell

  def _has_stages(self, stages: str) -> bool:
    return (self._folder / "stages" / stages).exists()

  def _has_memory(self) -> bool:
    """True if one more cell fits, of the size of the largest so far."""
    used = sum(each.memory_gib() for each in self._running.values())
    return not self._running or (
      used + self._most_gib <= self._budget.memory_gib
    )

  def _note_start(self, cell: Cell, cores: list[int]) -> None:
    entry = {"time_s": time.time(), "cell": cell.name, "cores": len(cores)}
    append_whole(self._folder / STARTS, json.dumps(entry) + "\n")

  def _write_failures(self) -> None:
    path = self._folder / FAILURES
    write_whole(path, json.dumps(self._given_up, indent=2))


def read_failures(folder: pathlib.Path) -> Mapping[str, str]:
  """Returns why cells were given up when they were last started, by name."""
  path = folder / FAILURES
  if not path.exists():
    return {}
  with reading(path):
    return {
      name: str(why) for name, why in json.loads(path.read_text()).items()
    }
