"""Prints, per mesh over several processes, how far updates are from one's.

python -m tests.train.sharded.process_update [sample|slices|table]
"""

import json
import math
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from agentrl_jax.model import sharding
from agentrl_jax.model.sharding import MeshConfig
from launch.processes.group import ProcessLimits, joined
from tests.train import small
from tests.train.sharded import sharded_update

SAMPLE = ((1, 2, 2, 2, 1),)
# Meshes of which an axis spans the processes, each of them a slice.
SLICED = (("data", (2, 2, 2, 1, 1)), ("fsdp", (1, 4, 1, 2, 1)))


def _updated(batches, mesh, params):
  policy, learner = small.make_learner(
    mesh, model=sharded_update.MODEL, **small.PLAIN_STEPS
  )
  state = learner.init(params(policy))
  total = 0.0

  def add(number, values):  # every process has all of them
    nonlocal total
    (value_BT,) = map(np.asarray, values.values())
    total += value_BT[np.asarray(batches[number].batch.mask)].sum()

  for _ in range(2):
    state, metrics = learner.update(state, batches, on_tokens=add)
  return (metrics["loss"], total), state.params


def _mesh(shape: tuple[int, ...], over: str) -> Mesh:
  """Makes a mesh; that `over` slices has one process on each part of it."""
  axes = dict(zip(sharding.MESH_AXES, shape, strict=True))
  if not over:
    return sharding.make_mesh(axes)
  mesh = sharding.make_mesh(
    axes, slices=MeshConfig(over_slices=over, slices_of="processes")
  )
  parts = np.split(
    mesh.devices, jax.process_count(), axis=mesh.axis_names.index(over)
  )
  for index, part in enumerate(parts):
    assert {device.process_index for device in part.flat} == {index}
  return mesh


def main() -> None:
  """Compares the sample, or every mesh of the table, with one device."""
  with joined(ProcessLimits()) as processes:
    batches = sharded_update.batches_by_kind()
    # What attempts share is compared with the same attempts, each by itself.
    kinds = {"constrained": "constrained", "trees": "attempts"}
    one = sharding.make_mesh({}, jax.local_devices()[:1])
    made = sharded_update._params
    if sys.argv[1:] == ["table"]:
      shapes = dict.fromkeys(("", case.mesh) for case in sharded_update.table())
    elif sys.argv[1:] == ["slices"]:
      shapes = dict.fromkeys(SLICED)
      del kinds["constrained"]  # computes as trees do
    else:
      shapes = dict.fromkeys(("", shape) for shape in SAMPLE)
    found = {}
    for kind, alone in kinds.items():
      wanted_sums, wanted = _updated(batches[alone], one, made)
      for over, shape in shapes:
        assert math.prod(shape) == jax.device_count()
        mesh = _mesh(shape, over)
        sums, params = _updated(batches[kind], mesh, made)
        params = multihost_utils.process_allgather(params, tiled=True)
        gaps = jax.tree.map(
          lambda a, b: float(np.abs(a - np.asarray(b)).max()), params, wanted
        )
        found[f"{kind} {shape} {over}".strip()] = (
          *np.abs(np.subtract(sums, wanted_sums)).tolist(),
          max(jax.tree.leaves(gaps)),
        )
    if processes.leads:
      sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
  main()
