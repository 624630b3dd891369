"""Adapters in PEFT's format: adapter_config.json and one safetensors file.

PEFT keeps A as [rank, inputs] and B as [outputs, rank] of each projection that
is a module of the model. GLM-4 has gate and up in one module: there the two
adapters become one of twice the rank, with the same sum. Where the base is a
model that sees (Gemma 3), the names are those of its text model's modules in
transformers since 4.52. Experts are modules, as in transformers 4 and in vLLM;
PEFT since 0.21 converts their adapters for transformers 5, which keeps all
experts of a layer in one tensor. Where files have that tensor too (gpt-oss,
Gemma 4), so have adapters: A has the experts' ranks one after another, and B
has for each rank the columns of all experts.
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
_EXPERTS = "experts."  # begins the names of tensors of all of them
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

  @property
  def sizes(self) -> tuple[tuple[int, ...], ...]:
    """Axes of the experts in one tensor, if any, of inputs, and of outputs."""
    leaf = tuple(self.place.shape[axis] for axis in self.place.order)
    experts = len(self.place.matrix) - 2
    outputs = experts + INPUT_AXES[self.name]
    return leaf[:experts], leaf[experts:outputs], leaf[outputs:]


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
  found = {
    path: place
    for path, place in places(model, family_of(model)).items()
    if path in names
  }
  return {
    _module(tensor, config): [
      _Part(names[path], path, at, found[path]) for path, at in leaves
    ]
    for tensor, leaves in tensors(found)
  }


def _module(tensor: str, config: LoraConfig) -> str:
  """Returns the module that has a tensor in PEFT's model.

  That of all experts is their module, wrapped once for each tensor: `down` is
  the outer one.
  """
  module, _, name = tensor.rpartition(".")
  is_inner = name == "gate_up_proj" and "down" in config.targets
  return f"{module}.base_layer" if is_inner else module


def _sees(base: pathlib.Path) -> bool:
  """Returns whether the text model is a part of the model in a folder."""
  path = base / MODEL_CONFIG
  described = read_object(path) if path.is_file() else {}
  return text_part(described) is not described


def _in_text(tensor: str) -> str:
  return _PREFIX + text_name(tensor.removeprefix(_PREFIX))


def _tensor(module: str, letter: str, sees: bool = False) -> str:
  text = "model.language_model." if sees else "model."
  return f"{_PREFIX}{module.replace('model.', text, 1)}.lora_{letter}.weight"


def _to_module(
  adapters: Params, parts: list[_Part]
) -> tuple[np.ndarray, np.ndarray]:
  """Builds A [ranks, inputs] and B [outputs, ranks] of a module in blocks."""
  factors = [
    [lora.get(adapters, at)[part.at] for at in lora.factors_of(part.kernel)]
    for part in parts
  ]
  rank, num_experts = factors[0][0].shape[-1], math.prod(parts[0].sizes[0])
  a_ERI = np.concatenate(
    [a.reshape(num_experts, -1, rank).swapaxes(1, 2) for a, _ in factors],
    axis=1,
    dtype=np.float32,
  )
  shape = (_num_outputs(parts[0]), len(parts) * rank, num_experts)
  b_ORE = np.zeros(shape, np.float32)
  for n, (part, (_, b)) in enumerate(zip(parts, factors, strict=True)):
    block = _place_of_b(part, rank).from_leaf(b).reshape(-1, rank, num_experts)
    b_ORE[_rows(part), n * rank : (n + 1) * rank] = block
  return a_ERI.reshape(-1, a_ERI.shape[-1]), b_ORE.reshape(len(b_ORE), -1)


def _from_module(
  adapters: Params,
  parts: list[_Part],
  rank: int,
  a: np.ndarray,
  b: np.ndarray,
  what: str,
) -> None:
  """Inverts `_to_module`; adapters that PEFT trained share one A per module."""
  experts, inputs, _ = parts[0].sizes
  num_experts, num_inputs = math.prod(experts), math.prod(inputs)
  num_outputs = _num_outputs(parts[0])
  shared = len(a) == rank * num_experts
  ranks = rank * (1 if shared else len(parts))
  rows = ranks * num_experts
  if a.shape != (rows, num_inputs) or b.shape != (num_outputs, rows):
    raise CheckpointError(
      f"{what} has A of {a.shape} and B of {b.shape}, where rank {rank} in "
      f"{len(parts)} parts is due, of {num_inputs} inputs and {num_outputs} "
      "outputs: the files are of another model"
    )
  a_ERI, b_ORE = (
    a.reshape(-1, ranks, num_inputs),
    b.reshape(-1, ranks, num_experts),
  )
  for n, part in enumerate(parts):
    own = slice(0, rank) if shared else slice(n * rank, (n + 1) * rank)
    block = b_ORE[_rows(part)]
    if np.delete(block, own, axis=1).any():
      raise ConfigError(
        f"{what} mixes the ranks of {', '.join(part.name for part in parts)}, "
        "which are apart here: merge these adapters into their model instead"
      )
    factor_b = _place_of_b(part, rank)
    pair = (
      a_ERI[:, own].swapaxes(1, 2).reshape(*experts, *inputs, rank),
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
  """Returns how many outputs the part's module has, of an expert of several."""
  experts, inputs, _ = part.sizes
  return math.prod(part.place.matrix) // math.prod((*experts, *inputs))


def _place_of_b(part: _Part, rank: int) -> Place:
  """Derives the place of B from that of its kernel: ranks replace inputs."""
  experts, _, outputs = part.sizes
  number = len(outputs)
  last = range(number + len(experts), number - 1, -1)
  return dataclasses.replace(
    part.place, shape=(*outputs, rank, *experts), order=(*last, *range(number))
  )


def _rows(part: _Part) -> slice:
  """Returns the slice of the module's outputs that the projection has."""
  _, inputs, outputs = part.sizes
  if part.place.common == len(part.place.shape):  # parts take turns
    return slice(part.place.start, None, _num_outputs(part) // outputs[0])
  first = part.place.start // math.prod(inputs)
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
  return file.read(name, shape, (slice(None),) * 2).astype(np.float32)


def _described(
  modules: _Modules, config: LoraConfig, base: str
) -> dict[str, Any]:
  """Builds adapter_config.json; several parts multiply a module's rank."""
  names = {_last(parts): len(parts) for parts in modules.values()}
  fused = sorted(name for name in names if name.startswith(_EXPERTS))
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
    "target_modules": sorted(names.keys() - {*fused}),
    **({"target_parameters": fused} if fused else {}),
    **{
      f"{what}_pattern": {m: n * unit for m, n in names.items() if n > 1}
      for what, unit in (("rank", config.rank), ("alpha", config.alpha))
    },
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
  given = [
    described.get(f"target_{kind}") or [] for kind in ("modules", "parameters")
  ]
  named = [
    str(name).removeprefix("mlp.")
    for names in given
    for name in (names if isinstance(names, list) else [names])
  ]
  if not named or any(name not in ours for name in named):
    raise ConfigError(
      f"{folder}: target_modules={given[0]!r} and target_parameters="
      f"{given[1]!r} must list some of {', '.join(ours)}; merge other adapters "
      "into their model with PEFT"
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
  targets = lora.projections(model) + lora.OF_MLPS
  every = dataclasses.replace(NO_ADAPTERS, rank=1, targets=targets)
  return {
    _last(parts): [part.name for part in parts]
    for parts in _modules(model, every).values()
  }


def _last(parts: list[_Part]) -> str:
  """Returns a tensor's last name, behind "experts." if it is of all experts."""
  name = parts[0].place.tensor.removesuffix(".weight").rpartition(".")[2]
  return f"{_EXPERTS}{name}" if parts[0].sizes[0] else name
