"""A window of the convolution holds a token's own ancestors."""

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.recurrent import convolution
from agentrl_jax.model.recurrent.ancestry import ancestry
from tests.model.recurrent import paths
from tests.model.recurrent.paths import LENGTH, PADDING, ROWS

TAPS, WIDTH = 4, 3
KERNEL = np.random.default_rng(0).normal(size=(TAPS, WIDTH)).astype(np.float32)


def _drawn(length=LENGTH):
  rng = np.random.default_rng(1)
  return rng.normal(size=(ROWS, length, WIDTH)).astype(np.float32)


def _along(x_TD):
  padded = np.pad(x_TD, ((TAPS - 1, 0), (0, 0)))
  return sum(padded[j : j + len(x_TD)] * KERNEL[j] for j in range(TAPS))


class ConvolutionTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_rows_are_each_path_by_itself(self, is_tree):
    x_BTD, rows = _drawn(), paths.draw(1, is_tree=is_tree)
    x_BTD[:, -PADDING:] = np.nan
    found = jax.jit(convolution.convolve)(
      x_BTD, KERNEL, ancestry(*paths.marks(rows, is_tree=is_tree))
    )
    for b, path, size in zip(*rows[1:4], strict=True):
      at = b, path[:size]
      np.testing.assert_allclose(found[at], _along(x_BTD[at]), atol=1e-6)

  def test_sequences_go_on(self):
    """The second begins later: before, it has no tokens and only padding."""
    x_BTD, window = _drawn(9), np.zeros((ROWS, TAPS - 1, WIDTH), np.float32)
    spoilt_BTD = x_BTD.copy()
    spoilt_BTD[1, :5] = np.nan
    found = []
    for part, lengths in ((slice(5), (5, 0)), (slice(5, 9), (4, 4))):
      y, window = convolution.extend(
        spoilt_BTD[:, part], KERNEL, window, np.array(lengths)
      )
      found += [y]
    found = np.concatenate(found, axis=1)
    np.testing.assert_allclose(found[0], _along(x_BTD[0]), atol=1e-6)
    np.testing.assert_allclose(found[1, 5:], _along(x_BTD[1, 5:]), atol=1e-6)
