"""Options of XLA's compiler for each generation of TPU, from one table.

With the compiler's defaults, a chip receives up to twice the bytes that fully
sharded training needs: gradients are summed on all chips and then cut, some
params are gathered as a sum of matrices of zeros, and the cores wait for both.
The options below make them reduce-scatters and all-gathers, which run while
the cores compute where the chip can do that. docs/sharding.md has the bytes
with and without each.

They are options of `jax.jit`, so nobody exports flags. The programs that they
make were compiled for each chip and read, and have not run on any: see
docs/sharding.md for a check on real chips.
"""

from collections.abc import Mapping

from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.sharding import is_split

Options = dict[str, bool | int | float | str]

AUTO, NONE = "auto", "none"

_SPARSE_CORE = "xla_tpu_enable_sparse_core_collective_offload_"
# An all-gather that is written as a sum of a matrix of zeros with this chip's
# part in it moves twice the bytes, and cannot overlap with products.
_GATHER = {"xla_tpu_prefer_async_allgather_to_allreduce": True}
# Gradients become a reduce-scatter over all axes of the slice at once; else
# they are summed on all chips, and each takes its part of the sum.
_SCATTER = {f"{_SPARSE_CORE}nd_reduce_scatter": True}
# The SparseCore moves params and gradients while the TensorCore computes: along
# one, two or three axes of the slice.
_ON_SPARSE_CORE = {
  f"{_SPARSE_CORE}all_gather": True,
  f"{_SPARSE_CORE}2d_all_gather": True,
  f"{_SPARSE_CORE}3d_all_gather": True,
  f"{_SPARSE_CORE}reduce_scatter": True,
}
# On chips that are two devices the compiler aborts over sums on the SparseCore
# (libtpu 0.0.42.1), which is its default there: none is large enough to be one.
_SUM_ON_TENSOR_CORE = {
  "xla_tpu_sparse_core_all_reduce_offload_min_size_in_bytes": 10**12
}

# Those without which it compiles no gradient, whatever is set.
_NEEDED: Mapping[str, Mapping[str, bool | int]] = {"TPU7x": _SUM_ON_TENSOR_CORE}

# By the kind of device; v5e has no SparseCore.
_BY_KIND: Mapping[str, Mapping[str, bool | int]] = {
  "TPU v5 lite": _GATHER | _SCATTER,
  "TPU v5e": _GATHER | _SCATTER,
  "TPU v5": _GATHER | _SCATTER | _ON_SPARSE_CORE,
  "TPU v5p": _GATHER | _SCATTER | _ON_SPARSE_CORE,
  "TPU v6 lite": _GATHER | _SCATTER | _ON_SPARSE_CORE,
  "TPU v6e": _GATHER | _SCATTER | _ON_SPARSE_CORE,
  "TPU7x": _GATHER | _SCATTER | _ON_SPARSE_CORE | _SUM_ON_TENSOR_CORE,
}


def compiler_options(setting: str, mesh: Mesh | None) -> Options | None:
  """Returns options for `jax.jit` of programs on a mesh; None: the defaults.

  `setting` is `compute.compiler_options`: "auto" is the table's options of the
  mesh's chips, "none" are the compiler's defaults, with what it needs not to
  abort. Either may be followed by more, as in
  "auto,xla_tpu_scoped_vmem_limit_kib=65536".

  Raises `ConfigError` for a setting of another form.
  """
  base, added = parse(setting)
  found: Options = {}
  if mesh is not None and is_split(mesh):
    table = _BY_KIND if base == AUTO else _NEEDED
    found |= table.get(mesh.devices.flat[0].device_kind, {})
  return found | added or None


def parse(setting: str) -> tuple[str, Options]:
  """Splits a setting into "auto" or "none", and the options added to it."""
  base, *added = (part.strip() for part in setting.split(","))
  if base not in (AUTO, NONE):
    raise _error(setting, f"begins with {base!r}")
  options: Options = {}
  for part in added:
    name, is_given, value = part.partition("=")
    if not name.startswith("xla_") or not is_given or not value:
      raise _error(setting, f"has {part!r}")
    options[name] = _value(value)
  return base, options


def _error(setting: str, found: str) -> ConfigError:
  return ConfigError(
    f"compute.compiler_options={setting!r} {found}; it is auto or none, and "
    "options of XLA may follow, as in auto,xla_tpu_scoped_vmem_limit_kib=65536"
  )


def _value(text: str) -> bool | int | float | str:
  if text in ("true", "false"):
    return text == "true"
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      continue
  return text
