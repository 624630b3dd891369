"""Gradients by central differences."""

import numpy as np


def gradient(function, x, *, step=1e-5):
  """Central differences in float64 of a function from an array to a number."""
  x = np.array(x, dtype=np.float64)
  slope = np.zeros_like(x)
  for at in np.ndindex(x.shape):
    ahead, behind = x.copy(), x.copy()
    ahead[at] += step
    behind[at] -= step
    slope[at] = (function(ahead) - function(behind)) / (2 * step)
  return slope
