"""Lessons of the host onto the mesh.

Every learner process holds the same batch whole, since advantages are computed
over all of it; its devices are given their rows alone.
"""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from agentrl_jax.data.batch import Batch
from agentrl_jax.model import sharding
from agentrl_jax.train.objective import TrainBatch


def batch_shardings(mesh: Mesh) -> TrainBatch:
  """Of each field: rows split as `sharding.BATCH_SPEC` says, the rest whole.

  A prefix of the tree that a lesson is, whichever of its fields it has.
  """
  rows = sharding.batch_sharding(mesh)
  of_batch = {field.name: rows for field in dataclasses.fields(Batch)}
  whole = sharding.replicated(mesh)
  of_batch["mask_MX"] = whole
  fields = {field.name: rows for field in dataclasses.fields(TrainBatch)}
  return TrainBatch(**fields | {"batch": Batch(**of_batch), "left_out": whole})


def on_mesh(lesson: TrainBatch, mesh: Mesh | None) -> TrainBatch:
  """Its arrays on the devices, as `batch_shardings` says.

  What is on devices already stays as it is; without a mesh everything does.
  """
  if mesh is None:
    return lesson
  where = jax.tree.broadcast(batch_shardings(mesh), lesson)
  return jax.tree.map(_place, lesson, where)


def whole_on_mesh(
  array: np.ndarray, mesh: Mesh | None
) -> np.ndarray | jax.Array:
  """What all lessons share, on every device once; without a mesh as it is."""
  if mesh is None:
    return array
  return _place(array, sharding.replicated(mesh))


def _place(x: np.ndarray | jax.Array, where: NamedSharding) -> jax.Array:
  if isinstance(x, jax.Array):
    return x
  return jax.make_array_from_callback(x.shape, where, lambda part: x[part])
