"""Use of the parts of a run, simulated from 1 to 4,096 rollout chips.

  python -m bench.system.scaling
  python -m bench.system.scaling --chips=64 --environment_s=600
    [--sessions=100000]

The controller's own collector, admission, queue, groups and dispatchers, on a
virtual clock; only what takes time is simulated:

  slots       rollout servers of `--server_chips` chips; an answer takes D + b P
              seconds in its slot, with b busy slots on its server
  playing     the process that plays: `--player_us` of its CPU for a turn,
              one turn at a time
  controllers of environments: `--controller_us` for a request, one at a time
              on each; each has workers of its own, and tasks are shared evenly
  places      of environments; a reply takes `--environment_s`, log-normal with
              `--sigma`, and an episode holds its place until it has ended
  learner     `--train_s` for a batch

Each row shows the share of the time in which a part was busy, the sessions that
were open at once, from their first report on, and the busiest part. If that is
far below 1, the sessions wait for environments and for admission.

With `--start_cost`, the CPU time that a dispatcher needs to start a session, by
the number of its workers.
"""

import argparse
import asyncio
import dataclasses
import math
import random
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits
from agentrl_jax.controller.groups.group import GroupLimits
from agentrl_jax.controller.groups.group_queue import (
  ANY_AGE,
  GroupQueue,
  QueueLimits,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import EpisodeSpec, Trajectory
from agentrl_jax.garbage import spare_collections
from agentrl_jax.service.controller.dispatcher import Dispatcher, dispatching
from agentrl_jax.service.controller.registry import Timers
from agentrl_jax.service.protocol.link import WorkerLink
from bench.system import virtual_time
from bench.system.simulated_collector import episode_of, make_collector, turn_of
from launch.reports import measured
from launch.reports.measured import Observation

TASK, GROUP, LONG_S = "task", 8, 1e9
_TURN = turn_of(0)
_SETTINGS = (
  "environment_s",
  "player_us",
  "controllers",
  "controller_us",
  "workers",
  "sessions",
  "max_staleness",
)
_TABLE = """by chips
sessions open = {open:,.0f}
turns/s = {turns_per_s:,.0f}
s of a step = {step_s:,.1f}
slots = {slots_busy:.2f}
playing = {playing_busy:.2f}
controllers = {controllers_busy:.2f}
places = {places_busy:.2f}
learner = {learner_busy:.2f}
busiest = {busiest}
"""
_REPORT = {"messages": [{"role": "user", "content": ""}], "status": "running"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
  """Sizes of a system, and its times in seconds."""

  chips: int
  server_chips: int
  slots: int  # of a server
  answer_s: float  # D
  prefill_s: float  # P
  turns: int  # of an episode
  environment_s: float
  sigma: float  # of the logarithm of a reply's time
  player_s: float  # 0: costs nothing
  controllers: int
  controller_s: float
  workers: int
  sessions: int  # places of all workers, and episodes in flight
  groups_per_step: int
  train_s: float
  max_staleness: int
  seed: int
  warm_up: int  # updates that are not counted
  steps: int

  @property
  def servers(self) -> int:
    """Rollout servers; the chips that are left over stay idle."""
    return max(1, self.chips // self.server_chips)


@dataclasses.dataclass(frozen=True)
class Found:
  """Results of a simulation, after the warm-up."""

  step_s: float
  turns_per_s: float
  busy: Mapping[str, float]  # share of the time, by part
  open_sessions: float  # mean
  most_open: int

  @property
  def busiest(self) -> str:
    """The part that is busiest."""
    return max(self.busy, key=lambda part: round(self.busy[part], 2))


class Serial:
  """A part that does one thing at a time, first come, first served."""

  def __init__(self) -> None:
    self._free_at = self._asked_s = 0.0

  @property
  def busy_s(self) -> float:
    """Seconds of work until now, without what still waits for its turn."""
    now = asyncio.get_running_loop().time()
    return self._asked_s - max(0.0, self._free_at - now)

  async def take(self, seconds: float) -> None:
    """Waits for its turn, and until it is done."""
    now = asyncio.get_running_loop().time()
    self._free_at = max(now, self._free_at) + seconds
    self._asked_s += seconds
    if seconds:
      await asyncio.sleep(self._free_at - now)


class Servers:
  """Slots of all rollout servers, over which answers are spread evenly."""

  def __init__(self, system: System) -> None:
    self._system = system
    self._slots = asyncio.Semaphore(system.servers * system.slots)
    self._num_busy = 0
    self.busy_s = 0.0

  async def answer(self) -> None:
    """Waits for a slot, and for the answer."""
    async with self._slots:
      self._num_busy += 1
      busy = self._num_busy / self._system.servers
      seconds = self._system.answer_s + busy * self._system.prefill_s
      await asyncio.sleep(seconds)
      self.busy_s += seconds
      self._num_busy -= 1


class SimulatedWorker(WorkerLink):
  """A worker's replies."""

  def __init__(self, system: System, address: str) -> None:
    self._dice = random.Random(f"{system.seed}/{address}")
    self._sigma, self._mean_s = system.sigma, system.environment_s

  async def ask(
    self, method: str, endpoint: str, body: Any, *, deadline_s: float
  ) -> Any:
    """See `WorkerLink.ask`."""
    if endpoint not in ("start_sample", "interact"):
      return {}
    if self._mean_s:
      mean_log = math.log(self._mean_s) - self._sigma**2 / 2
      await asyncio.sleep(self._dice.lognormvariate(mean_log, self._sigma))
    return {"env_out": _REPORT} if endpoint == "interact" else _REPORT


class SimulatedPlayer:
  """Plays episodes through the parts of a system."""

  def __init__(self, system: System, dispatchers: list[Dispatcher]) -> None:
    self._system, self._dispatchers = system, dispatchers
    self.process, self.servers = Serial(), Servers(system)
    self.controllers = [Serial() for _ in dispatchers]
    self.num_turns = self.num_open = self.most_open = 0
    self.open_s = self._changed_at = 0.0

  def note(self, change: int) -> None:
    """Counts sessions that are open, over time."""
    now = asyncio.get_running_loop().time()
    self.open_s += self.num_open * (now - self._changed_at)
    self._changed_at, self.num_open = now, self.num_open + change
    self.most_open = max(self.most_open, self.num_open)

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """Returns an episode whose turns hold nothing."""
    place = spec.task.index % len(self._dispatchers)
    dispatcher, controller = self._dispatchers[place], self.controllers[place]
    cost_s = self._system.controller_s
    await controller.take(cost_s)
    session, _ = await dispatcher.start(TASK, 0, extras={}, wait_s=LONG_S)
    self.note(1)
    for _ in range(self._system.turns):
      await self.process.take(self._system.player_s)
      await self.servers.answer()
      await controller.take(cost_s)
      await dispatcher.interact(session.id, [])
      self.num_turns += 1
    dispatcher.cancel(session.id)
    dispatcher.end_session(session.id)
    self.note(-1)
    return episode_of(spec, (_TURN,))


def simulate(system: System) -> Found:
  """Simulates `steps` updates after the warm-up."""
  return virtual_time.run(_simulate(system))


async def _simulate(system: System) -> Found:
  async with _Dispatchers(system) as dispatchers:
    player = SimulatedPlayer(system, dispatchers)
    return await _train(system, player)


class _Dispatchers:
  """Runs dispatchers whose workers are there."""

  def __init__(self, system: System) -> None:
    self._system = system
    self._workers = max(1, system.workers // system.controllers)
    # The workers send no heartbeats, and nothing expires.
    timers = Timers(**{f.name: LONG_S for f in dataclasses.fields(Timers)})
    self._running = [
      dispatching(
        timers,
        lambda address: SimulatedWorker(system, address),
        max_waiting=1 << 30,
      )
      for _ in range(system.controllers)
    ]

  async def __aenter__(self) -> list[Dispatcher]:
    dispatchers = [await each.__aenter__() for each in self._running]
    places = self._system.sessions / self._system.controllers / self._workers
    for dispatcher in dispatchers:
      for n in range(self._workers):
        dispatcher.receive_heartbeat(
          {
            "name": TASK,
            "address": f"http://worker{n}",
            "concurrency": math.ceil(places),
            "indices": [0],
          }
        )
    await asyncio.sleep(1.0)  # they list their sessions
    return dispatchers

  async def __aexit__(self, *error: object) -> None:
    for each in reversed(self._running):
      await each.__aexit__(None, None, None)


async def _train(system: System, player: SimulatedPlayer) -> Found:
  monitor = Monitor()
  admission = Admission(
    AdmissionLimits(
      max_staleness=system.max_staleness,
      groups_per_step=system.groups_per_step,
      max_concurrent_groups=max(1, system.sessions // GROUP),
      versions_per_step=1,
      refills_per_step=0,
    )
  )
  queue = GroupQueue(
    QueueLimits(
      max_groups=system.groups_per_step * (system.max_staleness + 1),
      order="finished",
      max_age=ANY_AGE,
      patience=0.0,
    ),
    monitor,
  )

  collector = make_collector(
    player,
    admission,
    queue,
    monitor,
    GroupLimits(size=GROUP, deadline_s=LONG_S),
    names=[TASK],
    seed=system.seed,
  )
  collecting = asyncio.create_task(collector.run())
  clock = asyncio.get_running_loop().time
  began_s, turns, trained_s = clock(), 0, 0.0
  before: Mapping[str, float] = {}
  for version in range(system.warm_up + system.steps):
    if version == system.warm_up:
      began_s, turns = clock(), player.num_turns
      before = _busy_s(system, player, trained_s)
    await collector.take(system.groups_per_step, version=version)
    await asyncio.sleep(system.train_s)
    trained_s += system.train_s
  took_s = clock() - began_s
  after = _busy_s(system, player, trained_s)
  collecting.cancel()
  await asyncio.wait([collecting])
  return Found(
    took_s / system.steps,
    (player.num_turns - turns) / took_s,
    {part: (after[part] - before[part]) / took_s for part in after},
    (after["places"] - before["places"]) * system.sessions / took_s,
    player.most_open,
  )


def _busy_s(
  system: System, player: SimulatedPlayer, trained_s: float
) -> dict[str, float]:
  """Returns seconds in which each part was busy, on the mean of its copies."""
  controllers = [each.busy_s for each in player.controllers]
  player.note(0)
  return {
    "slots": player.servers.busy_s / (system.servers * system.slots),
    "playing": player.process.busy_s,
    "controllers": max(controllers),
    "places": player.open_s / system.sessions,
    "learner": trained_s,
  }


async def start_cost_us(system: System) -> float:
  """Measures the CPU time of a start, with all sessions before it open."""
  async with _Dispatchers(system) as (dispatcher,):
    began_s = time.process_time()
    for _ in range(system.sessions):
      await dispatcher.start(TASK, 0, extras={}, wait_s=LONG_S)
    return 1e6 * (time.process_time() - began_s) / system.sessions


def observations(options: argparse.Namespace) -> Iterator[Observation]:
  """Simulates each number of chips."""
  for chips in options.chips:
    system = system_of(chips, options)
    found = simulate(system)
    yield {
      **{name: getattr(options, name) for name in _SETTINGS},
      "chips": chips,
      "open": found.open_sessions,
      "turns_per_s": found.turns_per_s,
      "step_s": found.step_s,
      **{f"{part}_busy": share for part, share in found.busy.items()},
      "busiest": found.busiest,
    }


def system_of(chips: int, options: argparse.Namespace) -> System:
  """Returns a system; without `--sessions` all slots can be kept busy."""
  servers = max(1, chips // options.server_chips)
  in_slot_s = options.answer_s + options.slots * options.prefill_s
  needed = servers * options.slots * (1 + options.environment_s / in_slot_s)
  sessions = options.sessions or math.ceil(1.5 * needed / GROUP) * GROUP
  return System(
    chips=chips,
    server_chips=options.server_chips,
    slots=options.slots,
    answer_s=options.answer_s,
    prefill_s=options.prefill_s,
    turns=options.turns,
    environment_s=options.environment_s,
    sigma=options.sigma,
    player_s=options.player_us / 1e6,
    controllers=options.controllers,
    controller_s=options.controller_us / 1e6,
    workers=options.workers,
    sessions=sessions,
    groups_per_step=options.groups_per_step or max(1, sessions // GROUP // 2),
    train_s=options.train_s,
    max_staleness=options.max_staleness,
    seed=options.seed,
    warm_up=options.warm_up,
    steps=options.steps,
  )


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--chips", type=_counts, default=[1, 4, 16, 64, 256, 1024, 4096])
  add("--server_chips", type=int, default=1)
  add("--slots", type=int, default=16)
  add("--answer_s", type=float, default=1.47)
  add("--prefill_s", type=float, default=0.0128)
  add("--turns", type=int, default=5)
  add("--environment_s", type=float, default=0.5)
  add("--sigma", type=float, default=0.5)
  add("--player_us", type=float, default=0.0)
  add("--controllers", type=int, default=1)
  add("--controller_us", type=float, default=0.0)
  add("--workers", type=int, default=16)
  add("--sessions", type=int, default=0, help="0: as many as slots need")
  add("--groups_per_step", type=int, default=0, help="0: half of those open")
  add("--train_s", type=float, default=0.0)
  add("--max_staleness", type=int, default=1)
  add("--seed", type=int, default=0)
  add("--warm_up", type=int, default=3)
  add("--steps", type=int, default=5)
  add("--start_cost", action="store_true")
  add("--output", type=measured.output, help="a CSV, added to")
  options = parser.parse_args()
  spare_collections()  # as a run does
  if options.start_cost:
    for workers in (10, 100, 1000):
      options.environment_s, options.sessions = 0.0, 5000
      options.workers, options.controllers = workers, 1
      cost_us = virtual_time.run(start_cost_us(system_of(1, options)))
      sys.stdout.write(f"{workers} workers: {cost_us:.0f} us a start\n")
    return
  sys.stdout.write(f"simulated, not measured: {vars(options)}\n")
  found = list(observations(options))
  sys.stdout.write(measured.table(found, _TABLE))
  if options.output:
    measured.keep(options.output, found)


def _counts(text: str) -> list[int]:
  return [int(number) for number in text.split(",")]


if __name__ == "__main__":
  main()
