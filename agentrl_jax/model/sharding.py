"""Where params and batches live on a mesh: one table, two steps.

Every axis of every parameter has a logical name, found by the parameter's place
in the tree. `RULES` says which mesh axis a logical axis is split over. A mesh
axis that does not divide the array's axis is an error before anything compiles.
Leaves below `layers` are stacked: an axis of layers, split over nothing, comes
before those of the table.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

# Logical axes of each parameter, by the end of its path.
LOGICAL_AXES: Mapping[str, tuple[str | None, ...]] = {
  "embedding": ("vocab", "width"),
  "head/kernel": ("width", "vocab"),
  "q/kernel": ("width", "kv_heads", "heads", "channels"),
  "q/bias": ("kv_heads", "heads", "channels"),
  "k/kernel": ("width", "kv_heads", "channels"),
  "k/bias": ("kv_heads", "channels"),
  "v/kernel": ("width", "kv_heads", "channels"),
  "v/bias": ("kv_heads", "channels"),
  "o/kernel": ("kv_heads", "heads", "channels", "width"),
  "gate/kernel": ("width", "mlp"),
  "up/kernel": ("width", "mlp"),
  "down/kernel": ("mlp", "width"),
  "scale": (None,),
  "critic/kernel": ("width", None),
  "critic/bias": (None,),
}

# Which mesh axis splits a logical axis; what is not here is replicated.
RULES: Mapping[str, str] = {
  "width": "fsdp",
  "vocab": "tensor",
  "kv_heads": "tensor",
  "mlp": "tensor",
}

# Rows of a batch are split over the first two, tokens of a row over the third.
BATCH_SPEC = PartitionSpec(("data", "fsdp"), "sequence")


def make_mesh(
  shape: Mapping[str, int], devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """A mesh with the named axes; their product must be the device count."""
  devices = list(jax.devices() if devices is None else devices)
  unknown = set(shape) - set(MESH_AXES)
  if unknown:
    raise ConfigError(
      f"mesh axes {sorted(unknown)} are unknown; there are "
      f"{', '.join(MESH_AXES)}"
    )
  sizes = [int(shape.get(axis, 1)) for axis in MESH_AXES]
  if math.prod(sizes) != len(devices):
    found = ", ".join(
      f"mesh.{a}={s}" for a, s in zip(MESH_AXES, sizes, strict=True)
    )
    raise ConfigError(
      f"{found} asks for {math.prod(sizes)} devices and there are "
      f"{len(devices)}: make the product equal to the device count"
    )
  return Mesh(np.asarray(devices).reshape(sizes), MESH_AXES)


def param_spec(path: tuple[str, ...]) -> PartitionSpec:
  """How the parameter at `path` is split."""
  name = "/".join(path)
  for end, axes in LOGICAL_AXES.items():
    if name == end or name.endswith("/" + end):
      stacked = (None,) if path[0] == "layers" and not _is_index(path) else ()
      return PartitionSpec(
        *stacked, *(RULES.get(a) if a else None for a in axes)
      )
  raise ConfigError(
    f"parameter {name} has no logical axes; add it to LOGICAL_AXES in "
    "agentrl_jax/model/sharding.py"
  )


def _is_index(path: tuple[str, ...]) -> bool:
  """Whether the layers are apart, in a tuple, as they are for decoding."""
  return len(path) > 1 and path[1].isdigit()


def param_shardings(params, mesh: Mesh):
  """A tree like `params` with each leaf's sharding, checked to divide."""

  def sharding(keys, leaf) -> NamedSharding:
    path = tuple(str(getattr(k, "key", getattr(k, "idx", k))) for k in keys)
    spec = param_spec(path)
    for axis, (size, mesh_axis) in enumerate(
      zip(leaf.shape, spec, strict=True)
    ):
      if mesh_axis and size % mesh.shape[mesh_axis]:
        raise ConfigError(
          f"axis {axis} of {'/'.join(path)} has size {size}, which "
          f"mesh.{mesh_axis}={mesh.shape[mesh_axis]} does not divide"
        )
    return NamedSharding(mesh, spec)

  return jax.tree_util.tree_map_with_path(sharding, params)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows over data and fsdp, their tokens over sequence."""
  return NamedSharding(mesh, BATCH_SPEC)


def replicated(mesh: Mesh) -> NamedSharding:
  """The same value on every device."""
  return NamedSharding(mesh, PartitionSpec())
