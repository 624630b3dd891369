"""Finds, checks and loads the model that `launch.serve` serves.

A source is a checkpoint of a run, or a Hugging Face folder. Finding it reads no
weights, so what is wrong with it is reported before any is loaded.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable

import jax
from jax.sharding import Mesh

from agentrl_jax.data.chat import pretrained
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.hugging_face_files import base_of
from agentrl_jax.model import sharding
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.config import (
  CONFIG_FILE,
  longest_context,
  read_model,
)
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.lora import NO_ADAPTERS, LoraConfig
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.weights.checkpoint import Checkpoints
from launch.config.chat import codec_of
from launch.config.settings import Settings, read_settings
from launch.storage.compile_cache import user_cache
from launch.storage.load_params import load_params
from launch.storage.run_config import run_config
from launch.storage.run_directory import RunDirectory

WARM_START = "warm_start"
_MAX_CONTEXT = 8192  # tokens, of a folder that allows more
_NAME = re.compile(r"[^\s@=]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedModel:
  """One architecture with a tokenizer and weights."""

  names: tuple[str, ...]  # that requests call it by
  step: int  # optimizer updates of reinforcement learning behind it
  source: str  # for people
  load: Callable[[Policy], Params]  # stacked, as a learner has them
  model: ModelConfig
  compute: ComputeConfig
  adaptation: LoraConfig
  codec: ChatCodec
  context: int  # tokens of prompt and answer together
  programs: tuple[pathlib.Path, str]  # the arguments of `enable_compile_cache`

  def policy(self) -> Policy:
    """The policy that weights are loaded for, on the devices they share."""
    return Policy(self.model, self.compute, self.mesh(), self.adaptation)

  def mesh(self) -> Mesh:
    """As many devices of this process as share channels and vocabulary."""
    devices, model = jax.local_devices(), self.model
    sizes = (*model.mlp_parts.values(), model.vocab_size)
    number = math.gcd(*sizes, len(devices))
    return sharding.decoding_mesh(model.shared_kv_heads, devices[:number])


def find_model(
  run: str,
  folder: str,
  *,
  context: int | None,
  dtype: str | None,
  template: str = "",
) -> ServedModel:
  """Returns the model of `--run` or `--model`; reads no weights yet.

  `template` is the chat template of a `folder`; "" is its own.

  Raises `ConfigError` or `CheckpointError` for what cannot be served.
  """
  if bool(run) == bool(folder):
    raise ConfigError(
      "name what to serve: either --run=runs/quickstart, the folder of a run, "
      "or --model=FOLDER, a Hugging Face folder; a second one has a server of "
      "its own, with another --port"
    )
  if run and template:
    raise ConfigError(
      f"--chat_template={template} is of --model, and a run has its own: leave "
      "it out"
    )
  if run:
    return _of_run(run, context, dtype)
  return _of_folder(folder, context, dtype, template)


def _split(flag: str, text: str) -> tuple[str, pathlib.Path]:
  """Splits NAME=FOLDER; a bare folder is named by its last part."""
  name, equals, folder = text.partition("=")
  if not equals or "/" in name:
    name, folder = pathlib.Path(text).resolve().name, text
  if not folder or not _NAME.fullmatch(name):
    raise ConfigError(
      f"--{flag}={text}: {name!r} cannot name a model; name one without "
      f"spaces, '@' or '=', as in --{flag}=NAME=FOLDER"
    )
  return name, pathlib.Path(folder)


def _context(flag: str, asked: int | None, known: int) -> int:
  if asked is None:
    return known
  if asked < 2:
    raise ConfigError(
      f"--context={asked} must be 2 tokens or more; {flag} allows {known}"
    )
  return asked


def _compute(known: ComputeConfig, dtype: str | None) -> ComputeConfig:
  return dataclasses.replace(known, dtype=dtype) if dtype else known


def _of_run(text: str, context: int | None, dtype: str | None) -> ServedModel:
  before, at, wanted = text.rpartition("@")
  if not at or "/" in wanted:
    before, wanted = text, ""
  name, root = _split("run", before)
  settings = read_settings(run_config(root))
  run = RunDirectory(root)
  version = _version(root, settings, run, wanted)
  step = None if version == WARM_START else int(version)
  stage = WARM_START if step is None else "rl"
  return ServedModel(
    names=(name, f"{name}@{version}"),
    step=step or 0,
    source=f"{root}, stage {stage}" + f", step {step}" * (step is not None),
    load=lambda policy: load_params(settings, policy, run, stage, step),
    model=settings.model,
    compute=_compute(settings.compute, dtype),
    adaptation=settings.lora,
    codec=codec_of(root, settings.chat),
    context=_context(f"--run={root}", context, settings.engine.context),
    programs=(root, run_config(root).compile_cache),
  )


def _version(
  root: pathlib.Path, settings: Settings, run: RunDirectory, wanted: str
) -> str:
  """Returns the version that is `wanted`; the newest, if none is named."""
  there = [str(step) for step in _steps(run, "rl")]
  # A warm start of no epochs is what the run began with.
  if not settings.warm_start.epochs or _steps(run, WARM_START):
    there.insert(0, WARM_START)
  if not there:
    raise CheckpointError(
      f"--run={root} has no checkpoint yet, neither of reinforcement learning "
      "nor of the warm start: let the run go on until it has one"
    )
  if wanted and wanted not in there:
    raise CheckpointError(
      f"--run={root}@{wanted}: this run has no such checkpoint; there are "
      f"{', '.join(there)}"
    )
  return wanted or there[-1]


def _steps(run: RunDirectory, stage: str) -> list[int]:
  """Returns the steps of a stage's checkpoints; creates no folder."""
  if not run.checkpoints(stage).exists():
    return []
  checkpoints = Checkpoints(run.checkpoints(stage), keep=2)
  try:
    return checkpoints.steps()
  finally:
    checkpoints.close()


def _of_folder(
  text: str, context: int | None, dtype: str | None, template: str
) -> ServedModel:
  name, folder = _split("model", text)
  if not (base_of(folder) / CONFIG_FILE).is_file():
    raise ConfigError(
      f"--model={folder} has no {CONFIG_FILE}: name a local Hugging Face "
      f"folder, with {CONFIG_FILE}, *.safetensors and {pretrained.TOKENIZER}; "
      "a run's own folder is served by --run"
    )
  model, _ = read_model(folder)
  allowed = longest_context(folder) or _MAX_CONTEXT
  asked = _context(f"--model={folder}", context, min(allowed, _MAX_CONTEXT))
  if asked > allowed:
    raise ConfigError(
      f"--context={asked} is beyond the {allowed} tokens that {folder} is "
      "made for (max_position_embeddings): give --context less"
    )
  on_cpu = jax.default_backend() == "cpu"
  compute = ComputeConfig(dtype="float32" if on_cpu else "bfloat16")
  compute = _compute(compute, dtype)
  return ServedModel(
    names=(name,),
    step=0,
    source=str(folder),
    load=lambda policy: read_params(
      folder, policy, _mesh_of(policy), dtype=compute.dtype
    ),
    model=model,
    compute=compute,
    adaptation=NO_ADAPTERS,
    codec=pretrained.load_chat(
      folder, pretrained.ChatConfig(template=template)
    ),
    context=asked,
    programs=(folder, str(user_cache())),
  )


def _mesh_of(policy: Policy) -> Mesh:
  assert policy.mesh is not None, "weights are loaded for no mesh"
  return policy.mesh
