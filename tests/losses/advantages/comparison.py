"""Comparison of a function with its reference in both precisions."""

import jax
import numpy as np


def assert_matches(
  function, expected, *arrays, rtol=1e-5, atol=1e-6, least=0.05, **settings
):
  """Compares to `rtol` in float32, and to twelve digits in float64.

  Numbers of trajectories and tokens are divided by 3, so that float32 cannot
  hold them. The largest number of the reference must be at least `least`, so
  that zeros do not agree by chance.
  """
  for dtype, tolerance in (
    (np.float32, {"rtol": rtol, "atol": atol}),
    (np.float64, {"rtol": 1e-12, "atol": 1e-12}),
  ):
    inputs = [x / dtype(3) if x.dtype == np.float32 else x for x in arrays]
    with jax.enable_x64(dtype == np.float64):
      results = jax.tree.leaves(function(*inputs, **settings))
    references = jax.tree.leaves(expected(*inputs, **settings))
    for result, reference in zip(results, references, strict=True):
      assert result.dtype == dtype
      assert np.abs(reference).max() >= least
      np.testing.assert_allclose(result, reference, **tolerance)
