"""Writes params as a Hugging Face folder, which transformers can load.

Tensors are gathered one at a time, so that no host holds more than one of them.
The critic has no counterpart in such a folder and is left out.
"""

import collections
import dataclasses
import functools
import json
import math
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.hugging_face_files import base_of, read_object
from agentrl_jax.model import lora, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.config import (
  CONFIG_FILE,
  PREDICTED_LAYERS,
  family_of,
  from_model_config,
  has_family,
  read_model,
  text_part,
)
from agentrl_jax.model.hugging_face.pretrained import refuse_other
from agentrl_jax.model.hugging_face.tensor_names import Place, places, tensors
from agentrl_jax.model.policy import Params

TEMPLATES = "additional_chat_templates"
MAX_FILE_BYTES = 5_000_000_000


def write_params(
  folder: str | pathlib.Path,
  params: Params,
  config: ModelConfig,
  *,
  context: int,
  dtype: str = "bfloat16",
  max_file_bytes: int = MAX_FILE_BYTES,
  beside: pathlib.Path | None = None,
  about: Mapping[str, Any] | None = None,
  files: Sequence[pathlib.Path] = (),
) -> None:
  """Writes stacked params as a folder that transformers can load.

  `context` is the longest row of tokens that the model was trained on. With
  `beside`, a folder of the same model, its tokenizer and other small files are
  copied (of adapters those of their base), and its config.json is kept except
  for the dtype. `about` are more keys of that file, `files` more files for the
  folder. The folder appears under its name when it is complete. Every process
  has to call this; the first one writes. Raises `ConfigError` if the
  folder exists, or no family computes the architecture.
  """
  folder, beside = pathlib.Path(folder), beside and base_of(beside)
  params, config = without_scale(params, config)
  found = Tensors(config, np.dtype(dtype))
  sizes = {
    name: math.prod(shape) * of.itemsize
    for name, (of, shape) in found.entries.items()
  }
  described = describe(config, context, dtype, beside) | dict(about or {})
  if folder.exists():
    raise ConfigError(f"{folder} is there already; name one that is not")
  partial = folder.with_name(folder.name + ".partial")
  leads = jax.process_index() == 0
  if leads:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_small(partial, described, beside, files)
  files = dict(tensor_files.split_by_size(sizes, max_file_bytes))
  for file, names in files.items():
    arrays = (found.gathered(params, name) for name in names)
    if leads:
      entries = {name: found.entries[name] for name in names}
      tensor_files.write_file(partial / file, entries, arrays)
    else:
      collections.deque(arrays, maxlen=0)  # takes part in gathering them
  if leads:
    tensor_files.write_index(partial, files, sum(sizes.values()))
    partial.rename(folder)
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f"write_params {folder.name}")


def describe(
  config: ModelConfig, context: int, dtype: str, beside: pathlib.Path | None
) -> dict[str, Any]:
  """Returns config.json; with `beside`, that folder's but for its dtypes.

  Raises `ConfigError` if `beside` has another model.
  """
  if beside is None:
    return from_model_config(config, context=context, dtype=dtype)
  found, _ = read_model(beside)
  refuse_other(beside, found, config)
  described = {**text_part(read_object(beside / CONFIG_FILE))}
  key = "dtype" if "dtype" in described else "torch_dtype"
  described.pop("quantization_config", None)  # only reading knows MXFP4
  # Layers that predict further tokens are not read, so they are not written.
  further = (PREDICTED_LAYERS, "mtp_num_hidden_layers")
  none = {name: 0 for name in further if name in described}
  return described | {key: dtype} | none


def write_small(
  partial: pathlib.Path,
  described: Mapping[str, Any],
  beside: pathlib.Path | None,
  files: Sequence[pathlib.Path] = (),
) -> None:
  """Writes config.json, and copies small files: those beside, and `files`."""
  (partial / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n")
  small = sorted(beside.iterdir()) if beside else []
  for path in [*filter(_is_passed_on, small), *files]:
    shutil.copyfile(path, partial / path.name)
  if beside and not files and (beside / TEMPLATES).is_dir():
    shutil.copytree(beside / TEMPLATES, partial / TEMPLATES)


def _is_passed_on(path: pathlib.Path) -> bool:
  """Selects tokenizers, templates and generation settings; no weights."""
  return path.suffix in (".json", ".jinja", ".txt", ".model") and (
    path.name not in (CONFIG_FILE, tensor_files.INDEX_FILE)
  )


def without_scale(
  params: Params, config: ModelConfig
) -> tuple[Params, ModelConfig]:
  """Returns the same policy with an embedding scale of 1, or its family's.

  An embedding that is read at one scale and written at another becomes two.
  """
  if config.embedding_scale == 1 or has_family(config):
    return params, config
  embedding_VD = params["embedding"]
  scaled = {"embedding": embedding_VD * config.embedding_scale}
  if config.tied_embedding:
    scaled["head"] = {"kernel": embedding_VD.T}
  return params | scaled, dataclasses.replace(
    config, embedding_scale=1.0, tied_embedding=False
  )


class Tensors:
  """Params as Hugging Face's tensors: their names and shapes, one at a time."""

  def __init__(self, config: ModelConfig, dtype: np.dtype):
    """Raises `ConfigError` if no family computes this architecture."""
    self._places = places(config, family_of(config))
    self._leaves = dict(tensors(self._places))
    self.entries = {
      name: (np.dtype(place.dtype or dtype), place.matrix)
      for name, leaves in self._leaves.items()
      for place in (self._places[leaves[0][0]],)
    }

  def gathered(self, params: Params, name: str) -> np.ndarray:
    """Gathers one tensor on the host, from all its shards.

    Every process has to ask for the same tensors in the same order.
    """
    leaves = self._leaves[name]
    arrays = [lora.get(params, path) for path, _ in leaves]
    parts = tuple(self._places[path] for path, _ in leaves)
    take = _taken(parts, self.entries[name][0], _within_reach(arrays[0]))
    whole = take(arrays, leaves[0][1])
    if not whole.is_fully_addressable:
      whole = whole.addressable_data(0)
    return np.asarray(whole)


@functools.cache
def _taken(places_of: tuple[Place, ...], dtype: np.dtype, to):
  def take(leaves, at):
    common = places_of[0].common
    flat = [
      place.from_leaf(leaf[at]).reshape(*place.shape[:common], -1)
      for place, leaf in zip(places_of, leaves, strict=True)
    ]
    whole = jnp.concatenate(flat, axis=common)
    return whole.reshape(places_of[0].matrix).astype(dtype)

  return jax.jit(take, out_shardings=to)


def _within_reach(leaf: jax.Array) -> NamedSharding | None:
  """Returns a sharding that this process can read fully, None for any."""
  if leaf.is_fully_addressable:
    return None
  return sharding.replicated(leaf.sharding.mesh)
