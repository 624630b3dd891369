"""Comparison of gradients with central differences of a reference."""

import jax
import numpy as np

from tests.reference import finite_difference


def assert_gradient(function, expected, x, *, atol=1e-8):
  """Compares two functions of an array to a number; returns the gradient.

  Both are computed in float64. NaN in `x` stands where `function` must not
  look, and is 0 for `expected`.
  """
  with jax.enable_x64(True):
    gradient = jax.grad(function)(x.astype(np.float64))
  np.testing.assert_allclose(
    gradient, finite_difference.gradient(expected, np.nan_to_num(x)), atol=atol
  )
  return gradient
