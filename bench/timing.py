"""Times of several programs that take turns, and their ratios."""

import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import jax

# Above either, somebody else had a share of the processors.
MAX_LOAD_BEFORE = 0.5
MAX_IDLE_FACTOR = 1.3
_STAT = pathlib.Path("/proc/stat")


@dataclasses.dataclass(frozen=True)
class Times:
  """Times one call, in seconds."""

  wall: float
  cpu: float  # of the whole process, all threads together


def times_of(function: Callable[..., object], *arguments) -> Times:
  """Times one call of a compiled function, until its result is ready."""
  wall, cpu = time.perf_counter(), time.process_time()
  jax.block_until_ready(function(*arguments))
  return Times(time.perf_counter() - wall, time.process_time() - cpu)


def in_turn(
  programs: Mapping[str, Callable[[], Times]], rounds: int
) -> dict[str, list[Times]]:
  """Runs all programs once per round, so that a slow minute hits all."""
  found: dict[str, list[Times]] = {name: [] for name in programs}
  for _ in range(rounds):
    for name, program in programs.items():
      found[name].append(program())
  return found


def milliseconds(times: Sequence[Times]) -> dict[str, float]:
  """Returns median wall and process time."""
  return {
    "wall": 1e3 * statistics.median(each.wall for each in times),
    "cpu": 1e3 * statistics.median(each.cpu for each in times),
  }


def ratio(
  slow: Sequence[Times], fast: Sequence[Times], factor: float = 1
) -> dict[str, float]:
  """Returns the speedup: median and range over the rounds."""
  ratios = [factor * a.wall / b.wall for a, b in zip(slow, fast, strict=True)]
  return {
    "median": statistics.median(ratios),
    "lowest": min(ratios),
    "highest": max(ratios),
  }


def load() -> float:
  """Returns how many processors others use now, in a second of our sleep.

  The load average of a minute, as without Linux, has the row before in it.
  """
  if not _STAT.exists():
    return os.getloadavg()[0]
  before = _busy_s()
  time.sleep(1)
  return _busy_s() - before


def _busy_s() -> float:
  """Seconds that processors have worked since the machine was started."""
  ticks = [int(word) for word in _STAT.read_text("utf-8").split()[1:9]]
  return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def contended(load_before: float, times: Mapping[str, list[Times]]) -> bool:
  """Tests if other processes used the processors; then no time counts."""
  threads = len(os.sched_getaffinity(0))
  idle_factor = max(
    statistics.median(threads * each.wall / each.cpu for each in found)
    for found in times.values()
  )
  return load_before > MAX_LOAD_BEFORE or idle_factor > MAX_IDLE_FACTOR
