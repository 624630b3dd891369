"""The config: its sections, and keys that no room of the library declares.

`python -m launch.config` prints all keys, and with `--explain loss.clip_high`
what is known of one. A key is declared once, as a field of the class that
`SECTIONS` names. A key that is nowhere declared does not exist: the config is
locked, so a misspelt override fails at launch. Defaults are AgentRL's
(arXiv:2510.04206) where it has one; the model is a small one.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from agentrl_jax.controller.cross_policy import CrossPolicy
from agentrl_jax.controller.episode import EpisodeWaits, Sampling
from agentrl_jax.controller.evaluation import EvaluationPlan
from agentrl_jax.controller.groups.admission import AdmissionLimits
from agentrl_jax.controller.groups.group import GroupLimits, RetryLimits
from agentrl_jax.controller.groups.group_queue import QueueLimits
from agentrl_jax.controller.subagent import SubagentConfig
from agentrl_jax.data.chat.pretrained import ChatConfig
from agentrl_jax.data.records import EpisodeLimits
from agentrl_jax.errors import suggestion
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.keys import Section, key, keys_of, seconds
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.sharding import MeshConfig
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.settings import AgentsConfig, RolloutsConfig
from agentrl_jax.service.docker.containers import ContainerSpec
from agentrl_jax.train.collapse.alarm import CollapseAlarmConfig
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.learner import OptimizerConfig
from agentrl_jax.train.train_batch import BatchConfig
from agentrl_jax.train.weights.checkpoint import CheckpointConfig
from agentrl_jax.train.weights.reference import ReferenceConfig
from configs import environments

FLAG = "--config."  # before a key on a command line


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Section):
  """Keys outside of all sections."""

  name: str = key("run", "folder of the run, below workdir")
  workdir: str = key("runs", "folder of all runs")
  seed: int = key(0, "of all that is random", at_most=2**32 - 1)
  compile_cache: str = key(
    "../compiled",
    "folder that keeps compiled programs for later starts, of all runs that "
    "name it; relative to the run's folder. '' keeps none",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksConfig(Section, section="tasks"):
  """Environments that are played, and their frequencies."""

  names: tuple[str, ...] = key(("dbbench", "webshop"), "keys of environments")
  held_out: tuple[str, ...] = key(
    (),
    "names that reinforcement learning leaves out. Demonstrations and "
    "evaluations have them: what does a policy learn of them from the others?",
  )
  weights: Mapping[str, float] = key(
    dict.fromkeys(environments.NAMES, 1.0),
    "relative frequency of each environment's tasks",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedConfig(Section, section="pretrained"):
  """The published model that a run starts from."""

  path: str = key(
    "",
    "Hugging Face folder to start from: config.json, *.safetensors and the "
    "tokenizer. It replaces the tokenizer and the architecture",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallModel(Section, section="model"):
  """A model that starts from nothing: a published architecture, or these."""

  name: str = key(
    "",
    "a published model of agentrl_jax/model/hugging_face/presets.py, which "
    "replaces the other keys but value_head; '': these keys",
  )
  width: int = key(192, "channels of the residual stream", at_least=1)
  num_layers: int = key(3, "one on top of the other", at_least=1)
  num_heads: int = key(4, "of queries", at_least=1)
  num_kv_heads: int = key(2, "of keys and values", at_least=1)
  head_dim: int = key(32, "channels of a head", at_least=1)
  mlp_width: int = key(
    384, "hidden channels of the MLP, or of each expert", at_least=1
  )
  num_experts: int = key(0, "of each layer, in place of its MLP")
  experts_per_token: int = key(0, "that the router chooses for each token")
  normed_experts: bool = key(False, "the weights of these add up to 1")
  window: int = key(
    0, "tokens that a local layer attends to; 0: all layers to all"
  )
  window_period: int = key(0, "every n-th layer attends to all; 0: none does")
  embedding_scale: float = key(1.0, "factor of the embeddings", above=0)
  value_head: bool = key(
    False, "a critic, for advantage estimators of the gae family"
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Section, section="tokenizer"):
  """The tokenizer of a run without a pretrained model."""

  vocab_size: int = key(1024, "tokens, bytes and markers included", at_least=1)
  num_texts: int = key(2000, "demonstrations that it is trained on", at_least=1)
  whole_tokens: tuple[str, ...] = key((), "texts that are one token each")
  whole_lines: int = key(
    0, "number of frequent lines that become one token each"
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartConfig(Section, section="warm_start"):
  """Supervised training on demonstrations."""

  chats: str = key(
    "",
    "chats to learn from, a file or a folder of them, see docs/your_data.md; "
    "'': experts play",
  )
  num_demonstrations: int = key(
    20_000, "that experts play, or that are read at most", at_least=1
  )
  epochs: int = key(
    1, "passes over the demonstrations; 0 needs pretrained.path"
  )
  learning_rate: float = key(
    2e-3, "highest value of the learning rate", above=0
  )
  warmup_steps: int = key(50, "updates until learning_rate is reached")
  copy_gain: float = key(
    0.0,
    "gain of heads that copy tokens from the first update on, in all layers "
    "of fresh params but the first; 0 begins with random heads. See "
    "agentrl_jax/model/decoder.py",
  )
  from_run: str = key(
    "",
    "folder of a run whose stages before RL are taken in place of making "
    "them: it must agree in the keys on which they depend; '': none",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(BatchConfig, section="train"):
  """Reinforcement learning: its updates, and the shapes of their batches."""

  steps: int = key(1000, "optimizer updates of reinforcement learning")
  batch_timeout_s: float = seconds(
    3600.0, "the learner's wait for a batch of groups"
  )
  step_timeout_s: float = seconds(
    86400.0,
    "the controller's wait for one step of the learner: updates, compilation "
    "and checkpoint",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessLimits(Section, section="processes"):
  """Waits of the learner's processes for each other, where it has several."""

  join_timeout_s: float = key(
    300.0, "wait for each other's start and end", at_least=1, at_most=1e9
  )
  heartbeat_timeout_s: float = key(
    100.0,
    "after which a silent machine counts as lost",
    at_least=1,
    at_most=1e9,
  )
  wait_timeout_s: float = key(
    14400.0, "of the others' wait for process 0", at_least=1, at_most=1e9
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(Section, section="report"):
  """Records that a run keeps and sends."""

  trackers: tuple[str, ...] = key(
    (),
    'copies of the metrics at "wandb", whose own variables say where: '
    "docs/reading_a_run.md",
  )
  keep_groups: int = key(
    4,
    "groups whose trajectories are kept per update, even over tasks and "
    "outcomes",
  )
  trace_share: float = key(
    0.0,
    "share of groups whose spans go to traces.jsonl, and to an OpenTelemetry "
    "collector if the environment names one: docs/reading_a_run.md",
    at_most=1,
  )


SECTIONS: tuple[type[Section], ...] = (
  RunConfig,
  TasksConfig,
  ContainerSpec,
  PretrainedConfig,
  SmallModel,
  TokenizerConfig,
  LoraConfig,
  ChatConfig,
  ComputeConfig,
  MeshConfig,
  WarmStartConfig,
  TrainConfig,
  OptimizerConfig,
  LossConfig,
  AdvantageConfig,
  ReferenceConfig,
  CollapseAlarmConfig,
  EpisodeLimits,
  SubagentConfig,
  Sampling,
  EpisodeWaits,
  GroupLimits,
  RetryLimits,
  AdmissionLimits,
  QueueLimits,
  CrossPolicy,
  EngineConfig,
  RolloutsConfig,
  AgentsConfig,
  HttpLimits,
  CheckpointConfig,
  ProcessLimits,
  EvaluationPlan,
  ReportConfig,
)


def shipped_file(name: str | pathlib.Path) -> pathlib.Path:
  """Returns the path of a name; `configs/...` is found from any folder."""
  here = pathlib.Path(name)
  there = pathlib.Path(__file__).parents[1] / here
  is_shipped = here.parts[:1] == ("configs",) and there.exists()
  return there if is_shipped and not here.exists() else here


def get_config() -> ml_collections.ConfigDict:
  """AgentRL on two of its environments, played in this process."""
  c = ml_collections.ConfigDict()
  for section in SECTIONS:
    keys = {name: about.default for name, about in keys_of(section).items()}
    if section.SECTION:
      c[section.SECTION] = keys
    else:
      c.update(keys)
  c.environments = environments.get_config()
  return c.lock()


@functools.cache
def default_values() -> Mapping[str, Any]:
  """Returns the default of every key, by section; made once, so not changed."""
  return get_config().to_dict()


def why_unknown(named: str, config: ml_collections.ConfigDict) -> str:
  """Returns why a key is refused, or "" if it exists.

  `named` is the key as it was written, with or without `--config.` before it.
  """
  key = named.removeprefix(FLAG)
  held: Any = config
  done: list[str] = []
  for word in key.split("."):
    if not isinstance(held, ml_collections.ConfigDict):
      # Part of a tuple, perhaps: parsing says what cannot be.
      return ""
    if word not in held:
      if isinstance(held, environments.Open):
        return ""
      place = ".".join(done)
      inside = f"config.{place} has" if place else "the config has"
      return (
        f"{named} is no key of the config{near_keys(key, word, config)}; "
        f"{inside} {', '.join(sorted(held))}"
      )
    done.append(word)
    held = held[word]
  return ""


def near_keys(key: str, word: str, config: ml_collections.ConfigDict) -> str:
  """Returns the keys most similar to one that does not exist, `key`.

  `word` is the part of it that nothing has.
  """
  keys = [k for k, _ in flat_keys(config)]
  elsewhere = [k for k in keys if k.rpartition(".")[2] == word]
  if elsewhere:
    return f" (did you mean {' or '.join(elsewhere)}?)"
  return suggestion(key, keys) or suggestion(word, sorted(config))


def flat_keys(
  config: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields every key with its sections, as `loss.clip_high`, and its value."""
  for name in config:
    value = config[name]
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      yield from flat_keys(value, f"{above}{name}.")
    else:
      yield f"{above}{name}", value
