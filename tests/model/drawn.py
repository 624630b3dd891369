"""Params drawn by numpy, for which no program is compiled."""

import jax
import numpy as np

from agentrl_jax.model.policy import Params


def fill(shapes: Params, seed: int = 0) -> Params:
  """Draws values for `Policy.abstract_params`, none of them neutral.

  Matrices as fresh ones are, scales of norms near 1, and biases near 0.
  """
  rng = np.random.default_rng(seed)

  def draw(path, shape) -> np.ndarray:
    values = rng.normal(size=shape.shape)
    name = path[-1].key
    if name == "scale":
      values = 1 + 0.1 * values
    else:
      values *= 0.1 if "bias" in name or name == "sinks" else 32**-0.5
    return values.astype(shape.dtype)

  return jax.tree_util.tree_map_with_path(draw, shapes)
