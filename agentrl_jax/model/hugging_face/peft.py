"""Adapters in PEFT's format: adapter_config.json and one safetensors file.

PEFT keeps A as [rank, inputs] and B as [outputs, rank] of each projection that
is a module of the model. GLM-4 has gate and up in one module: there the two
adapters become one of twice the rank, with the same sum. Where the base is a
model that sees (Gemma 3), the names are those of its text model's modules in
transformers since 4.52. Experts are modules, as in transformers 4 and in vLLM;
PEFT since 0.21 converts their adapters for transformers 5, which keeps all
experts of a layer in one tensor.
"""

import dataclasses
import json
import logging
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.hugging_face_files import ADAPTERS as CONFIG_FILE
from agentrl_jax.hugging_face_files import read_object
from agentrl_jax.model import lora, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.config import CONFIG_FILE as MODEL_CONFIG
from agentrl_jax.model.hugging_face.config import family_of, text_part
from agentrl_jax.model.hugging_face.settings import read_number, read_size
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.hugging_face.tensor_names import (
  At,
  Path,
  Place,
  places,
  tensors,
  text_name,
)
from agentrl_jax.model.lora import INPUT_AXES, NO_ADAPTERS, LoraConfig, Params
from agentrl_jax.model.policy import Policy

TENSORS_FILE = tensor_files.ADAPTER_TENSORS
_log = logging.getLogger(__name__)
_PREFIX = "base_model.model."
# What an adapter_config.json may say only so: anything else is another sum.
_ONLY: Mapping[str, tuple[Any, ...]] = {
  "peft_type": ("LORA",),
  "bias": ("none",),
  "use_dora": (False, None),
  "lora_bias": (False, None),
  "trainable_token_indices": (None,),
  "modules_to_save": (None, []),
  "layers_to_transform": (None,),
  "layer_replication": (None,),
  "use_qalora": (False, None),
  "alora_invocation_tokens": (None,),
  # Of all experts of a layer at once, as PEFT saves them for transformers 5.
  "target_parameters": (None, []),
  # Others take a part of the model's own weights into the adapters.
  "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


@dataclasses.dataclass(frozen=True)
class _Part:
  """A projection of one layer, or of one expert of it, within a module."""

  name: str
  kernel: Path  # of all layers
  at: At
  place: Place


_Modules = Mapping[str, list[_Part]]  # by names in Hugging Face's model


def write_adapters(
  folder: str | pathlib.Path,
  adapters: Params,
  model: ModelConfig,
  config: LoraConfig,
  *,
  base: str,
) -> None:
  """Writes adapters as a folder that `peft.PeftModel` loads onto `base`.

  `base` names the model that they belong to. Every process has to call this;
  the first one writes. Raises `ConfigError` if the folder exists.
  """
  folder = pathlib.Path(folder)
  if folder.exists():
    raise ConfigError(f"{folder} is there already; name one that is not")
  whole = jax.tree.map(_on_host, adapters)
  if jax.process_index():
    return
  modules = _modules(model, config)
  sees = _sees(pathlib.Path(base))
  named: dict[str, np.ndarray] = {}
  for module, parts in modules.items():
    for letter, factor in zip("AB", _to_module(whole, parts), strict=True):
      named[_tensor(module, letter, sees)] = factor
  partial = folder.with_name(folder.name + ".partial")
  partial.mkdir(parents=True, exist_ok=True)
  entries = {name: (x.dtype, x.shape) for name, x in named.items()}
  tensor_files.write_file(partial / TENSORS_FILE, entries, named.values())
  described = _described(modules, config, base)
  if sees:  # whose other parts have modules of the same names
    described["exclude_modules"] = r".*(vision_tower|multi_modal_projector).*"
  (partial / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n")
  partial.rename(folder)


def read_adapters(
  folder: str | pathlib.Path, model: ModelConfig
) -> tuple[LoraConfig, Params]:
  """Reads adapters of `write_adapters` or PEFT as host arrays.

  Raises `ConfigError` for adapters of a kind that is not supported, and
  `CheckpointError` if the files are incomplete or of another model.
  """
  folder = pathlib.Path(folder)
  config = _config_of(folder, model)
  adapters: Params = {stack: {} for stack in model.stacks}
  with TensorFile(folder / TENSORS_FILE) as file:
    theirs = {_in_text(name): name for name in file.entries}
    unread = {*theirs}
    for module, parts in _modules(model, config).items():
      names = [_tensor(module, letter) for letter in "AB"]
      a, b = (_read(file, theirs.get(name, name)) for name in names)
      _from_module(adapters, parts, config.rank, a, b, f"{folder}: {module}")
      unread -= {*names}
  if unread:
    raise CheckpointError(
      f"{folder / TENSORS_FILE} holds {min(unread)}, for which {CONFIG_FILE} "
      "beside it does not account: merge these adapters into their model with "
      "PEFT"
    )
  return config, adapters


def with_adapters(
  folder: pathlib.Path, params: Params, policy: Policy, mesh: Mesh
) -> Params:
  """Adds a folder's adapters to the params of their base.

  They stand beside the kernels if the policy trains adapters of the same rank,
  scale and targets; else they are merged, and the params keep their dtypes.
  Raises as `read_adapters` does.
  """
  config, adapters = read_adapters(folder, policy.config)
  places = sharding.param_shardings(adapters, mesh)
  adapters = jax.device_put(adapters, places)
  if goes_on(folder, policy.config, policy.adaptation):
    return lora.joined(params, adapters)
  _log.info(
    "%s is merged into its base. To train on these adapters themselves set "
    "lora.rank=%d lora.alpha=%g lora.targets=%s",
    folder,
    config.rank,
    config.alpha,
    config.targets,
  )

  def merge(params: Params, adapters: Params) -> Params:
    merged = lora.merged(lora.joined(params, adapters), config.scale)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), merged, params)

  places = sharding.param_shardings(params, mesh)
  merged: Params = jax.jit(merge, out_shardings=places, donate_argnums=0)(
    params, adapters
  )
  return merged


def goes_on(
  folder: pathlib.Path, model: ModelConfig, adaptation: LoraConfig
) -> bool:
  """Says if a run trains the very adapters of a folder, and merges none."""
  config = _config_of(folder, model)
  sizes = (config.rank, config.alpha) == (adaptation.rank, adaptation.alpha)
  return sizes and {*config.targets} == {*adaptation.targets}


def _on_host(leaf: jax.Array) -> np.ndarray:
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
  return np.asarray(leaf)


def _modules(model: ModelConfig, config: LoraConfig) -> _Modules:
  """Groups projections by the module that they are parts of."""
  config.check(model)
  names = {
    (stack, *path): name
    for stack in model.stacks
    for name, path in config.kernels(model, stack).items()
  }
  every = places(model, family_of(model))
  found = {path: place for path, place in every.items() if path in names}
  return {
    tensor.removesuffix(".weight"): [
      _Part(names[path], path, at, found[path]) for path, at in leaves
    ]
    for tensor, leaves in tensors(found)
  }


def _sees(base: pathlib.Path) -> bool:
  """Returns whether the text model is a part of the model in a folder."""
  if not (base / MODEL_CONFIG).is_file():
    return False
  described = read_object(base / MODEL_CONFIG)
  return text_part(described) is not described


def _in_text(tensor: str) -> str:
  return _PREFIX + text_name(tensor.removeprefix(_PREFIX))


def _tensor(module: str, letter: str, sees: bool = False) -> str:
  name = f"{module}.lora_{letter}.weight"
  if sees:
    name = name.replace("model.", "model.language_model.", 1)
  return _PREFIX + name


def _to_module(
  adapters: Params, parts: list[_Part]
) -> tuple[np.ndarray, np.ndarray]:
  """Builds A [ranks, inputs] and B [outputs, ranks] of a module in blocks."""
  blocks = []
  for part in parts:
    a, b = (
      lora.get(adapters, path)[part.at] for path in lora.factors_of(part.kernel)
    )
    rank = a.shape[-1]
    outputs_b = _place_of_b(part, rank).from_leaf(b).reshape(-1, rank)
    blocks.append((_rows(part), a.reshape(-1, rank).T, outputs_b))
  whole_a = np.concatenate([a for _, a, _ in blocks])
  whole_b = np.zeros((parts[0].place.matrix[0], len(whole_a)), np.float32)
  at = 0
  for rows, a, b in blocks:
    whole_b[rows, at : at + len(a)] = b
    at += len(a)
  return whole_a.astype(np.float32), whole_b


def _from_module(
  adapters: Params,
  parts: list[_Part],
  rank: int,
  a: np.ndarray,
  b: np.ndarray,
  what: str,
) -> None:
  """Inverts `_to_module`; adapters that PEFT trained share one A per module."""
  shared = len(a) == rank
  ranks = rank * (1 if shared else len(parts))
  num_outputs, num_inputs = parts[0].place.matrix
  if a.shape != (ranks, num_inputs) or b.shape != (num_outputs, ranks):
    raise CheckpointError(
      f"{what} has A of {a.shape} and B of {b.shape}, where rank {rank} in "
      f"{len(parts)} parts is due, of {num_inputs} inputs and {num_outputs} "
      "outputs: the files are of another model"
    )
  for n, part in enumerate(parts):
    own = slice(0, rank) if shared else slice(n * rank, (n + 1) * rank)
    block = b[_rows(part)]
    if np.delete(block, own, axis=1).any():
      raise ConfigError(
        f"{what} mixes the ranks of {', '.join(part.name for part in parts)}, "
        "which are apart here: merge these adapters into their model instead"
      )
    inputs = part.place.shape[_num_outputs(part) :]
    factor_b = _place_of_b(part, rank)
    pair = (
      a[own].T.reshape(*inputs, rank),
      factor_b.to_leaf(block[:, own].reshape(factor_b.shape)),
    )
    for path, factor in zip(lora.factors_of(part.kernel), pair, strict=True):
      _lay(adapters, path, part, factor)


def _lay(adapters: Params, path: Path, part: _Part, factor: np.ndarray) -> None:
  """Writes one module's factor into that of all layers, which may be new."""
  try:
    whole = lora.get(adapters, path)
  except KeyError:
    sizes = (len(part.place.layers), part.place.num_experts)
    whole = np.zeros((*sizes[: len(part.at)], *factor.shape), np.float32)
    lora.put(adapters, path, whole)
  whole[part.at] = factor


def _num_outputs(part: _Part) -> int:
  """Returns how many axes of the part's shape are outputs, the first ones."""
  return len(part.place.shape) - INPUT_AXES[part.name]


def _place_of_b(part: _Part, rank: int) -> Place:
  """Derives the place of B from that of its kernel: ranks replace inputs."""
  number = _num_outputs(part)
  return dataclasses.replace(
    part.place,
    shape=(*part.place.shape[:number], rank),
    order=(number, *range(number)),
  )


def _rows(part: _Part) -> slice:
  """Returns the slice of the module's outputs that the projection has."""
  first = part.place.start // part.place.matrix[1]
  outputs = part.place.shape[: _num_outputs(part)]
  return slice(first, first + math.prod(outputs))


def _read(file: TensorFile, name: str) -> np.ndarray:
  if name not in file.entries:
    raise CheckpointError(
      f"{file.path} lacks {name}: the adapters are of another model, or the "
      "file is incomplete"
    )
  shape = file.entries[name].shape
  if len(shape) != 2:
    raise CheckpointError(
      f"{name} in {file.path} is {list(shape)}, where a matrix is due: the "
      "files are of another model"
    )
  whole = tuple(slice(0, n) for n in shape)
  return file.read(name, shape, whole).astype(np.float32)


def _described(
  modules: _Modules, config: LoraConfig, base: str
) -> dict[str, Any]:
  """Builds adapter_config.json; several parts multiply a module's rank."""
  names = {_last(module): len(parts) for module, parts in modules.items()}
  several = {name: n for name, n in names.items() if n > 1}
  return {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": base,
    "r": config.rank,
    "lora_alpha": config.alpha,
    "lora_dropout": 0.0,
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "target_modules": sorted(names),
    "rank_pattern": {name: n * config.rank for name, n in several.items()},
    "alpha_pattern": {name: n * config.alpha for name, n in several.items()},
  }


def _config_of(folder: pathlib.Path, model: ModelConfig) -> LoraConfig:
  """Reads the config that a folder's adapters were made with."""
  described = read_object(folder / CONFIG_FILE)
  for key, allowed in _ONLY.items():
    if described.get(key, allowed[0]) not in allowed:
      raise ConfigError(
        f"{folder}: {key}={described[key]!r} is computed otherwise; merge these"
        " adapters into their model with PEFT and start from that"
      )
  ours = _names(model)
  named = described.get("target_modules")
  names = [*ours]  # a list, as what was found may have no hash
  if not isinstance(named, list) or any(each not in names for each in named):
    raise ConfigError(
      f"{folder}: target_modules={named!r} must list some of {', '.join(ours)}"
    )
  try:
    rank, alpha = (
      read_size(described, "r"),
      read_number(described, "lora_alpha"),
    )
    config = LoraConfig(
      rank=rank,
      # Of rsLoRA (arXiv:2312.03732) the scale is alpha / sqrt(rank).
      alpha=alpha * rank**0.5 if described.get("use_rslora") else alpha,
      targets=tuple(name for m in ours if m in named for name in ours[m]),
    )
  except ConfigError as error:
    raise ConfigError(f"{folder / CONFIG_FILE}: {error}") from error
  _refuse_patterns(described, config, ours, folder)
  return config


def _refuse_patterns(
  described: Mapping[str, Any],
  config: LoraConfig,
  ours: Mapping[str, list[str]],
  folder: pathlib.Path,
) -> None:
  """Refuses ranks per module other than those that `_described` writes."""
  for key, unit in (
    ("rank_pattern", config.rank),
    ("alpha_pattern", config.alpha),
  ):
    pattern = described.get(key) or {}
    values = pattern.items() if isinstance(pattern, dict) else [("", pattern)]
    for module, value in values:
      if value != unit * len(ours.get(module, ())):
        raise ConfigError(
          f"{folder}: {key}={described[key]!r} gives modules ranks of their "
          "own, and there is one rank for all here; merge these adapters into "
          "their model with PEFT"
        )


def _names(model: ModelConfig) -> dict[str, list[str]]:
  """Maps the last name of Hugging Face's modules to our projections."""
  targets = lora.projections(model)
  if not model.expert_bias:
    targets += lora.OF_MLPS
  every = dataclasses.replace(NO_ADAPTERS, rank=1, targets=targets)
  modules = _modules(model, every)
  return {
    _last(module): [part.name for part in parts]
    for module, parts in modules.items()
  }


def _last(module: str) -> str:
  return module.rpartition(".")[2]
