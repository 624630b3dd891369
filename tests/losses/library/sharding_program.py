"""Run by `sharding_test` in a process with eight devices of its own.

Prints, for each function of `sharding_cases`, the largest difference between
its result on one device and its result on arrays sharded over eight, as JSON.
"""

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.losses.library import sharding_cases


def difference(alone: Any, spread: Any) -> float:
  """The largest between two results; NaN if either holds one."""
  leaves = zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True)
  differences = [
    np.max(np.abs(np.asarray(x, float) - np.asarray(y, float)))
    for x, y in leaves
  ]
  return float(np.max(differences))


def main() -> None:
  """Compares each function on one device and on eight."""
  devices = jax.devices()
  if len(devices) != 8:
    sys.exit(f"eight devices are needed, found {len(devices)}")
  table = sharding_cases.table(seed=45)
  arguments = {name: arrays for name, (_, arrays) in table.items()}

  @jax.jit
  def everything(arguments):
    return {name: table[name][0](*x) for name, x in arguments.items()}

  sharding = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
  alone = everything(jax.device_put(arguments, devices[0]))
  spread = everything(jax.device_put(arguments, sharding))
  sys.stdout.write(
    json.dumps({name: difference(alone[name], spread[name]) for name in table})
  )


if __name__ == "__main__":
  main()
