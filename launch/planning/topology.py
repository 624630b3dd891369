"""Devices of a slice that is not there: good for compiling, and only that."""

import importlib.util
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from agentrl_jax.errors import AgentRLError
from launch.planning.chips import Slice

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
  """There is nothing here that compiles for a TPU."""


def has_compiler() -> bool:
  """Whether the compiler for TPUs is installed."""
  return importlib.util.find_spec("libtpu") is not None


def describe(slice_: Slice) -> Sequence[jax.Device]:
  """The slice's chips, to compile for; no accelerator is looked for.

  Raises `CompilerMissing` where libtpu is not installed.
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
  """Where each chip sits in the grid of its slice."""
  return [tuple(device.coords) for device in devices]
