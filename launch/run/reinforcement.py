"""The training loop of reinforcement learning, the same in every process.

Groups are taken, trained on, published and checkpointed, repeatedly; they come
from a `GroupSource`. A checkpoint holds the learner's state and the
controller's position between two updates, and keeps the versions that older
policy slots serve.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import Group
from agentrl_jax.errors import Collapsed, ConfigError
from agentrl_jax.garbage import share_freed_memory
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.collapse.alarm import LEARNED, CollapseAlarm
from agentrl_jax.train.learner import (
  Learner,
  NotFiniteLimit,
  TrainState,
  make_optimizer,
)
from agentrl_jax.train.metrics import NO_SIGNAL, NOT_FINITE, SKIPPED
from agentrl_jax.train.objective import policy_objective
from agentrl_jax.train.train_batch import TrainBatch
from agentrl_jax.train.weights.checkpoint import Checkpoints
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.reference import Reference
from launch.config.settings import Settings
from launch.run.context import RunContext
from launch.run.groups.group_source import GroupSource
from launch.run.groups.run_record import STAGE
from launch.serving.policy_slot_refresh import PolicySlotRefresher
from launch.storage.load_params import load_reference, split_params

_NEEDED, _BEST = "versions that may be the best", "the best version"


def make_learner(settings: Settings, policy: Policy, *, steps: int) -> Learner:
  """Makes the learner of a run's reinforcement learning of `steps` updates."""
  return Learner(
    policy,
    policy_objective(
      policy,
      settings.loss,
      temperature=settings.sampling.temperature,
      num_policy_slots=settings.engine.num_policy_slots,
      tasks=settings.task_ids,
    ),
    make_optimizer(settings.optimizer, steps),
    policy.mesh or sharding.make_mesh(settings.mesh, slices=settings.slices),
    expert_bias_rate=settings.optimizer.expert_bias_rate,
  )


def make_reference(
  settings: Settings, policy: Policy, params: Params
) -> Reference | None:
  """Makes the KL term's reference, if there is such a term.

  It is the policy of `params`, or the teacher that the config names.
  """
  if not settings.loss.kl_coefficient:
    return None
  if settings.reference.path:
    teacher, params = load_reference(settings, policy.mesh)
    caps = [model.config.logit_cap for model in (policy, teacher)]
    if caps[0] != caps[1]:
      raise ConfigError(
        f"reference.path={settings.reference.path} has logits with a cap of "
        f"{caps[1]}, and the policy's is {caps[0]}: take a teacher whose "
        "final_logit_softcapping is the same"
      )
    return Reference(teacher, params, place=settings.reference.place)
  return Reference(policy, policy.plain(params), place=settings.reference.place)


def make_batch_builder(
  context: RunContext, params: Params, codec: ChatCodec
) -> BatchBuilder:
  """Makes the builder of a run's batches; `params` are the KL reference's."""
  settings, policy = context.settings, context.policy
  return BatchBuilder(
    policy,
    loss=settings.loss,
    advantage=settings.advantage,
    batch=settings.batch,
    task_ids=settings.task_ids,
    temperature=settings.sampling.temperature,
    reference=make_reference(settings, policy, params),
    make_grammars=functools.cache(
      lambda: codec.grammars(settings.model.vocab_size)
    ),
  )


class Reinforcement:
  """Runs the reinforcement learning of one run."""

  def __init__(
    self,
    context: RunContext,
    groups: GroupSource,
    publisher: Publisher,
    codec: ChatCodec,
  ):
    self._config, self._settings = context.config, context.settings
    self._policy, self._groups = context.policy, groups
    self._run, self._interrupts = context.folder, context.interrupts
    self._context, self._publisher, self._codec = context, publisher, codec
    self._learner = make_learner(
      context.settings, context.policy, steps=context.config.train.steps
    )
    self._alarm = CollapseAlarm(
      context.settings.collapse_alarm,
      incomplete_reward=context.settings.advantage.incomplete_reward,
    )
    self._limit = NotFiniteLimit()
    self._builder: BatchBuilder  # since `train`
    self._frozen: Params | None  # what adapters belong to
    self._num_queued = 0  # groups of the queue, in the last checkpoint
    self._older = PolicySlotRefresher(
      context.settings.policy_slots,
      publisher,
      self._learner.abstract_state(),
      self._whole,
      stride=context.settings.admission.versions_per_step,
    )

  def train(self, warm: Params) -> None:
    """Trains up to `train.steps`, from wherever an earlier start got.

    The last checkpoint in the run's folder and policy slot 0 hold the result.
    """
    checkpoints = self._open_checkpoints()
    # There is nothing to save yet.
    with self._interrupts.at_once():
      trained, self._frozen = split_params(self._settings, self._policy, warm)
      self._builder = make_batch_builder(self._context, warm, self._codec)
      state, position = self._begin(trained, checkpoints)
      del trained, warm
      self._builder.moments.restore(position.get("tasks", {}))
      self._alarm.restore(position.get("collapse_alarm", {}))
      self._limit.in_a_row = position.get("not_finite", 0)
      version = int(state.version)
      if version < self._config.train.steps:
        self._publish(state)
        self._older.follow(checkpoints, state)
    if version < self._config.train.steps:
      with self._groups.running(version, position.get("controller", {})):
        state = self._loop(state, checkpoints)
    checkpoints.close()
    self._publish(state)

  def end_with_best(self) -> None:
    """Publishes the best version in place of the last, if it is to be kept.

    Once the last evaluation during RL is over, in every learner process.
    """
    if not self._settings.checkpoint.keep_best:
      return
    best = self._context.processes.share_json(
      self._groups.best_version(), what=_BEST
    )
    if best is None or best == self._config.train.steps:
      return
    checkpoints = self._open_checkpoints()
    params = checkpoints.restore_params(self._learner.abstract_state(), best)
    checkpoints.close()
    self._publisher.publish(self._whole(params), best)

  def _open_checkpoints(self) -> Checkpoints:
    return Checkpoints(
      self._run.checkpoints(STAGE),
      keep=self._settings.checkpoint.keep,
      keep_every=self._settings.checkpoint.keep_every,
      owner=self._run.owner(STAGE),
    )

  def _begin(
    self, trained: Params, checkpoints: Checkpoints
  ) -> tuple[TrainState, Mapping[str, Any]]:
    if not checkpoints.steps():
      state = self._learner.init(trained)
      checkpoints.save(state, {})
      checkpoints.wait()
      return state, {}
    chosen = self._config.checkpoint.resume_step
    step = None if chosen < 0 else chosen
    state, position = checkpoints.restore(self._learner.abstract_state(), step)
    checkpoints.forget_after(int(state.version))
    self._num_queued = _num_queued(position)
    return state, position

  def _loop(self, state: TrainState, checkpoints: Checkpoints) -> TrainState:
    first, steps = int(state.version), self._config.train.steps
    stride = self._settings.admission.versions_per_step
    processes = self._context.processes

    def save() -> None:
      version = int(state.version)
      if version not in checkpoints.steps():
        pinned = self._older.needed(version)
        if self._settings.checkpoint.keep_best:
          needed = self._groups.needed_versions()
          pinned += processes.share_json(needed, what=_NEEDED)
        checkpoints.pin(pinned)
        position = {
          "controller": self._groups.position(),
          "tasks": self._builder.moments.snapshot(),
          "collapse_alarm": self._alarm.snapshot(),
          "not_finite": self._limit.in_a_row,
        }
        checkpoints.save(state, position)
        self._num_queued = _num_queued(position)

    def save_at_last() -> str:
      save()
      checkpoints.wait()
      return (
        f"checkpoint of {STAGE} step {int(state.version)}, with "
        f"{self._num_queued} finished groups of the queue"
      )

    for version in range(first, steps, stride):
      groups = self._groups.take(version)
      if groups is None:
        self._interrupts.check(save_at_last)
        raise AssertionError("process 0 stopped without having been asked to")
      state, report = self._step(state, groups)
      self._publish(state)
      after = version + stride
      self._older.follow(checkpoints, state)
      self._groups.account(version, after, report, self._builder.learned_turns)
      if after % self._settings.checkpoint.every < stride:
        save()
      self._heed_alarm(after, save_at_last)
      self._groups.advance(after)
      share_freed_memory()
    save_at_last()
    return state

  def _heed_alarm(self, version: int, save: Callable[[], str]) -> None:
    """Warns of a collapse; raises `Collapsed` if the run ends by it."""
    alarm = self._alarm
    for rule, sentence in alarm.new.items():
      self._groups.alarm(version, sentence, is_note=rule == LEARNED)
    if alarm.stops:
      raise Collapsed(f"update {version}: {alarm.message}. Kept: {save()}")

  def _step(
    self, state: TrainState, groups: Sequence[Group]
  ) -> tuple[TrainState, dict[str, float]]:
    number = self._settings.admission.versions_per_step
    params = self._whole(state.params)
    batches, report = self._builder.build(groups, params)
    del params  # the update needs their memory
    state, metrics = self._updates(state, batches, number)
    entropy = metrics.get("policy/entropy")
    if metrics[NOT_FINITE]:  # it may be NaN, and no update was made
      entropy = None
    report |= self._alarm.watch(groups, int(state.version), entropy)
    return state, report | metrics

  def _updates(
    self, state: TrainState, batches: Sequence[TrainBatch], num_updates: int
  ) -> tuple[TrainState, dict[str, float]]:
    """Makes `num_updates` updates, each of its share; returns mean metrics.

    Skipped updates are counted.
    """
    values: dict[str, list[float]] = collections.defaultdict(
      list, {name: [] for name in SKIPPED}
    )
    for part in range(num_updates):
      # Strided, because packing puts the longest sequences first.
      share = batches[part::num_updates]
      if not share:  # no trajectory was better than the rest of its group
        state = dataclasses.replace(state, version=state.version + 1)
        values[NO_SIGNAL].append(1.0)
        continue

      def keep(
        number: int, values: Mapping[str, jax.Array], first: int = part
      ) -> None:
        self._builder.learned_turns.add(first + number * num_updates, values)

      state, metrics = self._learner.update(state, share, self._frozen, keep)
      self._limit.watch(metrics, int(state.version))
      for name, value in metrics.items():
        values[name].append(value)
    return state, {
      name: sum(x) / (1 if name in SKIPPED else len(x))
      for name, x in values.items()
    }

  def _publish(self, state: TrainState) -> None:
    self._publisher.publish(self._whole(state.params), int(state.version))

  def _whole(self, trained: Params) -> Params:
    """Joins trained and frozen params."""
    return self._policy.whole(trained, self._frozen)


def _num_queued(position: Mapping[str, Any]) -> int:
  return len(position.get("controller", {}).get("queued", ()))
