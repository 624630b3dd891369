"""Process 0 plays: it has the environments, engine, queue and run files."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.collector import Collector, CollectorState
from agentrl_jax.controller.cross_policy import PolicySlotChooser
from agentrl_jax.controller.group import run_group
from agentrl_jax.controller.group_queue import GroupQueue
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player, PolicyPlayer
from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.controller.waiting import LearnerWatch
from agentrl_jax.data import seeds
from agentrl_jax.data.record_file import write_groups
from agentrl_jax.data.trajectory import EpisodeSpec, Group, Task, Trajectory
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.metrics import MetricsWriter
from agentrl_jax.rollout.drivers.local import LocalDriver
from agentrl_jax.rollout.drivers.lockstep import LockstepGenerator
from launch.config.settings import Settings
from launch.processes.group import Processes
from launch.processes.group_transfer import (
  encode_groups,
  position_from_json,
  position_to_json,
)
from launch.processes.interrupts import Interrupts
from launch.report.progress import StageProgress
from launch.run.demonstrations import task_stream
from launch.run.evaluation import success_by_task
from launch.run.group_source import STAGE, words_for
from launch.serving.agents import AgentServer
from launch.serving.service import Service
from launch.storage.run_directory import RunDirectory
from launch.storage.trained_groups import TrainedGroups

_LOOK_S = 1.0  # between looks whether the run was asked to stop


class LeaderGroupSource:
  """Groups that this process plays, and shares with the others."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    settings: Settings,
    environments: Mapping[str, Environment],
    service: Service,
    run: RunDirectory,
    metrics: MetricsWriter,
    processes: Processes,
    interrupts: Interrupts,
  ) -> None:
    self._config, self._settings = config, settings
    self._environments, self._service = environments, service
    self._run, self._metrics = run, metrics
    self._processes, self._interrupts = processes, interrupts
    self._monitor = Monitor()
    self._ledger = TrainedGroups(run.root / "trained_groups.jsonl")
    self._chooser = _chooser(settings)
    # In a run that must repeat bit for bit: the engine's way to ask, and the
    # position between two updates, when nothing is in flight.
    self._waves = _waves(settings, service)
    self._agents = _agents(settings, service, config.name, self._chooser)
    self._between: dict[str, Any] = {}
    self._controller: ControllerThread | None = None
    self._taken: list[Group] = []
    self._seconds: dict[str, float] = {}
    self._begun_at = 0.0

  @contextlib.contextmanager
  def running(
    self, version: int, position: Mapping[str, Any]
  ) -> Iterator[None]:
    """Plays until the end of the context.

    What the run's files tell of versions from here on is struck out: they are
    not in the policy.
    """
    self._metrics.truncate_after(STAGE, version)
    self._ledger.truncate(version)
    steps = self._config.train.steps
    if position:
      self._chooser.restore(position["version_policy_slots"])
    collector = self._collector(
      version, position_from_json(position) if position else None
    )
    self._between = self._position(collector.snapshot())
    self._forget()
    self._service.report()  # the first step's means leave out what was before
    with (
      ControllerThread(collector) as controller,
      StageProgress(STAGE, steps, initial_step=version) as self._show,
    ):
      self._controller = controller
      with self._agents_served(controller):
        yield

  @contextlib.contextmanager
  def _agents_served(self, controller: ControllerThread) -> Iterator[None]:
    """Agents elsewhere are answered in the loop that plays."""
    if self._agents is None:
      yield
      return
    serving = contextlib.AsyncExitStack()
    listening = serving.enter_async_context(self._agents.serving())
    controller.run(listening, CALL_S)
    try:
      yield
    finally:
      controller.run(serving.aclose(), CALL_S)

  def take(self, version: int) -> list[Group] | None:
    """Waits for the groups of a batch, at most `train.batch_timeout_s`."""
    self._begun_at = time.monotonic()
    groups = self._wait(version)
    self._processes.share(
      encode_groups(groups) if groups and self._processes.count > 1 else b"",
      what=words_for(version),
    )
    self._taken = groups or []
    self._seconds["seconds/wait"] = time.monotonic() - self._begun_at
    return groups

  def position(self) -> dict[str, Any]:
    """The controller's state, in one piece."""
    if self._waves is not None:
      return self._between
    return self._position(self._running.snapshot())

  def advance(self, version: int) -> None:
    """Lets newer groups start."""
    self._forget()
    self._running.set_version(version)

  def account(
    self, version: int, after: int, report: Mapping[str, float]
  ) -> None:
    """Writes down what there was, before a checkpoint can hold it."""
    self._ledger.add(version, [group.id for group in self._taken])
    write_groups(
      self._run.trajectories(version),
      self._taken[: self._config.report.keep_groups],
    )
    spent = time.monotonic() - self._begun_at - self._seconds["seconds/wait"]
    found = {
      **report,
      **self._seconds,
      "seconds/train": spent,
      **self._running.call(self._monitor.snapshot),
      **self._service.report(),
      **(self._running.call(self._agents.report) if self._agents else {}),
      **_of(self._taken),
      **self._chooser.learn(self._taken, report),
    }
    self._metrics.write(after, found, STAGE)
    self._show.update(after, found)
    self._between = self._position(self._running.snapshot())

  @property
  def _running(self) -> ControllerThread:
    if self._controller is None:
      raise RuntimeError("groups are played within `running` only")
    return self._controller

  def _position(self, collected: CollectorState) -> dict[str, Any]:
    return {
      **position_to_json(collected),
      "version_policy_slots": self._chooser.snapshot(),
    }

  def _wait(self, version: int) -> list[Group] | None:
    deadline = time.monotonic() + self._config.train.batch_timeout_s
    number = self._settings.admission.groups_per_step
    while self._interrupts.received is None:
      groups = self._running.take_within(number, version, _LOOK_S)
      if groups is not None:
        return groups
      if time.monotonic() > deadline:
        raise DeadlineExceeded(
          f"the learner waited "
          f"train.batch_timeout_s={self._config.train.batch_timeout_s:g} s "
          f"for {number} groups to train version {version} on; look at: "
          "rollout/finished and rollout/faults of each task, and the rollout "
          "engine; an episode may be longer than this wait"
        )
    return None

  def _forget(self) -> None:
    """What the engine remembers of earlier batches is lost to a later start."""
    if self._waves is not None and self._service.driver is not None:
      self._service.driver.engine.forget()

  def _player(self) -> Player:
    if self._agents is not None:
      return self._agents.episodes
    player = PolicyPlayer(
      environments=self._environments,
      generator=self._waves or self._service.generator,
      codec=self._service.codec,
      limits=self._settings.episode,
      sampling=self._settings.sampling,
      draw_for=self._chooser.draw_for,
      waits=self._settings.waits,
    )
    return player if self._waves is None else _InWaves(player, self._waves)

  def _collector(
    self, version: int, position: CollectorState | None
  ) -> Collector:
    s = self._settings
    player = self._player()

    async def play(task: Task, group_id: str, seed: int) -> Group | None:
      return await run_group(
        task,
        player,
        s.group,
        s.retry,
        self._monitor,
        group_id=group_id,
        seed=seed,
      )

    num_pending = len(position.queued) if position else 0
    watch = LearnerWatch(self._config.train.step_timeout_s)
    collector = Collector(
      task_stream(s, self._environments, split="train", purpose=STAGE),
      play,
      GroupQueue(
        s.queue,
        self._monitor,
        versions_per_step=s.admission.versions_per_step,
        watch=watch,
      ),
      Admission(s.admission, version=version, num_pending=num_pending),
      seed=seeds.seed_of(s.seed, STAGE),
      watch=watch,
    )
    if position is not None:
      collector.restore(position)
    return collector


@dataclasses.dataclass(frozen=True)
class _InWaves:
  """A player whose episodes are waited for."""

  player: Player
  waves: LockstepGenerator

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """See `Player.play`."""
    with self.waves.playing():
      return await self.player.play(spec)


def _chooser(settings: Settings) -> PolicySlotChooser:
  return PolicySlotChooser(
    settings.cross_policy, settings.policy_slot_weights, settings.task_ids
  )


def _waves(settings: Settings, service: Service) -> LockstepGenerator | None:
  """For runs in which nothing is left to timing, by their config."""
  if settings.agents.play:  # they come when they come
    return None
  exact = not settings.admission.max_staleness and (
    settings.queue.order == "started"
  )
  if exact and isinstance(service.driver, LocalDriver):
    return LockstepGenerator(service.driver)
  return None


def _agents(
  settings: Settings, service: Service, name: str, chooser: PolicySlotChooser
) -> AgentServer | None:
  """Who plays in place of our own player, by the config."""
  if not settings.agents.play:
    return None
  return AgentServer(settings, service, name, chooser.draw_for)


def _of(groups: Sequence[Group]) -> dict[str, float]:
  """What the groups tell about the policy."""
  played = [t for group in groups for t in group.trajectories]
  policy_slots = [turn.policy_slot for t in played for turn in t.turns]
  report = success_by_task(played)
  report["reward/mean"] = sum(t.reward for t in played) / max(len(played), 1)
  report["rollout/stale_turns"] = sum(s > 0 for s in policy_slots) / max(
    len(policy_slots), 1
  )
  return report
