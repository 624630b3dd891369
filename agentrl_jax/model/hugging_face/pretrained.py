"""Reads params from a Hugging Face folder.

Reading goes file by file and tensor by tensor: each device's part is copied out
of the file and sent to the device, which transposes it, casts it to float32 and
writes it into its stacked leaf. No host ever holds more than one tensor, and
each process reads only the parts of its own devices. The critic has no
counterpart in such a folder: it starts at zero.
"""

import contextlib
import functools
import logging
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.hugging_face_files import base_of, read_object
from agentrl_jax.model import lora, sharding
from agentrl_jax.model.config import STACKS, ModelConfig
from agentrl_jax.model.hugging_face import mxfp4, peft, tensor_files
from agentrl_jax.model.hugging_face.config import (
  CONFIG_FILE,
  PREDICTED_LAYERS,
  read_model,
)
from agentrl_jax.model.hugging_face.families.family import FAMILIES
from agentrl_jax.model.hugging_face.mxfp4 import PackedTensor
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from agentrl_jax.model.hugging_face.tensor_names import (
  EMBEDDING,
  FUSED_EXPERTS,
  HEAD,
  At,
  Path,
  Place,
  places,
  tensors,
  text_name,
)
from agentrl_jax.model.policy import Params, Policy

_log = logging.getLogger(__name__)

# What tensors may be called that a folder holds beside those of the params.
_SPARE = ("rotary_emb.inv_freq",)  # frequencies, which config.json implies
_ROWS = 256  # of two matrices that are compared, at a time


def read_params(
  folder: str | pathlib.Path, policy: Policy, mesh: Mesh, *, dtype=jnp.float32
) -> Params:
  """Reads stacked params from a folder, each sharded over the mesh.

  Of a folder of adapters these are the params of their base. The adapters
  stand beside them if the policy trains such adapters, and else are merged.
  Raises `ConfigError` if the folder is of another model than the policy, and
  `CheckpointError` if its files are incomplete or damaged.
  """
  adapters = pathlib.Path(folder)
  folder = base_of(adapters)
  found, family = read_model(folder)
  refuse_other(folder, found, policy.config)
  files = tensor_files.tensor_files(folder)
  has_bytes = mxfp4.is_mxfp4(read_object(folder / CONFIG_FILE))
  with contextlib.ExitStack() as stack:
    opened = [
      stack.enter_context(TensorFile(path, names, has_bytes=has_bytes))
      for path, names in files.items()
    ]
    is_fused = any(
      name.endswith(FUSED_EXPERTS) for file in opened for name in file.entries
    )
    filling = _Filling(policy, family, mesh, dtype, fused_experts=is_fused)
    if read_object(folder / CONFIG_FILE).get(PREDICTED_LAYERS):
      filling.predicting = 0
    for file, name in mxfp4.unpacked(opened):
      filling.take(file, name)
  params = filling.finished(folder)
  if filling.predicting:
    _log.info(
      "%s holds %d tensors of layers that predict further tokens (%s); they "
      "are not read",
      folder,
      filling.predicting,
      PREDICTED_LAYERS,
    )
  if policy.config.tied_embedding:
    refuse_other_head(files)
  if adapters == folder:
    return params
  return peft.with_adapters(adapters, params, policy, mesh)


def refuse_other(
  folder: pathlib.Path, found: ModelConfig, wanted: ModelConfig
) -> None:
  """Raises `ConfigError` with the differing keys of two architectures."""
  differing = [
    f"{key} is {theirs} there and {getattr(wanted, key)} here"
    for key, theirs in vars(found).items()
    if key != "value_head" and theirs != getattr(wanted, key)
  ]
  if differing:
    raise ConfigError(f"{folder} holds another model: {'; '.join(differing)}")


def refuse_other_head(
  files: Mapping[pathlib.Path, Collection[str] | None],
) -> None:
  """Refuses an output matrix that differs from the embedding it is tied to.

  Transformers keeps such a matrix, from version 5 on.
  """
  with contextlib.ExitStack() as stack:
    of = {
      text_name(name): (file, name)
      for path, names in files.items()
      for file in (stack.enter_context(TensorFile(path, names)),)
      for name in file.entries
    }
    if HEAD not in of:
      return
    shape, other = (of[n][0].entries[of[n][1]].shape for n in (EMBEDDING, HEAD))
    is_same = other == shape
    for begin in range(0, shape[0] if is_same else 0, _ROWS):
      index = (slice(begin, begin + _ROWS), slice(None))
      head, rows = (
        file.read(name, shape, index)
        for file, name in (of[HEAD], of[EMBEDDING])
      )
      is_same &= bool((head.astype("f4") == rows.astype("f4")).all())
    if not is_same:
      raise CheckpointError(
        f"{HEAD} in {of[HEAD][0].path} is not {EMBEDDING}, to which "
        f"tie_word_embeddings of {CONFIG_FILE} ties it: set this key to false "
        "to have both, as transformers does, or take the tensor out"
      )


class _Filling:
  """Params under construction, filled by one tensor of a file after another."""

  # Number of passed-over tensors of layers that predict further tokens; None:
  # there are no such layers.
  predicting: int | None = None

  def __init__(
    self, policy: Policy, family: str, mesh: Mesh, dtype, *, fused_experts: bool
  ):
    self._config = policy.config
    self._spare = FAMILIES[family].spare
    self._dtype = dtype
    self._places = places(policy.config, family, fused_experts=fused_experts)
    self._wanted = dict(tensors(self._places))
    abstract = policy.abstract_params()
    self._shardings = _by_path(sharding.param_shardings(abstract, mesh))
    self._leaves = self._begun(_by_path(abstract))

  def take(self, file: TensorFile | PackedTensor, name: str) -> None:
    """Writes a tensor into the leaves that share it."""
    known = text_name(name)
    if known not in self._wanted:
      if self.predicting is not None and (
        _layer_of(name) >= self._config.num_layers
      ):
        self.predicting += 1
      elif not self._is_spare(name) and 0 not in file.entries[name].shape:
        raise CheckpointError(
          f"{file.path} holds {name}, which {CONFIG_FILE} beside it does not "
          "account for: it is of another model"
        )
      return
    leaves = self._wanted.pop(known)
    shape = file.entries[name].shape
    expected = self._places[leaves[0][0]].matrix
    if shape != expected:
      raise CheckpointError(
        f"{name} in {file.path} is {list(shape)} and {CONFIG_FILE} beside it "
        f"makes it {list(expected)}: the folder's files are of two models"
      )
    for path, at in leaves:
      self._fill(path, at, file, name)

  def finished(self, folder: pathlib.Path) -> Params:
    """Returns the params; raises `CheckpointError` if tensors are missing."""
    if self._wanted:
      raise CheckpointError(
        f"{folder} lacks {len(self._wanted)} tensors, "
        f"{next(iter(self._wanted))} first: its files are incomplete, or of "
        "another model"
      )
    params: Params = {}
    for path, leaf in self._leaves.items():
      lora.put(params, path, leaf)
    return params

  def _begun(self, abstract: Mapping[Path, Any]) -> dict[Path, jax.Array]:
    """Allocates leaves that are filled layer by layer, or not at all."""
    begun = {
      path: (leaf.shape, self._dtype_of(path))
      for path, leaf in abstract.items()
      if path[0] in STACKS or path not in self._places
    }
    return jax.jit(
      lambda: {path: jnp.zeros(*of) for path, of in begun.items()},
      out_shardings={path: self._shardings[path] for path in begun},
    )()

  def _fill(
    self, path: Path, at: At, file: TensorFile | PackedTensor, name: str
  ) -> None:
    place, to = self._places[path], self._shardings[path]
    part = _sent(file, name, place, to, num_stacked=len(at))
    if at:
      self._leaves[path] = _laid(place, to)(self._leaves[path], part, at)
    else:
      self._leaves[path] = _made(place, self._dtype_of(path), to)(part)
    # Waits, so that the next part is not read before this one can go.
    jax.block_until_ready(self._leaves[path])

  def _dtype_of(self, path: Path) -> Any:
    place = self._places.get(path)
    return (place and place.dtype) or self._dtype

  def _is_spare(self, name: str) -> bool:
    """Accepts the embedding under the head's name, as in some tied models.

    And keys and values of layers that read those of others, as published.
    """
    c, known = self._config, text_name(name)
    part = known.partition("self_attn.")[2]
    is_sharing = c.num_own_kv <= _layer_of(known) < c.num_layers
    return (
      name.endswith(_SPARE)
      or name.startswith(self._spare)
      or (c.tied_embedding and known == HEAD)
      or (is_sharing and part.startswith(("k_", "v_")))
    )


def _layer_of(tensor: str) -> int:
  """Reads the number of a tensor's layer; -1 if it belongs to none."""
  layer = re.match(r"model\.layers\.(\d+)\.", tensor)
  return int(layer[1]) if layer else -1


def _by_path(tree: Params) -> dict[Path, Any]:
  return {
    tuple(key.key for key in path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _sent(
  file: TensorFile | PackedTensor,
  name: str,
  place: Place,
  of_leaf: NamedSharding,
  *,
  num_stacked: int,
) -> jax.Array:
  """Sends each device its part of a tensor in a file."""
  parts: dict[str, np.ndarray] = {}

  def part(index: tuple[slice, ...]) -> np.ndarray:
    """Reads a part once, however many devices of this process hold a copy."""
    key = str(index)
    if key not in parts:
      parts[key] = place.read(file.read, name, index)
    return parts[key]

  spec = PartitionSpec(*place.spec_in_file(tuple(of_leaf.spec)[num_stacked:]))
  return jax.make_array_from_callback(
    place.shape,
    NamedSharding(of_leaf.mesh, spec),
    part,
    dtype=file.entries[name].dtype,
  )


@functools.cache
def _made(place: Place, dtype, of_leaf: NamedSharding):
  return jax.jit(
    lambda part: place.to_leaf(part).astype(dtype), out_shardings=of_leaf
  )


@functools.cache
def _laid(place: Place, of_leaf: NamedSharding):
  def lay(leaf, part, at):
    return leaf.at[at].set(place.to_leaf(part).astype(leaf.dtype))

  return jax.jit(lay, donate_argnums=0, out_shardings=of_leaf)
