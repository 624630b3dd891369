"""Batches of the host onto the mesh.

Every learner process holds the same batch whole, since advantages are computed
over all of it; its devices are given their rows alone.
"""

from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from agentrl_jax.model import sharding

T = TypeVar("T")


def on_mesh(tree: T, mesh: Mesh | None) -> T:
  """Arrays [R, T], rows split as `sharding.BATCH_SPEC` says.

  What is on devices already stays as it is; without a mesh everything does.
  """
  if mesh is None:
    return tree
  rows = sharding.batch_sharding(mesh)

  def place(x: np.ndarray | jax.Array) -> jax.Array:
    if isinstance(x, jax.Array):
      return x
    return jax.make_array_from_callback(x.shape, rows, lambda part: x[part])

  return jax.tree.map(place, tree)
