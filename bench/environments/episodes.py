"""Episodes of experts with their time and memory, for `bench.environments`."""

import contextlib
import gc
import itertools
import resource
import statistics
import time
from collections.abc import Sequence

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.interface import Environment
from agentrl_jax.service.docker import engine as engines
from agentrl_jax.service.docker.orphans import OWNER_LABEL, current_owner


class Meter:
  """Plays sessions until the time is up, and records their times."""

  def __init__(self, environment: Environment, players: Environment):
    self._environment, self._players = environment, players
    self._indices = itertools.count()
    self.starts_s: list[float] = []
    self.steps_s: list[float] = []
    self.num_sessions = 0

  async def play_until(self, when: float) -> None:
    """Plays sessions one after another, at least one."""
    while True:
      await self.play()
      if time.monotonic() > when:
        return

  async def play(self) -> None:
    """Plays a session of a task that was not played before."""
    tasks = self._players.indices("train")
    index = tasks[next(self._indices) % len(tasks)]
    task = Task(self._players.name, "train", index)
    begun = time.perf_counter()
    expert = self._players.expert(task, seed=0, mistakes={})
    async with self._environment.open(task, seed=0) as session:
      step = await session.reset()
      self.starts_s.append(time.perf_counter() - begun)
      while step.status is Status.RUNNING:
        answer = expert.answer(step.messages)
        begun = time.perf_counter()
        step = await session.step(answer)
        self.steps_s.append(time.perf_counter() - begun)
    if step.reward != 1.0:
      raise AssertionError(f"the expert failed at {task}: {step}")
    self.num_sessions += 1


async def memory_per_session(
  environment: Environment, players: Environment, place: str, num_sessions: int
) -> float:
  """Measures KiB per open session; takes the last tasks, unplayed ones."""
  gc.collect()
  used_kib = resident_kib if place == "embedded" else _contained_kib
  before = used_kib()
  async with contextlib.AsyncExitStack() as stack:
    for index in players.indices("train")[-num_sessions:]:
      session = await stack.enter_async_context(
        environment.open(Task(players.name, "train", index), seed=0)
      )
      await session.reset()
    return (used_kib() - before) / num_sessions


def _contained_kib() -> float:
  """Memory of this process's containers, without the file cache."""
  total = 0
  label = f"{OWNER_LABEL}={current_owner()}"
  with engines.connect() as engine:
    for container in engine.containers.list(filters={"label": label}):
      found = container.stats(stream=False, one_shot=True)["memory_stats"]
      total += found["usage"] - found["stats"]["total_inactive_file"]
  return total / 1024


def resident_kib() -> float:
  """Resident memory of this process."""
  with open("/proc/self/statm") as file:
    pages = int(file.read().split()[1])
  return pages * resource.getpagesize() / 1024


def quantiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
  """Returns the median and the 99th percentile."""
  ordered = sorted(seconds)
  p99 = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
  return 1e3 * statistics.median(ordered), 1e3 * p99
