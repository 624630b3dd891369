"""TPU chips with their rates and memory, and the slices that can be rented.

Rates are the makers': peak bfloat16 products, memory and links at full speed,
as tabled in "How to Scale Your Model" (jax-ml.github.io/scaling-book, TPUs).
Capacities are those that the compiler grants a program, measured by compiling
one that is too large: a little less than is sold.
"""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence

import jax
from jax.experimental import topologies

from agentrl_jax.errors import AgentRLError, ConfigError

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One kind of chip; one chip is one jax device."""

  name: str
  flops: float  # bfloat16 products and sums per second
  memory_bandwidth: float  # bytes/s
  memory: int  # bytes
  link_bandwidth: float  # bytes/s of one link, one way
  shapes: tuple[str, ...]  # slices that can be rented
  chips_per_host: int = 8  # at most; larger slices have 4
  cores: int = 1  # that the rented name counts per chip


CHIPS: Mapping[str, Chip] = {
  "v5e": Chip(
    name="v5e",
    flops=1.97e14,
    memory_bandwidth=8.1e11,
    memory=int(15.75 * GIB),
    link_bandwidth=4.5e10,
    shapes=("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
  ),
  "v5p": Chip(
    name="v5p",
    flops=4.59e14,
    memory_bandwidth=2.8e12,
    memory=int(95.74 * GIB),
    link_bandwidth=9e10,
    shapes=(
      "2x2x1",
      "2x2x2",
      "2x2x4",
      "2x4x4",
      "4x4x4",
      "4x4x8",
      "4x8x8",
      "8x8x8",
      "8x8x16",
    ),
    chips_per_host=4,
    cores=2,
  ),
  "v6e": Chip(
    name="v6e",
    flops=9.2e14,
    memory_bandwidth=1.6e12,
    memory=int(31.25 * GIB),
    link_bandwidth=9e10,
    shapes=("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
  ),
}
# Other spellings of a kind, in names such as v5litepod-16.
_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v5": "v5p"}


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips that are linked to one another: a box of a grid."""

  chip: Chip
  dims: tuple[int, ...]

  @property
  def name(self) -> str:
    """The compiler's name, such as v5p:2x4x4."""
    return f"{self.chip.name}:{'x'.join(map(str, self.dims))}"

  @property
  def rented_as(self) -> str:
    """Cloud TPU's name, such as v5p-64 for 32 chips of two cores."""
    return f"{self.chip.name}-{self.num_chips * self.chip.cores}"

  @property
  def num_chips(self) -> int:
    """Number of chips; each is a jax device."""
    return math.prod(self.dims)

  @property
  def is_one_host(self) -> bool:
    """Says if all chips belong to one machine, and so to one process."""
    return self.num_chips <= self.chip.chips_per_host

  @property
  def wraps(self) -> tuple[bool, ...]:
    """Says for each axis if its ends are linked, which makes it a ring.

    On v5p this holds if all axes are a multiple of 4; on the others if the axis
    spans the whole pod, 16 chips.
    """
    if len(self.dims) == 3:
      return (all(size % 4 == 0 for size in self.dims),) * 3
    return tuple(size == 16 for size in self.dims)


def parse_slice(name: str) -> Slice:
  """Parses v5p:4x4x4, or v5p-128, the name by which it is rented.

  v5p-N counts cores, two per chip; v5e-N and v6e-N count chips.
  """
  kind, colon, shape = name.partition(":")
  number = ""
  if not colon:
    kind, _, number = name.partition("-")
  chip = CHIPS.get(_ALIASES.get(kind, kind))
  if chip is None:
    raise ConfigError(
      f"topology={name!r} is of no known chip; there are {', '.join(CHIPS)}: "
      "write v5p:2x4x4, or v5p-64 as it is rented"
    )
  for known in chip.shapes:
    found = Slice(chip, tuple(map(int, known.split("x"))))
    if colon and sorted(re.findall(r"\d+", shape)) == sorted(known.split("x")):
      return found
    if number and str(found.num_chips * chip.cores) == number:
      return found
  names = ", ".join(
    f"{s.name} ({s.rented_as})"
    for s in (
      Slice(chip, tuple(map(int, known.split("x")))) for known in chip.shapes
    )
  )
  raise ConfigError(f"topology={name!r} cannot be rented; there are {names}")


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
    platform="tpu", topology_name=slice_.name
  ).devices
  if len(devices) != slice_.num_chips:
    raise CompilerMissing(
      f"the compiler sees {len(devices)} devices in {slice_.name}, which has "
      f"{slice_.num_chips} chips; install the libtpu that "
      f"jax {jax.__version__} asks for: pip install 'jax[tpu]'"
    )
  return devices


def coordinates(devices: Sequence[jax.Device]) -> list[tuple[int, ...]]:
  """Returns the grid position of each chip in its slice."""
  return [tuple(device.coords) for device in devices]
