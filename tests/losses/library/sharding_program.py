"""Run by `sharding_test` in a process with eight devices of its own.

Prints, for each function of the test vectors, the largest difference between
its result on one device and its result on arrays sharded over eight, as JSON.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.golden.vectors import sections
from tests.losses.library.cases import arrays_of, call

# `fused_sharding_test` spreads this one.
LEFT_OUT = {"fused_token_logprob"}
# Their arrays have no rows.
WITHOUT_ROWS = {"blend_moments", "unseen_tasks"}
WHOLE = {"moments", "mean", "share_I"}  # arguments that every device has


def arguments(block: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arrays of eight drawn batches, one after the other."""
  drawn = [arrays_of(block, seed) for seed in range(8)]
  return {name: _joined(name, [x[name] for x in drawn]) for name in drawn[0]}


def _joined(name: str, parts: list[Any]) -> Any:
  if name in WHOLE:
    return parts[0]
  if name.endswith("_NN"):
    return np.tile(parts[0], (8, 8))
  return np.concatenate(parts)


def difference(alone: Any, spread: Any) -> float:
  """The largest between two results, of numbers above 1 relative to them.

  NaN if either holds one.
  """
  leaves = zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True)
  pairs = [(np.asarray(x, float), np.asarray(y, float)) for x, y in leaves]
  apart = (
    np.where(x == y, 0, np.abs(x - y)) / np.maximum(1, np.abs(x))
    for x, y in pairs
  )
  return float(np.max([np.max(x, initial=0) for x in apart]))


def main() -> None:
  """Compares each function on one device and on eight."""
  devices = jax.devices()
  if len(devices) != 8:
    sys.exit(f"eight devices are needed, found {len(devices)}")
  blocks = {
    b["function"]: b for cases in sections().values() for b in cases[::-1]
  }
  for name in LEFT_OUT | WITHOUT_ROWS:
    del blocks[name]
  inputs = {name: arguments(block) for name, block in blocks.items()}

  @jax.jit
  def everything(inputs):
    return {name: call(blocks[name], x) for name, x in inputs.items()}

  mesh = Mesh(devices, ("data",))
  rows, whole = (NamedSharding(mesh, PartitionSpec(*p)) for p in (["data"], []))
  spread = {
    name: {
      n: jax.device_put(x, whole if n in WHOLE else rows) for n, x in of.items()
    }
    for name, of in inputs.items()
  }
  alone = everything(jax.device_put(inputs, devices[0]))
  spread = everything(spread)
  sys.stdout.write(
    json.dumps({name: difference(alone[name], spread[name]) for name in blocks})
  )


if __name__ == "__main__":
  main()
