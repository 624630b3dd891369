"""Refuses, before anything starts, settings that cannot work together."""

from collections.abc import Mapping, Sequence

import ml_collections
from etils import epath

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.controller.episode import Sampling
from agentrl_jax.controller.evaluation import EvaluationPlan
from agentrl_jax.controller.groups.admission import AdmissionLimits
from agentrl_jax.controller.groups.group import GroupLimits
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention.splash import check_length
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.sharding import row_shares
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.settings import RolloutsConfig
from agentrl_jax.train.config.advantage import (
  CRITIC_ESTIMATORS,
  KEEPS,
  AdvantageConfig,
)
from agentrl_jax.train.config.checks import require_read
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.train_batch import BatchConfig
from agentrl_jax.train.weights.checkpoint import CheckpointConfig
from agentrl_jax.train.weights.policy_slot_schedule import PolicySlotSchedule
from agentrl_jax.train.weights.reference import ReferenceConfig
from configs import base

# Filters that keep no group of one attempt.
COMPARING = tuple(name for name in KEEPS if name != "all")


def check_read(config: ml_collections.ConfigDict) -> None:
  """Refuses keys that the values of other keys leave unread."""
  no_agents, during = config.agents.port < 0, "split num_tasks_during "
  during += "num_sampled_during concurrency_during"
  for is_idle, section, names, why in (
    (no_agents, "agents", "", "with agents.port=-1, which starts no server"),
    (not config.subagent.tool, "subagent", "", "without subagent.tool"),
    (not config.lora.rank, "lora", "", "where lora.rank is 0"),
    (
      config.collapse_alarm.action == "off",
      "collapse_alarm",
      " ".join(sorted({*config.collapse_alarm} - {"action"})),
      "with collapse_alarm.action='off', which watches nothing",
    ),
    (
      not config.evaluation.every,
      "evaluation",
      during,
      "with evaluation.every=0, which evaluates at the ends of stages only",
    ),
    (
      not config.warm_start.epochs,
      "warm_start",
      "chats",
      "with warm_start.epochs=0, which learns from no demonstration",
    ),
    (
      not config.pretrained.path,
      "chat",
      "",
      "without pretrained.path, whose model's chat template asks for it",
    ),
    (
      config.sampling.calls == "free" and no_agents,
      "chat",
      "compact_calls",
      "with sampling.calls=free and no agents, whose calls have no grammar",
    ),
  ):
    if is_idle:
      _refuse_unread(config, section, names.split(), why)
  if not config.train.steps and not config.warm_start.chats:
    raise ConfigError(
      "train.steps=0 must be at least 1, or warm_start.chats must name a file: "
      "without reinforcement learning a run learns from chats alone"
    )


def _refuse_unread(
  config: ml_collections.ConfigDict,
  section: str,
  names: Sequence[str],
  why: str,
) -> None:
  """Refuses these keys of a section where they are set, or all of them."""
  idle, settings = base.default_values()[section], config[section]
  unread = [key for key in names or settings if settings[key] != idle[key]]
  if unread:
    given = ", ".join(f"{section}.{key}={settings[key]}" for key in unread)
    flags = " ".join(f"--config.{section}.{key}={idle[key]}" for key in unread)
    raise ConfigError(f"{given} means nothing {why}; set {flags}")


def check_learning(
  loss: LossConfig,
  advantage: AdvantageConfig,
  model: ModelConfig,
  group: GroupLimits,
  reference: ReferenceConfig,
) -> None:
  """Raises `ConfigError` if loss, advantage, model and group disagree."""
  _check_critic(loss, advantage, model)
  _check_reference(loss, reference)
  if not advantage.weight and (
    not loss.kl_coefficient or loss.kl_place == "reward"
  ):
    raise ConfigError(
      f"advantage.weight=0 with loss.kl_coefficient={loss.kl_coefficient} and "
      f"loss.kl_place={loss.kl_place!r} leaves nothing to learn: it is for a "
      "KL in the advantage or the loss. Set "
      "--config.loss.kl_place=advantage and a coefficient, or "
      "--config.advantage.weight=1"
    )
  estimator = advantage.estimator
  if loss.surrogate in ("gspo", "gmpo") and advantage.varies_within_trajectory:
    raise ConfigError(
      f"loss.surrogate={loss.surrogate!r} has one ratio per attempt, and "
      f"advantage.estimator={estimator!r} gives its turns or tokens advantages "
      "of their own: use --config.loss.surrogate=gspo_token"
    )
  if advantage.num_attempts > group.size:
    raise ConfigError(
      f"advantage.estimator_settings: k={advantage.num_attempts} attempts "
      f"cannot be drawn from group.size={group.size}: lower the one or raise "
      "the other"
    )
  if estimator == "pass_at_k" and loss.kl_place == "reward":
    raise ConfigError(
      "loss.kl_place='reward' takes something off every reward, and advantage."
      "estimator='pass_at_k' only asks whether an attempt succeeded: use "
      "--config.loss.kl_place=loss, or --config.advantage.estimator=max_at_k"
    )
  if group.size == 1 and advantage.keep in COMPARING:
    raise ConfigError(
      f"advantage.keep={advantage.keep!r} compares attempts, and group.size=1 "
      "leaves nothing to compare: every group would be dropped. Set "
      "--config.advantage.keep=all"
    )


def check_admission(admission: AdmissionLimits, group: GroupLimits) -> None:
  """Raises `ConfigError` if every group would be without a signal."""
  if group.size == 1 and admission.refills_per_step:
    raise ConfigError(
      f"admission.refills_per_step={admission.refills_per_step} replaces groups"
      " whose attempts have the same reward, as group.size=1 always has: set"
      " --config.admission.refills_per_step=0"
    )


def check_keep_best(
  checkpoint: CheckpointConfig, evaluation: EvaluationPlan
) -> None:
  """Raises `ConfigError` if the best version would not be known, or kept."""
  chosen = f"checkpoint.keep_best={checkpoint.keep_best!r}"
  if not checkpoint.keep_best:
    return
  if not evaluation.every or evaluation.every % checkpoint.every:
    raise ConfigError(
      f"{chosen} keeps the checkpoint of the version that is the best in the "
      f"evaluations during RL: set evaluation.every={evaluation.every} to a "
      f"multiple of checkpoint.every={checkpoint.every}"
    )
  if evaluation.split == "test":
    raise ConfigError(
      f"{chosen} would choose the policy by the tasks that it is tested on at "
      "the end, as evaluation.split='test': set it to 'train', which holds "
      "tasks out of training, or to a split of its own"
    )
  if checkpoint.keep_best == "sampled" and not evaluation.num_sampled_during:
    raise ConfigError(
      f"{chosen} needs sampled evaluations during RL: set "
      "evaluation.num_sampled_during above 0"
    )


def _check_reference(loss: LossConfig, reference: ReferenceConfig) -> None:
  """Refuses a KL term without a reference, and an idle reference."""
  if loss.kl_coefficient and reference.place == "dropped":
    raise ConfigError(
      f"loss.kl_coefficient={loss.kl_coefficient} pulls towards a reference, "
      "and reference.place='dropped' keeps none: set "
      "--config.loss.kl_coefficient=0, or --config.reference.place=offloaded"
    )
  for name, idle in (("place", "resident"), ("path", "")):
    require_read(
      f"reference.{name}",
      value := getattr(reference, name),
      idle=idle,
      is_read=value == "dropped" or loss.kl_coefficient > 0,
      why="with loss.kl_coefficient=0, which keeps no reference",
    )


def _check_critic(
  loss: LossConfig, advantage: AdvantageConfig, model: ModelConfig
) -> None:
  """Refuses a critic that only some of loss, advantage and model name."""
  found = (
    f"advantage.estimator={advantage.estimator!r}, loss.value_coefficient="
    f"{loss.value_coefficient} and model.value_head={model.value_head}"
  )
  if len({advantage.uses_critic, loss.has_critic, model.value_head}) == 1:
    return
  raise ConfigError(
    f"{found} do not go together: a critic needs an estimator that reads it "
    f"({', '.join(CRITIC_ESTIMATORS)}), a loss that trains it (a positive "
    "--config.loss.value_coefficient) and a head (--config.model.value_head="
    "True). Set all three, or none: another estimator, 0 and False"
  )


def check_mesh(
  mesh: Mapping[str, int],
  batch: BatchConfig,
  model: ModelConfig,
  compute: ComputeConfig,
) -> None:
  """Raises `ConfigError` for a mesh that cannot split the rows or the model.

  The message names both numbers and what to change.
  """
  devices = row_shares(mesh)
  if batch.micro_batch % devices:
    raise ConfigError(
      f"train.micro_batch={batch.micro_batch} rows cannot be split over "
      f"mesh.data x mesh.fsdp x mesh.expert = {devices} devices: make it a "
      "multiple"
    )
  if mesh["expert"] > 1 and not model.num_experts:
    raise ConfigError(
      f"mesh.expert={mesh['expert']} splits experts, and this model has none: "
      f"set --config.mesh.expert=1 and multiply mesh.fsdp by {mesh['expert']}"
    )
  if mesh["sequence"] > 1 and model.delta_heads:
    raise ConfigError(
      f"mesh.sequence={mesh['sequence']} splits a row's tokens, and a state of "
      "this model's delta layers passes from each to the next: set "
      f"--config.mesh.sequence=1 and multiply mesh.fsdp by {mesh['sequence']}"
    )
  for key, size, axis in (
    ("train.row_length", batch.row_length, "sequence"),
    ("model.width", model.width, "fsdp"),
    ("model.latent_dim", model.latent_dim, "fsdp"),
    ("model.query_rank", model.query_rank, "fsdp"),
    ("model.num_kv_heads", model.shared_kv_heads, "tensor"),
    ("model.delta_key_heads", model.delta_key_heads, "tensor"),
    *((f"model.{part}", n, "tensor") for part, n in model.mlp_parts.items()),
    (
      "model.num_experts / mesh.tensor",
      model.num_experts // mesh["tensor"],
      "expert",
    ),
    ("the vocabulary", model.vocab_size, "tensor"),
  ):
    if size % mesh[axis]:
      raise ConfigError(
        f"{key}={size} cannot be split over mesh.{axis}={mesh[axis]} devices: "
        f"set --config.mesh.{axis} to a divisor of {size}"
      )
  if compute.attention == "splash":
    has_begin = batch.sharing > 1 and 0 < model.window < batch.row_length
    check_length(batch.row_length, mesh["sequence"], has_begin=has_begin)


def check_sampling(sampling: Sampling) -> None:
  """Refuses samples that the learner has no log-probability of."""
  if sampling.temperature <= 0:
    raise ConfigError(
      f"sampling.temperature={sampling.temperature} must be positive: "
      "a greedy attempt has no log-probability to learn from"
    )


def check_policy_slots(
  schedules: Sequence[PolicySlotSchedule],
  cross_policy: CrossPolicy,
  engine: EngineConfig,
) -> None:
  """Raises `ConfigError` unless all settings have as many policy slots."""
  policy_slots = tuple(schedule.text for schedule in schedules)
  if (
    len({len(policy_slots), len(cross_policy.weights), engine.num_policy_slots})
    > 1
  ):
    raise ConfigError(
      f"cross_policy.policy_slots={policy_slots}, cross_policy.weights="
      f"{cross_policy.weights} and engine.slots={engine.slots} must have one "
      "entry per policy slot each"
    )


def check_quantized(
  engine: EngineConfig, rollouts: RolloutsConfig, loss: LossConfig
) -> None:
  """Raises `ConfigError` for `engine.weights` without a reader or correction.

  The sampler is another policy than the learner's of the same version then.
  """
  if engine.weights == "full":
    return
  given = f"engine.weights={engine.weights!r}"
  if rollouts.addresses and rollouts.protocol != "agentrl":
    raise ConfigError(
      f"{given} is not for engines that speak rollouts.protocol="
      f"{rollouts.protocol!r}: they choose their weights as they start. "
      "Set --config.engine.weights=full"
    )
  if loss.proximal == "recomputed" and loss.importance == "none":
    raise ConfigError(
      f"{given} samples by other weights than loss.proximal='recomputed' "
      "computes with, and loss.importance='none' does not correct for it: set "
      "--config.loss.importance=truncated, or --config.loss.proximal=behavior"
    )


def check_stored(
  schedules: Sequence[PolicySlotSchedule],
  checkpoint: CheckpointConfig,
  *,
  num_steps: int,
  stride: int,
) -> None:
  """Refuses versions that no checkpoint would be written of.

  `stride` is the number of updates that the learner makes of a batch.
  """
  for policy_slot, schedule in enumerate(schedules):
    found = f"cross_policy.policy_slots[{policy_slot}]={schedule.text!r}"
    if schedule.every % checkpoint.every:
      raise ConfigError(
        f"{found} needs the weights of every {schedule.every} updates, and "
        f"checkpoint.every={checkpoint.every} does not keep them: make the one "
        "a multiple of the other"
      )
    if schedule.folder:
      continue
    for step in schedule.steps:
      if step % stride or step % checkpoint.every >= stride:
        raise ConfigError(
          f"{found}: no checkpoint is written of update {step}; with "
          f"checkpoint.every={checkpoint.every} and "
          f"admission.versions_per_step={stride} name multiples of both"
        )
      if step >= num_steps:
        raise ConfigError(
          f"{found}: update {step} is not before the end, train.steps="
          f"{num_steps}; the policy slot would never serve it"
        )


def refuse_absent(schedules: Sequence[PolicySlotSchedule]) -> None:
  """Raises `ConfigError` for a step that its folder does not hold."""
  for policy_slot, schedule in enumerate(schedules):
    if not schedule.folder:
      continue
    held = stored_steps(schedule.folder)
    for step in schedule.steps:
      if step not in held:
        raise ConfigError(
          f"cross_policy.policy_slots[{policy_slot}]={schedule.text!r}: "
          f"{schedule.folder} "
          f"holds no checkpoint of step {step}; it holds {held or 'none'}"
        )


def stored_steps(folder: str) -> list[int]:
  """Returns the steps in a folder of checkpoints; none if it is absent."""
  path = epath.Path(folder)
  if not path.exists():
    return []
  return sorted(int(p.name) for p in path.iterdir() if p.name.isdecimal())
