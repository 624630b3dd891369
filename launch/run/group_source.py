"""Sources of the learner's groups, and the record of the groups it used.

Process 0 plays the groups; the other learner processes receive the groups of
every batch, so that all of them compute the same update.
"""

import abc
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_jax.controller.cross_policy import slot_successes
from agentrl_jax.controller.groups.admission import Admission
from agentrl_jax.controller.groups.breaker import Breakers
from agentrl_jax.controller.groups.collector import Collector, CollectorState
from agentrl_jax.controller.groups.group import run_group
from agentrl_jax.controller.groups.group_queue import GroupQueue
from agentrl_jax.controller.groups.overdue import OverdueGroups
from agentrl_jax.controller.groups.timers import GroupTimers
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import Player, PolicyPlayer
from agentrl_jax.controller.thread import CALL_S, ControllerThread
from agentrl_jax.controller.waiting import LearnerWatch
from agentrl_jax.data.record_file import (
  group_from_json,
  group_to_json,
  write_groups,
)
from agentrl_jax.data.records import (
  EpisodeSpec,
  Group,
  Task,
  Trajectory,
  seed_of,
)
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import DeadlineExceeded
from agentrl_jax.files import append_whole, reading, write_whole, writing
from agentrl_jax.garbage import spared_collections
from agentrl_jax.metrics import MetricsWriter
from agentrl_jax.rollout.drivers.driver import LocalDriver
from agentrl_jax.rollout.drivers.lockstep import LockstepGenerator
from agentrl_jax.train.advantages import shaped_reward
from agentrl_jax.train.collapse.answers import (
  answer_metrics,
  count_answers,
  episode_metrics,
)
from agentrl_jax.train.compared import LearnedTurns
from launch.config.settings import Settings
from launch.processes.fault_log import FILE as FAULTS
from launch.processes.fault_log import FaultLog
from launch.processes.group import Processes
from launch.processes.group_bytes import decode_groups, encode_groups
from launch.processes.stacks import FILE as STACKS
from launch.processes.stacks import write_stacks
from launch.reports.progress import StageProgress
from launch.run.context import RunContext
from launch.run.environments import (
  require_information,
  tasks_during,
  training_stream,
)
from launch.run.evaluation import POLL_S, Serving, Validation, success_by_task
from launch.run.kept_groups import KeptGroups
from launch.serving.agents import AgentServer
from launch.serving.service import Service

_log = logging.getLogger(__name__)

STAGE = "rl"
_NEEDED, _BEST = "versions that may be the best", "the best version"


class GroupSource(abc.ABC):
  """Supplies groups to the learner, the same in any process.

  By default nothing is started, kept or recorded: process 0 alone does that.
  """

  @contextlib.contextmanager
  def running(
    self, version: int, position: Mapping[str, Any]
  ) -> Iterator[None]:
    """Resumes from a position; whatever happens within, it ends."""
    del version, position
    yield

  @abc.abstractmethod
  def take(self, version: int) -> list[Group] | None:
    """Waits for the groups of a batch; None if the run was asked to stop."""

  def position(self) -> dict[str, Any]:
    """Returns the state that `running` resumes from, as JSON values."""
    return {}

  def account(  # noqa: B027
    self,
    version: int,
    after: int,
    report: Mapping[str, float],
    learned: LearnedTurns | None = None,
  ) -> None:
    """Records that the groups taken for `version` made version `after`.

    `learned` is what the learner computed of them, to be kept beside them.
    """

  def alarm(  # noqa: B027
    self, version: int, sentence: str, *, is_note: bool
  ) -> None:
    """Tells and records an alarm that begins at `version`, or a note."""

  def advance(self, version: int) -> None:  # noqa: B027
    """Lets newer groups start, since the policy is published."""

  def finish(self) -> None:  # noqa: B027
    """Ends what belongs to the training, after `running` was left."""

  def needed_versions(self) -> list[int]:
    """Returns versions of which one may be the best, in all processes."""
    raise NotImplementedError

  def best_version(self) -> int | None:
    """Returns the version to end with; None: the last. In all processes."""
    raise NotImplementedError


class FollowerGroupSource(GroupSource):
  """Receives the groups that process 0 plays, in any other process."""

  def __init__(self, processes: Processes) -> None:
    self._processes = processes

  def take(self, version: int) -> list[Group] | None:
    """Waits until process 0 has a batch or was asked to stop."""
    batch = self._processes.broadcast(what=wait_name(version))
    return decode_groups(batch) if batch else None

  def needed_versions(self) -> list[int]:
    """Waits for process 0's list."""
    return list(self._processes.share_json(what=_NEEDED))

  def best_version(self) -> int | None:
    """Waits for process 0's choice."""
    best = self._processes.share_json(what=_BEST)
    return None if best is None else int(best)


def wait_name(version: int) -> str:
  """Returns what the other processes wait for, for messages."""
  return f"the groups to train version {version} on"


class LeaderGroupSource(GroupSource):
  """Plays groups in process 0, and shares them with the others."""

  def __init__(
    self,
    context: RunContext,
    environments: Mapping[str, Environment],
    service: Service,
    metrics: MetricsWriter,
  ) -> None:
    self._config, self._settings = context.config, context.settings
    self._environments, self._service = environments, service
    self._run, self._metrics = context.folder, metrics
    self._processes, self._interrupts = context.processes, context.interrupts
    self._monitor = Monitor()
    if self._settings.advantage.informs_critic:
      require_information(environments)
    self._stream = training_stream(self._settings, environments, purpose=STAGE)
    self._trained_groups = TrainedGroups(
      self._run.root / "trained_groups.jsonl"
    )
    self._kept_groups = KeptGroups(
      self._config.report.keep_groups, seed=self._settings.seed
    )
    self._faults = FaultLog(self._run.root / FAULTS)
    # In a run that must repeat bit for bit: the engine's way to ask, and the
    # position between two updates, when nothing is in flight.
    self._lockstep = _make_lockstep(self._settings, service)
    # Play in place of our own player.
    self._agents = (
      AgentServer(
        self._settings,
        service,
        self._config.name,
        self._run.root,
        self._settings.cross_policy,
      )
      if self._settings.agents.play
      else None
    )
    self._validation = self._make_validation(context)
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

    Records in the run's files of versions from `version` on are removed: they
    are not in the policy.
    """
    self._metrics.truncate_after(STAGE, version)
    self._trained_groups.truncate(version)
    steps = self._config.train.steps
    collector = self._collector(
      version, position_from_json(position) if position else None
    )
    self._between = position_to_json(collector.snapshot())
    self._forget()
    self._service.report()  # the first step's means leave out what was before
    if self._validation is not None:
      self._validation.resume()
    serving: Serving = contextlib.nullcontext
    if self._agents is not None:
      serving = self._agents.serving
    collector.pause()  # until agents are served, and an evaluation has begun
    with (
      spared_collections(),
      ControllerThread(collector) as controller,
      controller.entered(serving(), CALL_S),
      StageProgress(STAGE, steps, initial_step=version) as self._show,
    ):
      self._controller = controller
      if self._validation is not None:
        self._evaluate(version, self._validation)
      controller.resume()
      yield
      if self._validation is not None:
        controller.pause()
        self._validation.wait(controller)

  def take(self, version: int) -> list[Group] | None:
    """Waits for the groups of a batch, at most `train.batch_timeout_s`."""
    self._begun_at = time.monotonic()
    groups = self._wait(version)
    if self._processes.count > 1:
      batch = encode_groups(groups) if groups else b""
      self._processes.broadcast(batch, what=wait_name(version))
    self._taken = groups or []
    self._seconds["seconds/wait"] = time.monotonic() - self._begun_at
    return groups

  def position(self) -> dict[str, Any]:
    """Returns the controller's state at one instant."""
    if self._lockstep is not None:
      return self._between
    return position_to_json(self._running.snapshot())

  def advance(self, version: int) -> None:
    """Lets newer groups start, and an evaluation if one is due."""
    self._forget()
    if self._validation is not None:
      self._evaluate(version, self._validation)
    self._running.set_version(version)

  def finish(self) -> None:
    """Evaluates the last version, if versions were evaluated during RL."""
    if self._validation is None:
      return
    with self._interrupts.at_once():
      if self._lockstep is not None and self._service.driver is not None:
        self._service.driver.wait_until_idle(
          self._settings.waits.answer_timeout_s
        )
        self._forget()
      self._validation.finish()

  def needed_versions(self) -> list[int]:
    """Tells the other processes, too."""
    needed = self._validation.needed if self._validation else []
    return list(self._processes.share_json(needed, what=_NEEDED))

  def best_version(self) -> int | None:
    """Files the best version, and tells the other processes."""
    best = self._validation.keep_best() if self._validation else None
    self._processes.share_json(best, what=_BEST)
    return best

  def account(
    self,
    version: int,
    after: int,
    report: Mapping[str, float],
    learned: LearnedTurns | None = None,
  ) -> None:
    """Writes metrics and groups, before a checkpoint can hold them."""
    self._trained_groups.add(version, [group.id for group in self._taken])
    write_groups(
      self._run.trajectories(version),
      self._kept_groups.choose(self._taken, version),
      learned.of if learned else lambda _: None,
    )
    spent = time.monotonic() - self._begun_at - self._seconds["seconds/wait"]
    metrics = {
      **report,
      **self._seconds,
      "seconds/train": spent,
      **self._running.call(self._monitor.snapshot),
      **self._service.report(),
      **(self._running.call(self._agents.report) if self._agents else {}),
      **_batch_metrics(self._taken),
      **slot_successes(self._taken),
    }
    self._metrics.write(after, metrics, STAGE)
    self._faults.update(after, metrics)
    if self._validation is not None:
      self._validation.collect()
      metrics |= self._validation.newest
    self._show.update(after, metrics)
    self._between = position_to_json(self._running.snapshot())

  def alarm(self, version: int, sentence: str, *, is_note: bool) -> None:
    """Writes the sentence to the log and to `faults.jsonl`."""
    _log.warning("update %d: %s", version, sentence)
    self._faults.alarm(version, sentence, is_note=is_note)

  @property
  def _running(self) -> ControllerThread:
    if self._controller is None:
      raise RuntimeError("groups are played within `running` only")
    return self._controller

  def _wait(self, version: int) -> list[Group] | None:
    deadline = time.monotonic() + self._config.train.batch_timeout_s
    number = self._settings.admission.groups_per_step
    while self._interrupts.received is None:
      self._service.require_engine()
      groups = self._running.take_within(number, version, POLL_S)
      if groups is not None:
        return groups
      if time.monotonic() > deadline:
        stacks = write_stacks(self._run.root / STACKS, self._running.loop)
        faults = self._running.call(self._monitor.latest_faults)
        raise DeadlineExceeded(
          f"the learner waited "
          f"train.batch_timeout_s={self._config.train.batch_timeout_s:g} s "
          f"for {number} groups to train version {version} on; look at: "
          "rollout/finished and rollout/faults of each task, and the rollout "
          "engine; an episode may be longer than this wait. Faults so far: "
          f"{faults or 'none'}. Where every thread and episode waited is in "
          f"{stacks}"
        )
    return None

  def _forget(self) -> None:
    """Clears the engine's caches, which a later start would not have."""
    if self._lockstep is not None and self._service.driver is not None:
      self._service.driver.engine.reset()

  def _make_validation(self, context: RunContext) -> Validation | None:
    if not self._settings.evaluation.every:
      return None
    return Validation(
      context,
      self._environments,
      self._service,
      self._metrics,
      tasks_during(self._settings, self._environments),
      generator=self._lockstep,
      adapt=self._in_lockstep,
      agents=self._agents,
    )

  def _evaluate(self, version: int, validation: Validation) -> None:
    """Starts an evaluation if one is due; in lockstep, also waits for it."""
    validation.begin(self._running, version)
    if self._lockstep is not None:
      validation.wait(self._running)
      self._forget()

  def _in_lockstep(self, player: Player) -> Player:
    if self._lockstep is None:
      return player
    return _LockstepPlayer(player, self._lockstep)

  def _player(self) -> Player:
    if self._agents is not None:
      return self._agents.episodes
    player = PolicyPlayer(
      environments=self._environments,
      generator=self._lockstep or self._service.generator,
      codec=self._service.codec,
      limits=self._settings.episode,
      sampling=self._settings.sampling,
      draw=self._settings.cross_policy,
      waits=self._settings.waits,
      subagent=self._settings.subagent,
      informs_critic=self._settings.advantage.informs_critic,
    )
    return self._in_lockstep(player)

  def _collector(
    self, version: int, position: CollectorState | None
  ) -> Collector:
    s = self._settings
    timers = GroupTimers()

    async def play(task: Task, group_id: str, seed: int) -> Group | None:
      return await run_group(
        task,
        self._player(),
        s.group,
        s.retry,
        self._monitor,
        group_id=group_id,
        seed=seed,
        timers=timers,
      )

    num_pending = len(position.queued) if position else 0
    watch = LearnerWatch(self._config.train.step_timeout_s)
    queue = GroupQueue(
      s.queue,
      self._monitor,
      versions_per_step=s.admission.versions_per_step,
      watch=watch,
    )
    admission = Admission(s.admission, version=version, num_pending=num_pending)
    # In the order of starting, batches do not depend on timing: no task's first
    # groups are dropped.
    is_timed = s.queue.order == "finished"
    breakers = Breakers(
      self._stream.shares,
      timers,
      self._monitor,
      num_places=admission.num_places if is_timed else None,
    )
    collector = Collector(
      self._stream,
      play,
      queue,
      admission,
      breakers,
      seed=seed_of(s.seed, STAGE),
      has_signal=self._has_signal,
      watch=watch,
      overdue=OverdueGroups(queue, timers, patience=s.queue.patience),
    )
    if position is not None:
      collector.restore(position)
    return collector

  def _has_signal(self, group: Group) -> bool:
    """Compares the rewards as they are trained on."""
    incomplete = self._settings.advantage.incomplete_reward
    rewards = {shaped_reward(t, incomplete) for t in group.trajectories}
    return len(rewards) > 1


@dataclasses.dataclass(frozen=True)
class _LockstepPlayer:
  """Plays episodes in lockstep with the engine's steps."""

  player: Player
  lockstep: LockstepGenerator

  async def play(self, spec: EpisodeSpec) -> Trajectory:
    """See `Player.play`."""
    with self.lockstep.playing():
      return await self.player.play(spec)


def _make_lockstep(
  settings: Settings, service: Service
) -> LockstepGenerator | None:
  """Returns the generator of a run in which nothing depends on timing."""
  if settings.agents.play:  # they come when they come
    return None
  exact = not settings.admission.max_staleness and (
    settings.queue.order == "started"
  )
  if exact and isinstance(service.driver, LocalDriver):
    return LockstepGenerator(
      service.driver, deadline_s=settings.waits.answer_timeout_s
    )
  return None


def _batch_metrics(groups: Sequence[Group]) -> dict[str, float]:
  played = [t for group in groups for t in group.trajectories]
  policy_slots = [turn.policy_slot for t in played for turn in t.turns]
  report = success_by_task(played) | answer_metrics(count_answers(played))
  report |= episode_metrics(played)
  report["reward/mean"] = sum(t.reward for t in played) / max(len(played), 1)
  num_stale = sum(s > 0 for s in policy_slots)
  report["rollout/stale_turns"] = num_stale / max(len(policy_slots), 1)
  return report


def position_to_json(state: CollectorState) -> dict[str, Any]:
  """Encodes the controller's state for a checkpoint."""
  return {
    "stream": dict(state.stream),
    "in_flight": [[p, dataclasses.asdict(task)] for p, task in state.in_flight],
    "queued": [group_to_json(group) for group in state.queued],
  }


def position_from_json(body: Mapping[str, Any]) -> CollectorState:
  """Inverts `position_to_json`."""
  return CollectorState(
    stream=body["stream"],
    in_flight=tuple((int(p), Task(**task)) for p, task in body["in_flight"]),
    queued=tuple(group_from_json(group) for group in body["queued"]),
  )


class TrainedGroups:
  """Records the groups that each update was made of, one line an update."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def add(self, version: int, groups: Sequence[str]) -> None:
    """Records the groups that took the policy from `version` to the next."""
    with self._path.open("ab", buffering=0) as file:
      line = json.dumps({"version": version, "groups": list(groups)}) + "\n"
      append_whole(self._path, line, file)
      with writing(self._path):
        os.fsync(file.fileno())  # before a checkpoint can hold the update

  def truncate(self, version: int) -> None:
    """Removes the updates from `version` on: they are not in the policy."""
    if not self._path.exists():
      return
    with reading(self._path):
      kept = [
        line
        for line in self._path.read_text().splitlines(keepends=True)
        if line.endswith("\n") and json.loads(line)["version"] < version
      ]
    write_whole(self._path, "".join(kept))
