"""TPU chips with their rates and memory, and the slices that can be rented.

Rates are the makers': peak bfloat16 products, memory and links at full speed,
as tabled in "How to Scale Your Model" (jax-ml.github.io/scaling-book, TPUs).
It has no v7: products, memory and network are of docs.cloud.google.com/tpu/docs
/tpu7x, which has the same figure for its links as for those of v5p. The data
center network is that page's for v5p, v6e and tpu7x (50, 100 and 100 Gbit/s per
chip), and for v5e that of docs/v5e (two cards of 100 Gbit/s for 8 chips); v4's
is not published and taken as v5p's. Read 2026-11.

Capacities are those that the compiler grants a program, measured by compiling
one that is too large: a little less than is sold.

The slices are in launch/tpu/slices.txt, which launch/tpu_run.sh reads, too.
"""

import collections
import dataclasses
import functools
import importlib.util
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import topologies

from agentrl_jax.errors import AgentRLError, ConfigError

GIB = 2**30
# Of a chip's memory, for what no compiler counts: fragments between arrays,
# and the runtime's own buffers.
RESERVE = 0.03
TABLE = pathlib.Path(__file__).parents[1] / "tpu" / "slices.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One kind of chip, as one jax device sees it.

  A device is a chip, except on tpu7x, where it is one of the chip's two halves
  and has half of the rates and of the memory; only links are the whole chip's.
  """

  name: str
  flops: float  # bfloat16 products and sums per second
  memory_bandwidth: float  # bytes/s
  memory: int  # bytes
  link_bandwidth: float  # bytes/s of one link of the chip, one way
  network_bandwidth: float  # bytes/s to other slices, one way
  cores: int  # that the rented name counts per chip
  devices: int  # jax devices of one chip
  # The compiler's name of the configuration; v4's default would be a device
  # per core, and a TPU VM has one per chip.
  config: str = "default"
  caveat: str = ""  # said where the compiler dies of a program for it


CHIPS: Mapping[str, Chip] = {
  "v4": Chip(
    name="v4",
    flops=2.75e14,
    memory_bandwidth=1.2e12,
    memory=int(30.75 * GIB),
    link_bandwidth=4.5e10,
    network_bandwidth=6.25e9,
    cores=2,
    devices=1,
    config="megacore",
  ),
  "v5e": Chip(
    name="v5e",
    flops=1.97e14,
    memory_bandwidth=8.1e11,
    memory=int(15.75 * GIB),
    link_bandwidth=4.5e10,
    network_bandwidth=3.125e9,
    cores=1,
    devices=1,
  ),
  "v5p": Chip(
    name="v5p",
    flops=4.59e14,
    memory_bandwidth=2.8e12,
    memory=int(95.74 * GIB),
    link_bandwidth=9e10,
    network_bandwidth=6.25e9,
    cores=2,
    devices=1,
  ),
  "v6e": Chip(
    name="v6e",
    flops=9.2e14,
    memory_bandwidth=1.6e12,
    memory=int(31.25 * GIB),
    link_bandwidth=9e10,
    network_bandwidth=1.25e10,
    cores=1,
    devices=1,
  ),
  "tpu7x": Chip(
    name="tpu7x",
    flops=2.307e15 / 2,
    memory_bandwidth=7.38e12 / 2,
    memory=int(94.75 * GIB),
    link_bandwidth=9e10,
    network_bandwidth=1.25e10 / 2,
    cores=2,
    devices=2,
    caveat="libtpu 0.0.42.1 aborts over sums on the SparseCore of tpu7x, which "
    "compute.compiler_options leaves to the TensorCore (docs/tpu.md)",
  ),
}
# Other spellings of a kind, in names such as v5litepod-16.
_ALIASES = {
  "v5litepod": "v5e",
  "v5lite": "v5e",
  "v5": "v5p",
  "v7x": "tpu7x",
  "tpu7": "tpu7x",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
  """Chips that are linked to one another, a box of a grid; or several alike.

  Several slices compute one program together, over the data center network.
  """

  rented_as: str  # Cloud TPU's name, such as v5p-64 for 32 chips of two cores
  chip: Chip
  dims: tuple[int, ...]  # chips along each axis of one slice
  num_hosts: int  # of one slice
  num_slices: int

  @property
  def topology(self) -> str:
    """The compiler's name of one slice, such as v5p:2x4x4."""
    return f"{self.chip.name}:{_shape_name(self.dims)}"

  @property
  def name(self) -> str:
    """The compiler's name, and the number of slices: 2xv5p:2x4x4."""
    return f"{self.num_slices}x" * (self.num_slices > 1) + self.topology

  @property
  def room(self) -> int:
    """Bytes of a chip that a program and what lies beside it may take."""
    return int(self.chip.memory * (1 - RESERVE))

  @property
  def num_chips(self) -> int:
    """Number of chips of all slices."""
    return math.prod(self.dims) * self.num_slices

  @property
  def num_devices(self) -> int:
    """Number of jax devices of all slices, which a mesh has to use."""
    return self.num_chips * self.chip.devices

  @property
  def is_one_host(self) -> bool:
    """Says if all chips belong to one machine, and so to one process."""
    return self.num_hosts * self.num_slices == 1

  @property
  def wraps(self) -> tuple[bool, ...]:
    """Says for each axis if its ends are linked, which makes it a ring.

    On grids of three axes this holds if all are a multiple of 4; on the others
    if the axis spans the whole pod, 16 chips.
    """
    if len(self.dims) == 3:
      return (all(size % 4 == 0 for size in self.dims),) * 3
    return tuple(size == 16 for size in self.dims)


@functools.cache
def rentable() -> tuple[Slice, ...]:
  """Returns the slices of the table, each once."""
  rows = (line.split() for line in TABLE.read_text().splitlines())
  return tuple(
    Slice(
      rented_as=row[0],
      chip=CHIPS[row[1]],
      dims=tuple(map(int, row[2].split("x"))),
      num_hosts=int(row[3]),
      num_slices=1,
    )
    for row in rows
    if row and not row[0].startswith("#")
  )


def slices_of(chip: Chip, num_slices: int = 1) -> list[Slice]:
  """Returns the slices of a chip that can be rented, the smallest first."""
  slices = [_several(one, num_slices) for one in rentable() if one.chip == chip]
  return sorted(slices, key=lambda slice_: slice_.num_chips)


_NAME = re.compile(
  r"(?:(?P<count>[1-9]\d*)x)?(?P<kind>[a-z][a-z0-9]*)"
  r"(?:-(?P<number>[1-9]\d*)|:(?P<shape>[1-9]\d*(?:x[1-9]\d*)*))"
)


def parse_slice(name: str) -> Slice:
  """Parses v5p:4x4x4, or v5p-128, the name by which it is rented.

  v4-N, v5p-N and tpu7x-N count cores, two per chip; v5e-N and v6e-N count
  chips. 2xv5p-128 is two slices.
  """
  read = _NAME.fullmatch(name)
  if read is None:
    raise ConfigError(
      f"topology={name!r} is no name of a slice: write v5p:2x4x4, or v5p-64 as "
      "it is rented, or 2xv5p-64 for two slices"
    )
  kind = _ALIASES.get(read["kind"], read["kind"])
  if kind not in CHIPS:
    raise ConfigError(
      f"topology={name!r} is of no known chip; there are {', '.join(CHIPS)}: "
      "write v5p:2x4x4, or v5p-64 as it is rented"
    )
  known = [slice_ for slice_ in rentable() if slice_.chip.name == kind]
  count = int(read["count"] or 1)
  for slice_ in known:
    if read["number"] and slice_.rented_as == f"{kind}-{read['number']}":
      return _several(slice_, count)
    if read["shape"] and _sizes(read["shape"]) == sorted(slice_.dims):
      return _several(slice_, count)
  if read["number"]:
    wanted = int(read["number"]) / CHIPS[kind].cores
  else:
    wanted = math.prod(_sizes(read["shape"]))
  near = sorted(known, key=lambda slice_: abs(slice_.num_chips - wanted))[:4]
  names = ", ".join(
    f"{slice_.name} ({slice_.rented_as})"
    for slice_ in sorted(near, key=lambda slice_: slice_.num_chips)
  )
  raise ConfigError(
    f"topology={name!r} cannot be rented; the nearest are {names}. All slices "
    f"are in launch/tpu/{TABLE.name}"
  )


def _several(slice_: Slice, count: int) -> Slice:
  prefix = f"{count}x" * (count > 1)
  return dataclasses.replace(
    slice_, rented_as=prefix + slice_.rented_as, num_slices=count
  )


def _sizes(shape: str) -> list[int]:
  return sorted(map(int, shape.split("x")))


def _shape_name(dims: Sequence[int]) -> str:
  return "x".join(map(str, dims))


# Read by libtpu when it is loaded: no chip of this machine is asked about, none
# is taken, so that several plans may be made at once, and only errors are told.
_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  "TPU_ACCELERATOR_TYPE": "v5p-8",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_MIN_LOG_LEVEL": "3",
  "TPU_STDERR_LOG_LEVEL": "3",
}


class CompilerMissing(AgentRLError):
  """No compiler for TPUs is installed."""


def has_compiler() -> bool:
  """Says if the compiler for TPUs is installed."""
  return importlib.util.find_spec("libtpu") is not None


def describe(slice_: Slice) -> Sequence[jax.Device]:
  """Returns the slice's chips, to compile for; needs no accelerator.

  Raises `CompilerMissing` if libtpu is not installed.
  """
  if not has_compiler():
    raise CompilerMissing(
      f"compiling for {slice_.name} takes libtpu, and it is not installed: "
      "pip install 'agentrl_jax[plan]' (it needs no TPU)"
    )
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  devices: Sequence[jax.Device] = topologies.get_topology_desc(
    platform="tpu", topology_name=slice_.topology, **_options(slice_)
  ).devices
  if len(devices) != slice_.num_devices:
    raise CompilerMissing(
      f"the compiler sees {len(devices)} devices in {slice_.name}, which has "
      f"{slice_.num_devices}; install the libtpu that "
      f"jax {jax.__version__} asks for: pip install 'jax[tpu]'"
    )
  return devices


def _options(slice_: Slice) -> dict[str, Any]:
  """Returns the options of the compiler's description, beside the shape."""
  options: dict[str, Any] = {"chip_config_name": slice_.chip.config}
  if slice_.num_slices > 1:
    options["num_slices"] = slice_.num_slices
  if math.prod(slice_.dims) == 1:  # less than the four chips of other hosts
    options["chips_per_host_bounds"] = (1, 1, 1)
  return options


def coordinates(devices: Sequence[jax.Device]) -> list[tuple[int, ...]]:
  """Returns the grid position of each device's chip in the first slice.

  The program of several slices is written for one of them, and numbers that
  slice's devices alone.
  """
  by_slice = collections.defaultdict(list)
  for device in devices:
    by_slice[getattr(device, "slice_index", None) or 0].append(device)
  return [tuple(device.coords) for device in by_slice[min(by_slice)]]
