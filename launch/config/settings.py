"""Reads a config into typed, checked settings, in under a second.

`ConfigDict` stops here. Every section becomes the frozen dataclass of the
package that uses it, which checks itself; sections are checked against each
other below, before anything is compiled or started.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.controller.episode import EpisodeWaits, Sampling
from agentrl_jax.controller.evaluation import EvaluationPlan
from agentrl_jax.controller.groups.admission import AdmissionLimits
from agentrl_jax.controller.groups.group import GroupLimits, RetryLimits
from agentrl_jax.controller.groups.group_queue import ANY_AGE, QueueLimits
from agentrl_jax.controller.subagent import PLANNER, WORKER, SubagentConfig
from agentrl_jax.data.chat.pretrained import ChatConfig
from agentrl_jax.data.records import EpisodeLimits
from agentrl_jax.env.loading import parse_options
from agentrl_jax.env.mistakes import require_rates
from agentrl_jax.errors import ConfigError
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.keys import Section, key, keys_of
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.sharding import MeshConfig
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.settings import AgentsConfig, RolloutsConfig
from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.train.collapse.alarm import CollapseAlarmConfig
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.checks import require_one_of, require_read
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.learner import OptimizerConfig
from agentrl_jax.train.weights.checkpoint import CheckpointConfig
from agentrl_jax.train.weights.policy_slot_schedule import (
  PolicySlotSchedule,
  read_schedules,
)
from agentrl_jax.train.weights.reference import ReferenceConfig
from configs.base import (
  SECTIONS,
  ProcessLimits,
  TasksConfig,
  TrainConfig,
  WarmStartConfig,
)
from launch.config.architecture import read_architecture
from launch.config.checks import (
  check_admission,
  check_keep_best,
  check_learning,
  check_mesh,
  check_policy_slots,
  check_quantized,
  check_read,
  check_sampling,
  check_stored,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaceSettings(Section, section="environments.NAME.place"):
  """The place of an environment's sessions.

  With a controller, `containers` is the number at each host of its workers.
  """

  containers: int = key(0, "of its image; 0 and no address: in this process")
  image: str = key("", "'' is agentrl_jax/<folder of the environment>")
  options: tuple[str, ...] = key(
    (), 'that differ at this place, as "engine=mariadb"'
  )
  worker: str = key("", "http://host:port/api of a running worker")
  controller: str = key(
    "",
    "http://host:port/api of a controller whose workers are called as the "
    "environment; of several, separated by commas",
  )
  token_file: str = key(
    "",
    "of the controller's clients, or of the worker: a file whose first line "
    "is the token, or env:NAME; '' sends none",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    other = "containers" if self.containers else "controller"
    if self.worker and getattr(self, other):
      raise ConfigError(
        f"{self.SECTION}.{other}={getattr(self, other)!r} and {self.SECTION}."
        f"worker={self.worker!r} are two places; set one"
      )

  @property
  def is_elsewhere(self) -> bool:
    """True if sessions are played outside of this process."""
    return bool(self.containers or self.worker or self.controller)

  @property
  def owns_containers(self) -> bool:
    """True if the process that reads the config starts the containers."""
    return bool(self.containers and not self.controller)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
  """The class of an environment, its options and its expert's mistakes."""

  target: str
  options: Mapping[str, Any]
  mistakes: Mapping[str, float]
  weight: float
  place: PlaceSettings
  held_out: bool = False  # from reinforcement learning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """A whole config, typed and checked."""

  seed: int
  mesh: Mapping[str, int]  # size of each axis
  slices: MeshConfig  # the same, and the slices that it spans
  environments: Mapping[str, EnvironmentSettings]
  containers: Mapping[str, ContainerSpec]  # of those that play in some
  pretrained: str  # a Hugging Face folder; "" begins with untrained params
  model: ModelConfig
  lora: LoraConfig
  chat: ChatConfig
  compute: ComputeConfig
  episode: EpisodeLimits
  subagent: SubagentConfig
  waits: EpisodeWaits
  sampling: Sampling
  group: GroupLimits
  retry: RetryLimits
  admission: AdmissionLimits
  queue: QueueLimits
  policy_slots: tuple[PolicySlotSchedule, ...]  # what each policy slot serves
  cross_policy: CrossPolicy
  engine: EngineConfig
  rollouts: RolloutsConfig
  agents: AgentsConfig
  http: HttpLimits
  loss: LossConfig
  reference: ReferenceConfig
  # Of reference.path, which `launch.storage.load_params.with_teacher` reads;
  # None: the policy's.
  teacher: ModelConfig | None = None
  advantage: AdvantageConfig
  collapse_alarm: CollapseAlarmConfig
  batch: TrainConfig
  optimizer: OptimizerConfig
  warm_start: WarmStartConfig
  checkpoint: CheckpointConfig
  evaluation: EvaluationPlan
  processes: ProcessLimits

  @property
  def warm_start_optimizer(self) -> OptimizerConfig:
    """The optimizer of supervised training, on a small model's own scale."""
    return OptimizerConfig(
      learning_rate=self.warm_start.learning_rate,
      warmup_steps=self.warm_start.warmup_steps,
      final_lr_ratio=0.1,
      b2=0.95,
      weight_decay=0.01,
      expert_bias_rate=self.optimizer.expert_bias_rate,
    )

  @property
  def reference_model(self) -> ModelConfig:
    """The model of the KL reference."""
    return self.teacher or self.model

  @property
  def task_ids(self) -> dict[str, int]:
    """A number for each environment, in the order of `tasks.names`."""
    return {name: n for n, name in enumerate(self.environments)}


def read_settings(config: ml_collections.ConfigDict) -> Settings:
  """Reads every section. Raises `ConfigError` for what cannot work."""
  sections = _read_sections(config, SECTIONS)
  environments, containers = read_environments(config)
  slices, batch = sections["mesh"], sections["train"]
  fields = {field.name for field in dataclasses.fields(Settings)}
  settings = Settings(
    **{n: s for n, s in sections.items() if n in fields - _READ_APART},
    seed=sections[""].seed,
    mesh=slices.axes,
    slices=slices,
    environments=environments,
    containers=containers,
    pretrained=sections["pretrained"].path,
    model=read_architecture(config),
    policy_slots=read_schedules(sections["cross_policy"].policy_slots),
    batch=batch,
  )
  check_read(config)
  _check_together(settings)
  return settings


# Sections that settings have in another form.
_READ_APART = {"containers", "mesh", "model", "pretrained"}


def _read_sections(
  config: ml_collections.ConfigDict, sections: Iterable[type[Section]]
) -> dict[str, Any]:
  """Makes the class of each section. All wrong ones are named at once."""
  found, wrong = {}, []
  for section in sections:
    held = config[section.SECTION] if section.SECTION else config
    values = held.to_dict()
    try:
      found[section.SECTION] = section(
        **{k: values[k] for k in keys_of(section)}
      )
    except ConfigError as error:
      wrong.append(str(error))
  if wrong:
    raise ConfigError("; ".join(wrong))
  return found


def read_environments(
  config: ml_collections.ConfigDict,
) -> tuple[dict[str, EnvironmentSettings], dict[str, ContainerSpec]]:
  """Reads the environments and their containers.

  Machines that play environments read no other section: the model may be in a
  bucket that they cannot reach. Raises `ConfigError`.
  """
  common = _read_sections(config, (TasksConfig, ContainerSpec))["containers"]
  environments = _environments(config)
  return environments, _containers(environments, common)


def _environments(
  config: ml_collections.ConfigDict,
) -> dict[str, EnvironmentSettings]:
  known, weights = config.environments.to_dict(), config.tasks.weights.to_dict()
  if not config.tasks.names and (
    config.train.steps or not config.warm_start.chats
  ):
    raise ConfigError(
      f"tasks.names is empty; name one of {', '.join(known)} at least, or "
      "learn from chats alone: train.steps=0 and warm_start.chats"
    )
  for name in config.tasks.names:
    require_one_of("tasks.names", name, known)
    if name not in weights:
      raise ConfigError(
        f"tasks.weights.{name} is missing; the weights are of "
        f"{', '.join(weights)}. Set c.tasks.weights.{name} = 1.0 beside "
        f"c.environments.{name}"
      )
    if not 0 < weights[name] < math.inf:
      raise ConfigError(
        f"tasks.weights.{name}={weights[name]} must be above 0 and finite; "
        f"leave {name} out of tasks.names to train without it"
      )
  for name in config.tasks.held_out:
    require_one_of("tasks.held_out", name, config.tasks.names)
  if config.tasks.names and set(config.tasks.held_out) == set(
    config.tasks.names
  ):
    raise ConfigError(
      f"tasks.held_out={config.tasks.held_out} has all of tasks.names, so "
      "there is nothing to train on: leave one out of tasks.held_out"
    )
  return {
    name: _environment(
      name, known[name], weights[name], name in config.tasks.held_out
    )
    for name in config.tasks.names
  }


def _environment(
  name: str, section: Mapping[str, Any], weight: float, held_out: bool
) -> EnvironmentSettings:
  """Reads one environment's section; `place` defaults to this process."""
  where = f"environments.{name}"
  _require_keys(
    where,
    section,
    known=("target", "options", "mistakes", "place"),
    needed=("target", "options", "mistakes"),
  )
  place = section.get("place", {})
  _require_keys(
    f"{where}.place", place, known=list(keys_of(PlaceSettings)), needed=()
  )
  require_rates(section["mistakes"], where=f"{where}.mistakes")
  try:
    played_at = PlaceSettings(**place)
  except ConfigError as error:
    named = str(error).replace(PlaceSettings.SECTION, f"{where}.place")
    raise ConfigError(named) from error
  return EnvironmentSettings(
    target=section["target"],
    options=section["options"],
    mistakes=section["mistakes"],
    weight=weight,
    held_out=held_out,
    place=played_at,
  )


def _require_keys(
  where: str,
  section: Mapping[str, Any],
  *,
  known: Sequence[str],
  needed: Sequence[str],
) -> None:
  if unknown := [key for key in section if key not in known]:
    raise ConfigError(
      f"{where} has no key {', '.join(unknown)}; its keys are "
      f"{', '.join(known)}. Correct the name, or remove it"
    )
  if missing := [f"{where}.{key}" for key in needed if key not in section]:
    raise ConfigError(
      f"{', '.join(missing)} is missing; {where} needs {', '.join(needed)}. "
      "Make the section with configs.environments.entry, which sets them all"
    )


def _containers(
  environments: Mapping[str, EnvironmentSettings], common: ContainerSpec
) -> dict[str, ContainerSpec]:
  """Returns each environment's container spec."""
  return {
    name: dataclasses.replace(
      common,
      image=s.place.image or f"agentrl_jax/{_folder(s.target)}",
      options={**s.options, **parse_options(s.place.options)},
    )
    for name, s in environments.items()
    if s.place.containers
  }


def _folder(target: str) -> str:
  """Returns the folder of a target: dbbench for
  `environments.dbbench:DBBench`.
  """
  words = target.partition(":")[0].split(".")
  return words[min(1, len(words) - 1)]


def _check_together(s: Settings) -> None:
  """Checks the sections against each other."""
  steps = s.batch.steps
  check_learning(s.loss, s.advantage, s.model, s.group, s.reference)
  s.optimizer.check_experts(s.model, s.lora)
  check_mesh(s.mesh, s.batch, s.model, s.compute)
  check_sampling(s.sampling)
  check_quantized(s.engine, s.rollouts, s.loss)
  for name, room in (
    ("engine.context", s.engine.context),
    ("train.row_length", s.batch.row_length),
  ):
    if room < s.episode.max_tokens:
      raise ConfigError(
        f"{name}={room} is below episode.max_tokens={s.episode.max_tokens}: "
        "raise the one or lower the other"
      )
  if s.queue.max_groups < s.admission.groups_per_step:
    raise ConfigError(
      f"queue.max_groups={s.queue.max_groups} is below "
      f"admission.groups_per_step={s.admission.groups_per_step}: a batch would "
      "never be complete"
    )
  _check_waits(s)
  max_age, max_staleness = s.queue.max_age, s.admission.max_staleness
  if max_age != ANY_AGE and max_age < max_staleness:
    raise ConfigError(
      f"queue.max_age={max_age} is below admission.max_staleness="
      f"{max_staleness}: groups are let start that could not be taken in time. "
      f"Raise the one to {max_staleness} or lower the other to {max_age}"
    )
  if steps % s.admission.versions_per_step:
    raise ConfigError(
      f"train.steps={steps} is no multiple of admission.versions_per_step="
      f"{s.admission.versions_per_step}, the updates made of one batch"
    )
  _check_subagent(s)
  _check_roles(s)
  check_admission(s.admission, s.group)
  _check_evaluation(s)
  check_keep_best(s.checkpoint, s.evaluation)
  check_policy_slots(s.policy_slots, s.cross_policy, s.engine)
  _check_router_replay(s)
  check_stored(
    s.policy_slots,
    s.checkpoint,
    num_steps=steps,
    stride=s.admission.versions_per_step,
  )


def _check_subagent(s: Settings) -> None:
  """Requires that sub-agents can be called, and can end."""
  tool = s.subagent.tool
  if tool and s.agents.play:
    raise ConfigError(
      f"subagent.tool={tool!r} is not for agents with their own loop: set it "
      "to '', or agents.port to -1"
    )
  if tool and s.sampling.calls == "required":
    raise ConfigError(
      f"subagent.tool={tool!r}: a sub-agent ends with an answer without a "
      "call, which sampling.calls='required' forbids: set "
      "--config.sampling.calls=well_formed"
    )


def _check_roles(s: Settings) -> None:
  """Requires that keys about agents are for episodes that have several."""
  why = (
    "for episodes of one agent: external agents (agents.port) and sub-agents "
    "(subagent.tool) have roles"
  )
  for name, value, idle in (
    ("advantage.compare", s.advantage.compare, "episodes"),
    ("train.roles", s.batch.roles, ()),
  ):
    is_read = s.agents.play or bool(s.subagent.tool)
    require_read(name, value, idle=idle, is_read=is_read, why=why)
  unknown = set(s.batch.roles) - {PLANNER, WORKER}
  if s.subagent.tool and unknown:
    raise ConfigError(
      f"train.roles={s.batch.roles!r}: with subagent.tool={s.subagent.tool!r} "
      f"the roles are {PLANNER!r} and {WORKER!r}"
    )


def _check_evaluation(s: Settings) -> None:
  """Requires that agents who are to play evaluations are let in."""
  require_read(
    "evaluation.agents",
    s.evaluation.agents,
    idle=False,
    is_read=s.agents.play,
    why="with agents.port=-1, which lets no agents in",
  )


def _check_router_replay(s: Settings) -> None:
  """Requires a model with experts, and an engine that tells of them."""
  if not s.engine.router_replay:
    return
  for name, value, has_experts, why in (
    ("model.num_experts", s.model.num_experts, s.model.num_experts, "has none"),
    (
      "rollouts.protocol",
      s.rollouts.protocol,
      s.rollouts.protocol == "agentrl" or not s.rollouts.servers,
      "does not tell them",
    ),
  ):
    if not has_experts:
      raise ConfigError(
        "engine.router_replay=True routes the learner's tokens to the experts "
        f"that the engine chose, and {name}={value!r} {why}: set "
        "--config.engine.router_replay=False"
      )


def _check_waits(s: Settings) -> None:
  """Requires that a lost server is found before its answer is given up."""
  if (
    s.rollouts.servers
    and s.waits.answer_timeout_s <= s.rollouts.answer_timeout_s
  ):
    raise ConfigError(
      f"waits.answer_timeout_s={s.waits.answer_timeout_s:g} must be above "
      f"rollouts.answer_timeout_s={s.rollouts.answer_timeout_s:g}, within "
      f"which other servers "
      "are tried"
    )
