"""Throughput of the asynchronous pipeline under bounds of staleness.

  python -m bench.system.pipeline --staleness=4 --max_age=4,8 --peers

The controller's own collector, admission, queue and groups, on a virtual clock;
only what takes time is simulated. Each episode has turns of log-normal length
and needs one of the `places`; the learner takes a batch, trains for `train_s`
and has the next version. `synchronous` may start nothing for the next update
(`admission.max_staleness=0`). `bench.system.layouts` compares the two on equal
devices.

The limit is that of the slower side, either the places or the learner:

  rate <= min(places / E[L], N / train_s)

with N episodes per batch of length L each; `of limit` is the rate's share of
it. Staleness is in versions, of groups.
`length` is the mean length of trained episodes over that of ended ones: below
1, the data is biased towards short tasks. `cut off` is the share of episodes
that were still played when their group went on without them: at `--deadline_s`,
or after the learner had waited `--patience` steps for the group (else it waits
as long as the group takes).

With `--peers`, another way to bound staleness: `started` takes groups in the
order in which they started (`queue.order`).

With `--tasks=5`, another table: episodes per second of four tasks, while all is
well, and while the environment of the fifth fails or hangs.
"""

import argparse
import asyncio
import dataclasses
import math
import random
import statistics
import sys
from collections.abc import Iterator

from agentrl_jax.controller.groups.admission import Admission, AdmissionLimits
from agentrl_jax.controller.groups.group import GroupLimits
from agentrl_jax.controller.groups.group_queue import (
  ANY_AGE,
  GroupQueue,
  QueueLimits,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.data.records import EpisodeSpec, Trajectory
from agentrl_jax.errors import EnvironmentFault
from bench.system import virtual_time
from bench.system.devices import Devices
from bench.system.simulated_collector import episode_of, make_collector, turn_of
from launch.reports import measured
from launch.reports.measured import Observation

WARM_UP = 5  # updates that are not counted
BROKEN = "task 0"
FAULT_S = 0.1  # from the start of an episode to its environment's failure
_TABLE = """by sigma, arm
of limit = {of_limit:.2f}
staleness, mean = {staleness_mean:.2f}
max = {staleness_max:.0f}
length = {length:.2f}
cut off = {cut_off:.1%}
"""
_BROKEN = """by sigma, max_staleness
all is well = {well:.1f}
one fails = {fails:.1f} ({fails_share:.2f})
one hangs = {hangs:.1f} ({hangs_share:.2f})
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
  """Sizes of a simulated pipeline, and its times in seconds."""

  sigma: float  # of the logarithm of a turn's length
  turn_s: float  # mean
  turns: int
  places: int  # episodes at a time
  group_size: int
  groups_per_step: int
  train_s: float
  fixed: float = 1.0  # of a step's time, see `Devices`: 1 means places alone
  max_staleness: int
  max_age: int
  patience: float | None  # None: waits for a group that is due, however long
  deadline_s: float  # of a group, from when it starts to wait for places
  groups_in_flight: int  # at most; 0: as many as staleness allows
  num_tasks: int = 1
  breaks: str = ""  # how the environment of one task does: fails or hangs
  order: str = "finished"  # in which groups are taken
  seed: int
  steps: int

  @property
  def batch(self) -> int:
    """Episodes that the learner takes at a time."""
    return self.group_size * self.groups_per_step

  @property
  def limit(self) -> float:
    """The most episodes per second of any order of things."""
    return min(
      self.places / (self.turns * self.turn_s), self.batch / self.train_s
    )

  def length_s(self, seed: int) -> float:
    """Draws the length of an episode: the sum of its turns."""
    dice = random.Random(f"{self.seed}/{seed}")
    mean_log = math.log(self.turn_s) - self.sigma**2 / 2
    return sum(
      dice.lognormvariate(mean_log, self.sigma) for _ in range(self.turns)
    )


@dataclasses.dataclass(frozen=True)
class Found:
  """Results of a simulation."""

  rate: float  # episodes per second
  others: float  # the same, without the task whose environment may break
  staleness_mean: float
  staleness_max: int
  length: float  # of trained episodes over ended ones, means
  cut_off: float  # share of episodes that their group's deadline ended


class SimulatedPlayer:
  """Takes the time of an episode, in one of the places."""

  def __init__(self, pipeline: Pipeline, admission: Admission) -> None:
    self._pipeline, self._admission = pipeline, admission
    self._devices = Devices(pipeline.places, pipeline.fixed)
    self.ended_s: list[float] = []

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """Returns an episode of one turn, by the version that it started with."""
    async with self._devices.places:
      if self._pipeline.breaks and spec.task.name == BROKEN:
        hangs = self._pipeline.breaks == "hangs"
        await asyncio.sleep(math.inf if hangs else FAULT_S)
        raise EnvironmentFault("broken, as told")
      length_s = self._pipeline.length_s(spec.seed)
      turn = turn_of(self._admission.version)
      await self._devices.decode(length_s)
    self.ended_s.append(length_s)
    return episode_of(spec, [turn])


def simulate(pipeline: Pipeline) -> Found:
  """Simulates `steps` updates after the warm-up."""
  return virtual_time.run(_simulate(pipeline))


async def _simulate(pipeline: Pipeline) -> Found:
  monitor = Monitor()
  admission = _admission(pipeline)
  queue = _queue(pipeline, monitor)
  player = SimulatedPlayer(pipeline, admission)

  collector = make_collector(
    player,
    admission,
    queue,
    monitor,
    GroupLimits(size=pipeline.group_size, deadline_s=pipeline.deadline_s),
    names=[f"task {n}" for n in range(pipeline.num_tasks)],
    seed=pipeline.seed,
    patience=pipeline.patience,
  )
  collecting = asyncio.create_task(collector.run())
  loop, began_s = asyncio.get_running_loop(), 0.0
  trained_s: list[float] = []
  num_others = 0
  for version in range(WARM_UP + pipeline.steps):
    if version == WARM_UP:
      began_s = loop.time()
      monitor.staleness.clear()
    groups = await collector.take(pipeline.groups_per_step, version=version)
    if version >= WARM_UP:
      num_others += sum(group.task.name != BROKEN for group in groups)
    trained_s += (
      pipeline.length_s(t.seed) for g in groups for t in g.trajectories
    )
    await asyncio.sleep(pipeline.train_s)
  took_s = loop.time() - began_s
  collecting.cancel()
  await asyncio.wait([collecting])
  ages, counts = monitor.staleness, monitor.tasks.values()
  return Found(
    pipeline.steps * pipeline.batch / took_s,
    num_others * pipeline.group_size / took_s,
    sum(age * n for age, n in ages.items()) / ages.total(),
    max(ages),
    statistics.fmean(trained_s) / statistics.fmean(player.ended_s),
    sum(each.late for each in counts) / sum(each.started for each in counts),
  )


def _admission(pipeline: Pipeline) -> Admission:
  """Lets groups wait for places, not for each other, unless told otherwise."""
  most = pipeline.groups_per_step * (pipeline.max_staleness + 1)
  return Admission(
    AdmissionLimits(
      max_staleness=pipeline.max_staleness,
      groups_per_step=pipeline.groups_per_step,
      max_concurrent_groups=pipeline.groups_in_flight or most,
      versions_per_step=1,
      refills_per_step=0,
    )
  )


def _queue(pipeline: Pipeline, monitor: Monitor) -> GroupQueue:
  return GroupQueue(
    QueueLimits(
      max_groups=pipeline.groups_per_step * (pipeline.max_staleness + 1),
      order=pipeline.order,
      max_age=pipeline.max_age,
      patience=pipeline.patience or 0.0,
    ),
    monitor,
  )


def broken(options: argparse.Namespace) -> Iterator[Observation]:
  """Simulates what a broken task costs the others."""
  for pipeline in _pipelines(options):
    for staleness in options.staleness:
      arm = dataclasses.replace(
        pipeline,
        max_staleness=staleness,
        max_age=max(8, staleness),
        patience=0.25,
        deadline_s=3600.0,
      )
      well, fails, hangs = (
        simulate(dataclasses.replace(arm, breaks=how)).others
        for how in ("", "fails", "hangs")
      )
      yield {
        "sigma": pipeline.sigma,
        "max_staleness": staleness,
        "seed": options.seed,
        "well": well,
        "fails": fails,
        "fails_share": fails / well,
        "hangs": hangs,
        "hangs_share": hangs / well,
      }


def observations(options: argparse.Namespace) -> Iterator[Observation]:
  """Simulates each arm at each spread."""
  for pipeline in _pipelines(options):
    arms = [("synchronous", pipeline), *_arms(pipeline, options)]
    for name, arm in arms:
      found = simulate(arm)
      yield {
        "sigma": pipeline.sigma,
        "arm": name,
        "groups_in_flight": options.groups_in_flight,
        "seed": options.seed,
        "of_limit": found.rate / pipeline.limit,
        "staleness_mean": found.staleness_mean,
        "staleness_max": found.staleness_max,
        "length": found.length,
        "cut_off": found.cut_off,
      }


def _pipelines(options: argparse.Namespace) -> Iterator[Pipeline]:
  for sigma in options.sigma:
    yield Pipeline(
      sigma=sigma,
      turn_s=0.2,
      turns=8,
      places=options.places,
      group_size=8,
      groups_per_step=32,
      train_s=options.train_s,
      max_staleness=0,
      max_age=ANY_AGE,
      patience=None,
      deadline_s=options.deadline_s,
      groups_in_flight=options.groups_in_flight,
      num_tasks=options.tasks,
      seed=options.seed,
      steps=options.steps,
    )


def _arms(
  pipeline: Pipeline, options: argparse.Namespace
) -> Iterator[tuple[str, Pipeline]]:
  for staleness in options.staleness:
    arm = dataclasses.replace(pipeline, max_staleness=staleness)
    name = f"max_staleness {staleness}"
    yield name, arm
    for age in options.max_age:
      aged = dataclasses.replace(arm, max_age=age)
      yield f"{name}, max_age {age}", aged
      for patience in options.patience:
        yield (
          f"{name}, max_age {age}, patience {patience:g}",
          dataclasses.replace(aged, patience=patience),
        )
    if options.peers:
      yield f"{name}, started", dataclasses.replace(arm, order="started")


def numbers(text: str) -> list[float]:
  """Reads an option of several numbers: 0.5,1."""
  return [float(number) for number in text.split(",")]


def counts(text: str) -> list[int]:
  """Reads an option of several whole numbers: 1,2."""
  return [int(number) for number in text.split(",")]


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--sigma", type=numbers, default=[0.0, 0.5, 1.0, 1.5])
  parser.add_argument("--staleness", type=counts, default=[1, 2, 4])
  parser.add_argument("--places", type=int, default=256)
  parser.add_argument("--train_s", type=float, default=1.6)
  parser.add_argument("--max_age", type=counts, default=[])
  parser.add_argument("--patience", type=numbers, default=[])
  parser.add_argument("--peers", action="store_true")
  parser.add_argument("--deadline_s", type=float, default=math.inf)
  parser.add_argument("--groups_in_flight", type=int, default=0)
  parser.add_argument("--steps", type=int, default=40)
  parser.add_argument("--tasks", type=int, default=1)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--output", type=measured.output, help="a CSV, added to")
  options = parser.parse_args()
  sys.stdout.write(f"simulated, not measured: {vars(options)}\n")
  simulated, words = (
    (broken, _BROKEN) if options.tasks > 1 else (observations, _TABLE)
  )
  found = list(simulated(options))
  sys.stdout.write(measured.table(found, words))
  if options.output:
    measured.keep(options.output, found)


if __name__ == "__main__":
  main()
