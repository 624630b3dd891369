"""Params from a Hugging Face folder.

Reading goes file by file and tensor by tensor: each device's part is copied out
of the file, handed to the device, and laid into its stacked leaf there, where
it is also transposed and made float32. No host ever holds more than one tensor,
and a process of several reads what its own devices need. The critic has no
place in such a folder: it starts at zero.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import sharding, tensor_files
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face import CONFIG_FILE, read_model
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.model.tensor_files import TensorFile
from agentrl_jax.model.tensor_names import Path, Place, places, tensors

# Tensors that a folder may hold beside those of the params, and what they are.
_SPARE = ("rotary_emb.inv_freq",)  # frequencies that config.json implies
_Leaves = dict[Path, jax.Array]


def read_params(
  folder: str | pathlib.Path, policy: Policy, mesh: Mesh, *, dtype=jnp.float32
) -> Params:
  """The params in a folder, stacked, each where the mesh wants it.

  Raises `ConfigError` if the folder is of another model than the policy, and
  `CheckpointError` if its files are incomplete or damaged.
  """
  folder = pathlib.Path(folder)
  found, family = read_model(folder)
  refuse_other(folder, found, policy.config)
  by_leaf = places(policy.config, family)
  wanted = dict(tensors(by_leaf, policy.config.num_layers))
  leaves = _zeros(policy, mesh, dtype)
  for path in tensor_files.tensor_files(folder):
    with TensorFile(path) as file:
      for name in file.entries:
        if name in wanted:
          _check_shape(file, name, by_leaf[wanted[name][0][0]].matrix)
          for leaf, layer in wanted.pop(name):
            _place(leaves, leaf, layer, by_leaf[leaf], file, name)
        elif not _is_spare(name, policy.config):
          raise CheckpointError(
            f"{path} holds {name}, which {folder / CONFIG_FILE} does not "
            "account for: it is of another model"
          )
  if wanted:
    raise CheckpointError(
      f"{folder} lacks {len(wanted)} tensors, {next(iter(wanted))} first: its "
      "files are incomplete, or of another model"
    )
  return _nested(leaves)


def refuse_other(
  folder: pathlib.Path, found: ModelConfig, wanted: ModelConfig
) -> None:
  """Raises `ConfigError` if two architectures differ, saying where."""
  differing = [
    f"{key} is {theirs} there and {getattr(wanted, key)} here"
    for key, theirs in vars(found).items()
    if key != "value_head" and theirs != getattr(wanted, key)
  ]
  if differing:
    raise ConfigError(f"{folder} holds another model: {'; '.join(differing)}")


def _is_spare(name: str, config: ModelConfig) -> bool:
  """Some tied models are saved with the embedding under the head's name too."""
  return name.endswith(_SPARE) or (
    config.tied_embedding and name == "lm_head.weight"
  )


def _check_shape(
  file: TensorFile, name: str, expected: tuple[int, ...]
) -> None:
  found = file.entries[name].shape
  if found != expected:
    raise CheckpointError(
      f"{name} in {file.path} is {list(found)} and config.json makes it "
      f"{list(expected)}: the folder's files are of two models"
    )


def _zeros(policy: Policy, mesh: Mesh, dtype) -> _Leaves:
  abstract = policy.abstract_params()
  shardings = sharding.param_shardings(abstract, mesh)
  zeros = jax.jit(
    lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), abstract),
    out_shardings=shardings,
  )()
  return {
    tuple(k.key for k in path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(zeros)
  }


def _nested(leaves: Mapping[Path, jax.Array]) -> Params:
  params: Params = {}
  for path, leaf in leaves.items():
    inner = params
    for key in path[:-1]:
      inner = inner.setdefault(key, {})
    inner[path[-1]] = leaf
  return params


def _place(
  leaves: _Leaves,
  path: Path,
  layer: int | None,
  place: Place,
  file: TensorFile,
  name: str,
) -> None:
  """Lays a part of a file into its leaf, device by device."""
  leaf = leaves.pop(path)
  spec = tuple(leaf.sharding.spec)[0 if layer is None else 1 :]
  parts: dict[Any, np.ndarray] = {}

  def part(index: tuple[slice, ...]) -> np.ndarray:
    """Read once, however many devices of this process hold a copy."""
    key = str(index)
    if key not in parts:
      parts[key] = file.read(name, place.shape, index, place.start)
    return parts[key]

  whole = jax.make_array_from_callback(
    place.shape,
    NamedSharding(leaf.sharding.mesh, PartitionSpec(*place.spec_in_file(spec))),
    part,
    dtype=file.entries[name].dtype,
  )
  leaves[path] = jax.block_until_ready(
    _laid(place, leaf.sharding)(leaf, whole, layer)
  )


@functools.cache
def _laid(place: Place, of_leaf: NamedSharding):
  def lay(leaf, part, layer):
    part = place.to_leaf(part).astype(leaf.dtype)
    if layer is None:
      return part
    return jax.lax.dynamic_update_index_in_dim(leaf, part, layer, 0)

  return jax.jit(lay, donate_argnums=0, out_shardings=of_leaf)
