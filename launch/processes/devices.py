"""Connects the CPU devices of several processes to each other, ahead of use.

On CPUs collectives run over gloo, which connects a group of devices when a
program first needs it, and gives up if a process is more than 30 s late. Two
processes are: one of them may find its programs in the compile cache while the
other compiles for minutes. A group that is connected waits for 30 minutes.
"""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.processes.group import Processes


def connect_devices(mesh: Mesh, processes: Processes) -> None:
  """Connects every group that a program over `mesh` can need.

  These are the devices along each set of axes. All processes call this at the
  same time; it does nothing in one process, or where devices are no CPUs.
  """
  if processes.count == 1 or mesh.devices.flat[0].platform != "cpu":
    return
  axes = tuple(name for name, size in mesh.shape.items() if size > 1)
  spec: Any = PartitionSpec
  ones = jax.jit(
    lambda: jnp.ones(math.prod(mesh.shape[a] for a in axes)),
    out_shardings=NamedSharding(mesh, spec(axes)),
  )()
  for number in range(1, len(axes) + 1):
    for group in itertools.combinations(axes, number):
      rest = tuple(axis for axis in axes if axis not in group)
      total = jax.shard_map(
        functools.partial(jax.lax.psum, axis_name=group),
        mesh=mesh,
        in_specs=spec(axes),
        out_specs=spec(rest),
      )
      program = jax.jit(total).lower(ones).compile()
      # All have compiled it: nobody is late.
      processes.share(what=f"the connection of devices along {group}")
      program(ones).block_until_ready()
