"""Reinforcement learning: the asynchronous pipeline, from the learner's side.

The controller plays and the engine decodes in threads of their own; here groups
are taken, trained on, published and checkpointed, over and over. A checkpoint
holds the learner's state and the controller's position as they were between two
updates. The ledger names the groups of every update of the run's own past: what
came after the checkpoint that a run resumes from is struck out of it.
"""

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.controller import seeds
from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.collector import Collector, CollectorState
from agentrl_jax.controller.group import run_group
from agentrl_jax.controller.group_queue import GroupQueue
from agentrl_jax.controller.monitor import Monitor
from agentrl_jax.controller.player import PolicyPlayer
from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.data.record_file import (
  group_from_json,
  group_to_json,
  write_groups,
)
from agentrl_jax.data.trajectory import Group, Task
from agentrl_jax.env.interface import Environment
from agentrl_jax.metrics import MetricsWriter
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.checkpoint import Checkpoints
from agentrl_jax.train.objective import Lesson, policy_objective
from agentrl_jax.train.optimizer import make_optimizer
from agentrl_jax.train.preparation import Preparation
from agentrl_jax.train.publish import Publisher
from agentrl_jax.train.step import Learner, TrainState
from launch.demonstrations import task_stream
from launch.evaluation import success_by_task
from launch.interrupts import Interrupts
from launch.ledger import Ledger
from launch.report.progress import StageProgress
from launch.run_directory import RunDirectory
from launch.serving import Service
from launch.settings import Settings

STAGE = "rl"


class Reinforcement:
  """One run's reinforcement learning."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    settings: Settings,
    policy: Policy,
    environments: Mapping[str, Environment],
    service: Service,
    run: RunDirectory,
    metrics: MetricsWriter,
  ):
    self._config, self._settings = config, settings
    self._environments, self._service = environments, service
    self._run, self._metrics = run, metrics
    self._policy = policy
    self._learner = Learner(
      policy,
      policy_objective(
        policy,
        settings.loss,
        temperature=settings.sampling.temperature,
        num_slots=settings.engine.num_slots,
      ),
      make_optimizer(settings.optimizer, config.train.steps),
      policy.mesh or sharding.make_mesh(settings.mesh),
    )
    self._publisher = Publisher(policy, service.versions)
    self._monitor = Monitor()
    self._ledger = Ledger(run.root / "trained_groups.jsonl")

  def train(self, warm: Params, interrupts: Interrupts) -> None:
    """Trains up to `train.steps`, from wherever an earlier start got.

    The last checkpoint in the run's folder and slot 0 hold the result.
    """
    checkpoints = Checkpoints(
      self._run.checkpoints(STAGE), keep=self._settings.checkpoint.keep
    )
    preparation = Preparation(
      self._policy,
      loss=self._settings.loss,
      advantage=self._settings.advantage,
      batch=self._settings.batch,
      task_ids=self._settings.task_ids,
      temperature=self._settings.sampling.temperature,
      reference=warm if self._settings.loss.kl_coefficient else None,
    )
    state, position = self._begin(warm, checkpoints, preparation)
    version = int(state.version)
    self._metrics.truncate_after(STAGE, version)
    self._ledger.truncate(version)
    if version < self._config.train.steps:
      self._publish(state)
      self._refresh(checkpoints, version)
      collector = self._collector(version, position)
      with ControllerThread(collector) as controller:
        state = self._loop(
          state, controller, checkpoints, preparation, interrupts
        )
    checkpoints.close()
    self._publish(state)

  def _begin(
    self, warm: Params, checkpoints: Checkpoints, preparation: Preparation
  ) -> tuple[TrainState, CollectorState | None]:
    if not checkpoints.steps():
      state = self._learner.init(warm)
      checkpoints.save(state, {})
      checkpoints.wait()
      return state, None
    chosen = self._config.checkpoint.resume_step
    step = None if chosen < 0 else chosen
    state, position = checkpoints.restore(self._learner.abstract_state(), step)
    checkpoints.forget_after(int(state.version))
    preparation.restore(position.get("tasks", {}))
    return state, _position_from_json(position) if position else None

  def _collector(
    self, version: int, position: CollectorState | None
  ) -> Collector:
    s = self._settings
    player = PolicyPlayer(
      environments=self._environments,
      generator=self._service.generator,
      codec=self._service.codec,
      limits=s.episode,
      sampling=s.sampling,
      choose_slot=s.cross_policy,
    )

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
    collector = Collector(
      task_stream(s, self._environments, split="train", purpose="rl"),
      play,
      GroupQueue(s.queue, self._monitor),
      Admission(s.admission, version=version, num_pending=num_pending),
      seed=seeds.seed_of(s.seed, "rl"),
    )
    if position is not None:
      collector.restore(position)
    return collector

  def _loop(
    self,
    state: TrainState,
    controller: ControllerThread,
    checkpoints: Checkpoints,
    preparation: Preparation,
    interrupts: Interrupts,
  ) -> TrainState:
    first, steps = int(state.version), self._config.train.steps

    def save() -> None:
      if int(state.version) not in checkpoints.steps():
        position = _position_to_json(controller.snapshot())
        position["tasks"] = preparation.snapshot()
        checkpoints.save(state, position)
      checkpoints.wait()

    stride = self._settings.admission.versions_per_step
    with StageProgress(STAGE, steps, initial_step=first) as show:
      for version in range(first, steps, stride):
        state, report = self._step(state, version, controller, preparation)
        self._publish(state)
        after = version + stride
        controller.set_version(after)
        self._metrics.write(after, report, STAGE)
        show.update(after, report)
        if after % self._settings.checkpoint.every < stride:
          save()
        if after % self._config.cross_policy.refresh_every < stride:
          self._refresh(checkpoints, after)
        interrupts.check(save)
      save()
    return state

  def _step(
    self,
    state: TrainState,
    version: int,
    controller: ControllerThread,
    preparation: Preparation,
  ) -> tuple[TrainState, dict[str, float]]:
    """Waits for a batch and makes its updates."""
    begun = time.monotonic()
    limits = self._settings.admission
    groups = controller.take(
      limits.groups_per_step, version, self._config.train.take_s
    )
    taken = time.monotonic()
    lessons, report = preparation.lessons(groups, state.params)
    state, metrics = self._updates(state, lessons, limits.versions_per_step)
    self._ledger.add(version, [group.id for group in groups])
    write_groups(
      self._run.trajectories(version), groups[: self._config.report.keep_groups]
    )
    seconds = {
      "seconds/wait": taken - begun,
      "seconds/train": time.monotonic() - taken,
    }
    monitored = controller.call(self._monitor.snapshot)
    return state, report | metrics | seconds | monitored | _of(groups)

  def _updates(
    self, state: TrainState, lessons: Sequence[Lesson], num_updates: int
  ) -> tuple[TrainState, dict[str, float]]:
    """That many updates, each of its share of the lessons; mean metrics."""
    found = collections.defaultdict(list)
    for part in range(num_updates):
      # Every so-manieth, since the first lessons hold the longest attempts.
      share = lessons[part::num_updates]
      if not share:  # no attempt did better than its siblings
        state = dataclasses.replace(state, version=state.version + 1)
        continue
      state, metrics = self._learner.update(state, share)
      for name, value in metrics.items():
        found[name].append(value)
    return state, {name: sum(x) / len(x) for name, x in found.items()}

  def _publish(self, state: TrainState) -> None:
    self._publisher.publish(state.params, int(state.version))

  def _refresh(self, checkpoints: Checkpoints, version: int) -> None:
    """Older slots take older snapshots: newest first, before `version`."""
    checkpoints.wait()
    older = [step for step in checkpoints.steps() if step < version]
    snapshots = older[::-1] or checkpoints.steps()[:1]
    for slot in range(1, self._settings.engine.num_slots):
      step = snapshots[min(slot - 1, len(snapshots) - 1)]
      params = checkpoints.restore_params(self._learner.abstract_state(), step)
      self._publisher.publish(params, step, slot=slot)


def _of(groups: Sequence[Group]) -> dict[str, float]:
  """Success and reward of a batch, and the share of each version slot."""
  played = [t for group in groups for t in group.trajectories]
  slots = [turn.slot for t in played for turn in t.turns]
  report = success_by_task(played)
  report["reward/mean"] = sum(t.reward for t in played) / max(len(played), 1)
  report["rollout/stale_turns"] = sum(s > 0 for s in slots) / max(len(slots), 1)
  return report


def _position_to_json(state: CollectorState) -> dict[str, object]:
  return {
    "stream": dict(state.stream),
    "in_flight": [[p, dataclasses.asdict(task)] for p, task in state.in_flight],
    "queued": [group_to_json(group) for group in state.queued],
  }


def _position_from_json(body: Mapping[str, Any]) -> CollectorState:
  return CollectorState(
    stream=body["stream"],
    in_flight=tuple((int(p), Task(**task)) for p, task in body["in_flight"]),
    queued=tuple(group_from_json(group) for group in body["queued"]),
  )
