"""Comparison with verl, RAGEN and GMPO themselves, on random inputs.

`tests/golden/make_originals.py` ran their code; `comparison.py` runs ours. In
float64 the two agree to rounding, in values and gradients; in float32 to its
precision.
"""

import jax
import numpy as np
import pytest
from absl.testing import parameterized

from tests.golden import comparison

# What the originals' own habits cost them in exactness, by part of a name: verl
# adds 1e-8 to numbers of tokens that it divides by, RAGEN computes in float32.
THEIRS = {
  "bi_level": 2e-6,
  "plus_plus": 2e-8,
  "whitened": 2e-8,
  "seq-mean-token-mean": 2e-8,
  "gspo": 2e-8,
  "gmpo_authors": 0,
  "gmpo": 2e-8,
  "sapo": 2e-8,
  "dppo": 5e-8,  # ours: log-ratios are held at -20, where weights are 2e-9
  "metrics/": 2e-7,  # ours: shares are counted in float32
  "normalized": 2e-8,
}

ours = jax.jit(lambda x: dict(comparison.results(x)))


class OriginalsTest(parameterized.TestCase):
  def _compare(self, x, expected, *, rtol, atol):
    found = ours(x)
    self.assertEqual(set(found), set(expected))
    for name, value in found.items():
      wanted = expected[name]
      if np.isnan(wanted).all():
        continue  # the original had no answer
      least = next((t for part, t in THEIRS.items() if part in name), 0)
      np.testing.assert_allclose(
        value,
        wanted,
        rtol=max(rtol, least),
        atol=max(atol, least),
        err_msg=name,
      )

  def test_every_result_of_the_originals_has_its_own_here(self):
    x, expected = next(comparison.batches())
    shapes = jax.eval_shape(ours, x)
    self.assertEqual(
      {name: value.shape for name, value in shapes.items()},
      {name: value.shape for name, value in expected.items()},
    )

  @pytest.mark.slow
  def test_in_float64_to_rounding(self):
    with jax.enable_x64(True):
      for x, expected in comparison.batches():
        self._compare(x, expected, rtol=1e-11, atol=1e-12)

  @pytest.mark.slow
  def test_in_float32_to_a_millionth(self):
    for x, expected in comparison.batches():
      single = comparison.in_float32(x)
      self._compare(single, expected, rtol=2e-6, atol=1e-6)
