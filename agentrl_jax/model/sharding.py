"""Shardings of params, batches and activations on a mesh, from one table.

Every axis of every parameter has a logical name, found by the parameter's path
in the tree; the code that makes an activation names its axes. `RULES` says
which mesh axes a logical axis is split over. A mesh axis that does not divide
a parameter's axis is an error before anything compiles. Leaves below `STACKS`
are stacked: an unsplit axis of layers comes before those of the table.

Params are stored split over `fsdp`, and gathered in the dtype of the
computation just before they are used: `gathered`.

Devices of several TPU slices form one mesh: one axis spans them, over the data
center network, and every other axis lies within a slice, on its links.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.mesh_utils import (
  create_device_mesh,
  create_hybrid_device_mesh,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.keys import Section, key
from agentrl_jax.model import quantization
from agentrl_jax.model.config import STACKS

# The name of gathered params, for whoever decides what a backward pass keeps.
GATHERED = "gathered params"

# Params that keep this dtype in computations, rollouts and files, by name.
FLOAT32 = (
  "exact_router",
  "correction_bias",
  "decay_log",
  "decay_bias",
  quantization.SCALE,
)

MESH_AXES = ("data", "fsdp", "tensor", "sequence", "expert")

# Logical axes of each parameter, by the end of its path.
LOGICAL_AXES: Mapping[str, tuple[str | None, ...]] = {
  "embedding": ("vocab", "width"),
  "layer_embedding": ("vocab", "width"),
  "head/kernel": ("width", "vocab"),
  "layer_inputs/projection/kernel": ("width", None, None),
  "input_gate/kernel": ("width", None),
  "input_out/kernel": (None, "width"),
  "q/kernel": ("width", "kv_heads", "heads", "channels"),
  "q/bias": ("kv_heads", "heads", "channels"),
  "k/kernel": ("width", "kv_heads", "channels"),
  "k/bias": ("kv_heads", "channels"),
  "v/kernel": ("width", "kv_heads", "channels"),
  "v/bias": ("kv_heads", "channels"),
  "q_down/kernel": ("width", None),
  "kv_down/kernel": ("width", None),
  "kv_up/kernel": ("width", "kv_heads", "channels"),
  "o/kernel": ("kv_heads", "heads", "channels", "width"),
  "o/bias": (None,),
  "gate/kernel": ("width", "mlp"),
  "up/kernel": ("width", "mlp"),
  "down/kernel": ("mlp", "width"),
  "experts/router": ("width", None),
  "experts/exact_router": ("width", None),
  "experts/correction_bias": (None,),
  "experts/gate": ("experts", "width", None),
  "experts/up": ("experts", "width", None),
  "experts/down": ("experts", None, "width"),
  "experts/router_bias": (None,),
  "experts/router_scale": (None,),
  "experts/expert_scale": (None,),
  "experts/input_scale": (None,),
  "experts/gate_bias": ("experts", None),
  "experts/up_bias": ("experts", None),
  "experts/down_bias": ("experts", None),
  "experts/gate_lora_a": ("experts", "width", None),
  "experts/gate_lora_b": ("experts", None, None),
  "experts/up_lora_a": ("experts", "width", None),
  "experts/up_lora_b": ("experts", None, None),
  "experts/down_lora_a": ("experts", None, None),
  "experts/down_lora_b": ("experts", None, "width"),
  "q/lora_a": ("width", None),
  "q/lora_b": (None, "kv_heads", "heads", "channels"),
  "k/lora_a": ("width", None),
  "k/lora_b": (None, "kv_heads", "channels"),
  "v/lora_a": ("width", None),
  "v/lora_b": (None, "kv_heads", "channels"),
  "o/lora_a": ("kv_heads", "heads", "channels", None),
  "o/lora_b": (None, "width"),
  "q_down/lora_a": ("width", None),
  "q_down/lora_b": (None, None),
  "kv_down/lora_a": ("width", None),
  "kv_down/lora_b": (None, None),
  "kv_up/lora_a": ("width", None),
  "kv_up/lora_b": (None, "kv_heads", "channels"),
  "gate/lora_a": ("width", None),
  "gate/lora_b": (None, "mlp"),
  "up/lora_a": ("width", None),
  "up/lora_b": (None, "mlp"),
  "down/lora_a": ("mlp", None),
  "down/lora_b": (None, "width"),
  "attention/sinks": ("kv_heads", "heads"),
  "query/kernel": ("width", "kv_heads", "channels"),
  "key/kernel": ("width", "kv_heads", "channels"),
  "value/kernel": ("width", "kv_heads", "heads", "channels"),
  "out_gate/kernel": ("width", "kv_heads", "heads", "channels"),
  "beta/kernel": ("width", "kv_heads", "heads"),
  "decay/kernel": ("width", "kv_heads", "heads"),
  "query_taps": ("kv_heads", "channels", None),
  "key_taps": ("kv_heads", "channels", None),
  "value_taps": ("kv_heads", "heads", "channels", None),
  "decay_log": ("kv_heads", "heads"),
  "decay_bias": ("kv_heads", "heads"),
  "shared_gate/kernel": ("width", None),
  "scale": (None,),
  "layer_scale": (None,),
  "critic/kernel": ("width", None),
  "critic/bias": (None,),
}

# Which mesh axes split a logical axis; what is not here is replicated. `width`
# is of params; the width of activations has no name.
RULES: Mapping[str, str | tuple[str, ...]] = {
  "width": "fsdp",
  "vocab": "tensor",
  "kv_heads": "tensor",
  "mlp": "tensor",
  "experts": ("expert", "tensor"),
  "rows": ("data", "fsdp", "expert"),
  "tokens": "sequence",
}


def spec(*axes: str | None) -> PartitionSpec:
  """Returns the mesh axes that split an array with these logical axes."""
  return PartitionSpec(*(RULES.get(axis) if axis else None for axis in axes))


BATCH_SPEC = spec("rows", "tokens")

# A further axis of a mesh that only decodes, for devices that hold the same
# key/value heads because there are more devices than heads: `decoding_mesh`.
COPIES = "copies"
# What these devices share nevertheless; `heads` where their number allows it.
_SHARED = ("mlp", "experts", "vocab", "heads")


def spec_on(mesh: Mesh, *axes: str | None) -> PartitionSpec:
  """Returns `spec`, with what devices of the same heads share split further."""
  if COPIES not in mesh.shape:
    return spec(*axes)
  return PartitionSpec(*(_further(axis) for axis in axes))


def _further(axis: str | None) -> str | tuple[str, ...] | None:
  before = RULES.get(axis) if axis else None
  if axis not in _SHARED:
    return before
  return (*_names_of(before), COPIES) if before else COPIES


def decoding_mesh(
  num_kv_heads: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """Makes the mesh of an engine: key/value heads over as many as divide them.

  If that leaves devices over, they are the axis `COPIES`: they hold the same
  heads, and the channels of the MLP and the vocabulary are split over all.
  """
  devices = list(jax.devices() if devices is None else devices)
  shares = math.gcd(num_kv_heads, len(devices))
  whole = make_mesh({"tensor": len(devices)}, devices)
  if shares == len(devices):
    return whole
  sizes = [shares if axis == "tensor" else 1 for axis in MESH_AXES]
  return Mesh(whole.devices.reshape(*sizes, -1), (*MESH_AXES, COPIES))


def axis_size(mesh: Mesh, axes: str | tuple[str, ...] | None) -> int:
  """Returns the number of parts that these mesh axes make."""
  return math.prod(mesh.shape[name] for name in _names_of(axes))


def row_shares(sizes: Mapping[str, int]) -> int:
  """Returns over how many devices a mesh of these sizes splits rows."""
  return math.prod(sizes[axis] for axis in _names_of(RULES["rows"]))


def _names_of(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
  return (axes,) if isinstance(axes, str) else axes or ()


# Axes that may span slices: they exchange params and gradients, and not the
# activations of every layer.
SLICE_AXES = ("data", "fsdp")
SLICES_OF = ("devices", "processes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig(Section, section="mesh"):
  """The `mesh` section of the config: devices along each axis, and slices."""

  data: int = key(1, "copies of the policy", at_least=1)
  fsdp: int = key(1, "shards of its params", at_least=1)
  tensor: int = key(1, "shards of its heads and channels", at_least=1)
  sequence: int = key(1, "shards of a row's tokens", at_least=1)
  expert: int = key(
    1, "shards of a model's experts, which rows are split over too", at_least=1
  )
  over_slices: str = key(
    "data",
    "axis that spans the TPU slices of a learner of several, a multiple of "
    "their number: the other axes exchange activations in every layer, for "
    "which the network between slices is too slow",
    one_of=SLICE_AXES,
  )
  slices_of: str = key(
    "devices",
    "how slices are told apart: devices; or processes, each of which counts "
    "as a slice, to rehearse several slices without TPUs",
    one_of=SLICES_OF,
  )

  @property
  def axes(self) -> dict[str, int]:
    """The number of devices along each axis."""
    return {axis: getattr(self, axis) for axis in MESH_AXES}


def make_mesh(
  shape: Mapping[str, int],
  devices: Sequence[jax.Device] | None = None,
  *,
  slices: MeshConfig | None = None,
) -> Mesh:
  """Makes a mesh; the product of its axes must be the number of devices.

  `slices` is needed where the devices belong to several TPU slices.
  """
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
  # Chips that are near along an axis of the mesh are near in the slice.
  across = _across_slices(sizes, devices, slices)
  if math.prod(across) == 1:
    arranged = create_device_mesh(
      sizes, devices, allow_split_physical_axes=True
    )
  else:
    arranged = create_hybrid_device_mesh(
      [size // count for size, count in zip(sizes, across, strict=True)],
      across,
      devices,
      process_is_granule=slices is not None and slices.slices_of == "processes",
      allow_split_physical_axes=True,
    )
  return Mesh(arranged, MESH_AXES)


def _across_slices(
  sizes: Sequence[int], devices: Sequence[jax.Device], slices: MeshConfig | None
) -> list[int]:
  """Returns the number of slices that each axis spans; checks that it can."""
  of = slices.slices_of if slices else "devices"
  if of == "processes" and devices[0].platform == "tpu":
    raise ConfigError(
      "mesh.slices_of='processes' rehearses several slices without TPUs, and "
      "these are TPUs, which name their slices: set "
      "--config.mesh.slices_of=devices"
    )
  counts = collections.Counter(_slice_of(device, of) for device in devices)
  num_slices = len(counts)
  if num_slices == 1:
    return [1] * len(sizes)
  if slices is None:
    raise ConfigError(
      f"the devices of this mesh belong to {num_slices} slices, which only the "
      "learner's mesh spans: take the devices of one slice"
    )
  if len(set(counts.values())) > 1:
    raise ConfigError(
      "the devices are in slices of different sizes ("
      + ", ".join(f"slice {n}: {counts[n]}" for n in sorted(counts))
      + "): a mesh needs slices of one shape, as --learner=2xv5p-64 asks for"
    )
  over = slices.over_slices
  axis = MESH_AXES.index(over)
  if sizes[axis] % num_slices:
    others = [a for a in SLICE_AXES if a != over]
    raise ConfigError(
      f"mesh.{over}={sizes[axis]} cannot be split over {num_slices} "
      f"slices: set --config.mesh.{over} to a multiple of {num_slices}, "
      f"or another axis that is one with --config.mesh.over_slices={others[0]}"
    )
  return [num_slices if n == axis else 1 for n in range(len(sizes))]


def _slice_of(device: jax.Device, of: str) -> int:
  if of == "processes":
    return device.process_index
  # Of GPUs it names a domain of fast links, over which no axis has to be split.
  is_tpu = device.platform == "tpu"
  return (getattr(device, "slice_index", None) or 0) if is_tpu else 0


def param_spec(
  path: tuple[str, ...], mesh: Mesh | None = None
) -> PartitionSpec:
  """Returns the mesh axes that split the parameter at `path`.

  `mesh` is one of `decoding_mesh`, or None for any other.
  """
  is_quantized = path[-1] in (quantization.VALUES, quantization.SCALE)
  name = "/".join(path[:-1] if is_quantized else path)
  for end, axes in LOGICAL_AXES.items():
    if name == end or name.endswith("/" + end):
      # Layers that are separate, for decoding, are in a tuple: by number.
      is_apart = len(path) > 1 and path[1].isdigit()
      is_stacked = path[0] in STACKS and not is_apart
      axes = (*(None,) * is_stacked, *axes)
      return spec(*axes) if mesh is None else spec_on(mesh, *axes)
  raise ConfigError(
    f"parameter {name} has no logical axes; add it to LOGICAL_AXES in "
    "agentrl_jax/model/sharding.py"
  )


def _names(keys: Sequence[Any]) -> tuple[str, ...]:
  return tuple(
    str(next(getattr(k, a) for a in ("key", "idx", "name") if hasattr(k, a)))
    for k in keys
  )


def param_shardings(params, mesh: Mesh):
  """Returns a tree of the leaves' shardings, checked to divide."""

  def sharding(keys, leaf) -> NamedSharding:
    path = _names(keys)
    split = []
    for axis, (size, mesh_axis) in enumerate(
      zip(leaf.shape, param_spec(path, mesh), strict=True)
    ):
      if path[-1] == quantization.SCALE and size == 1:
        mesh_axis = None  # an axis of inputs
      parts = axis_size(mesh, mesh_axis)
      if size % parts and mesh_axis == COPIES:
        mesh_axis = None  # queries that cannot be shared are copied, too
      elif size % parts:
        raise ConfigError(
          f"axis {axis} of {'/'.join(path)} has size {size}, which "
          f"mesh.{mesh_axis}={parts} does not divide"
        )
      split.append(mesh_axis)
    return NamedSharding(mesh, PartitionSpec(*split))

  return jax.tree_util.tree_map_with_path(sharding, params)


def is_split(mesh: Mesh | None) -> bool:
  """Says if the mesh has more than one device."""
  return mesh is not None and mesh.size > 1


def constrain(mesh: Mesh | None, x: jax.Array, *axes: str | None) -> jax.Array:
  """Constrains an array and its gradient to the sharding of logical axes."""
  if not is_split(mesh):
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(*axes)))


def gathered(params: Any, mesh: Mesh | None, dtype: str) -> Any:
  """Gathers params along `fsdp` for a computation in `dtype`.

  They are cast before they move; gradients are summed over devices in `dtype`
  and arrive split. Leaves that `fsdp` does not split are left as they are.
  """
  if not is_split(mesh):
    return params

  def gather(keys, leaf: jax.Array) -> jax.Array:
    split = param_spec(_names(keys))
    if "fsdp" not in split:
      return leaf
    whole = PartitionSpec(*(None if a == "fsdp" else a for a in split))
    x = _move(
      _cast(keys, leaf, dtype),
      NamedSharding(mesh, split),
      NamedSharding(mesh, whole),
    )
    return checkpoint_name(x, GATHERED)

  return jax.tree_util.tree_map_with_path(gather, params)


def in_dtype(params: Any, dtype: str) -> Any:
  """Casts the leaves that `gathered` would cast, permanently."""

  def cast(keys, leaf: jax.Array) -> jax.Array:
    is_cast = "fsdp" in param_spec(_names(keys))
    return _cast(keys, leaf, dtype) if is_cast else leaf

  return jax.tree_util.tree_map_with_path(cast, params)


def copied(params: Any, dtype: str) -> Any:
  """Copies params as rollouts have them: all in `dtype` but for `FLOAT32`.

  What is quantised keeps its dtype.
  """

  def copy(keys, leaf: jax.Array) -> jax.Array:
    is_quantized = _names(keys)[-1] == quantization.VALUES
    return jnp.array(leaf, None if is_quantized else _dtype_of(keys, dtype))

  return jax.tree_util.tree_map_with_path(copy, params)


def _cast(keys, leaf: jax.Array, dtype: str) -> jax.Array:
  return leaf.astype(_dtype_of(keys, dtype))


def _dtype_of(keys, dtype: str) -> str:
  return "float32" if _names(keys)[-1] in FLOAT32 else dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _move(x: jax.Array, here: NamedSharding, there: NamedSharding) -> jax.Array:
  """Reshards from one place to another; the gradient goes the way back."""
  x = jax.lax.with_sharding_constraint(x, here)
  return jax.lax.with_sharding_constraint(x, there)


def _move_back(here, there, _, slope):
  del there
  return (jax.lax.with_sharding_constraint(slope, here),)


_move.defvjp(lambda x, here, there: (_move(x, here, there), None), _move_back)


def varying_like(tree: Any, *others: jax.Array) -> Any:
  """Types values in shard_map as varying over the axes that `others` vary over.

  A loop must return the type of its input: sums that start from zeros need it.
  Outside shard_map nothing changes.
  """
  wanted = frozenset().union(*map(_varying_axes, others))

  def vary(x: jax.Array) -> jax.Array:
    missing = tuple(wanted - _varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x

  return jax.tree.map(vary, tree)


def _varying_axes(x: jax.Array) -> frozenset[str]:
  axes: frozenset[str] = jax.typeof(x).manual_axis_type.varying
  return axes


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Splits rows over data and fsdp, and their tokens over sequence."""
  return NamedSharding(mesh, BATCH_SPEC)


def replicated(mesh: Mesh) -> NamedSharding:
  """Keeps the same value on every device."""
  return NamedSharding(mesh, PartitionSpec())
