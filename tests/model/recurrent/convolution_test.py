"""A window of the convolution holds a token's own ancestors."""

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.recurrent import convolution
from agentrl_jax.model.recurrent.ancestry import ancestry
from tests.model.recurrent import paths
from tests.model.recurrent.paths import LENGTH, PADDING, ROWS

TAPS, WIDTH = 4, 3


def _drawn():
  rng = np.random.default_rng(0)
  x_BTD = rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
  return x_BTD, rng.normal(size=(TAPS, WIDTH)).astype(np.float32)


def _along(x_TD, kernel_WD):
  padded = np.pad(x_TD, ((TAPS - 1, 0), (0, 0)))
  return sum(padded[j : j + len(x_TD)] * kernel_WD[j] for j in range(TAPS))


class ConvolutionTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_rows_are_each_path_by_itself(self, is_tree):
    x_BTD, kernel = _drawn()
    rows = paths.draw(1, is_tree=is_tree)
    x_BTD[:, -PADDING:] = np.nan
    marks = (None, rows.mark_BT) if is_tree else (rows.mark_BT,)
    found = jax.jit(convolution.convolve)(x_BTD, kernel, ancestry(*marks))
    for b, path, size in zip(*rows[1:4], strict=True):
      path = path[:size]
      wanted = _along(x_BTD[b, path], kernel)
      np.testing.assert_allclose(found[b, path], wanted, atol=1e-6)

  def test_sequences_go_on(self):
    x_BTD, kernel = _drawn()
    window = np.zeros((ROWS, TAPS - 1, WIDTH), np.float32)
    wanted = [_along(x_TD, kernel) for x_TD in x_BTD]
    begin_B = np.zeros(ROWS, int)
    for length_B in ([2, 0], [5, 1], [0, 5]):
      chunk = np.full((ROWS, 5, WIDTH), np.nan, np.float32)
      for b, n in enumerate(length_B):
        chunk[b, :n] = x_BTD[b, begin_B[b] :][:n]
      y, window = convolution.extend(chunk, kernel, window, np.array(length_B))
      for b, n in enumerate(length_B):
        right = wanted[b][begin_B[b] :][:n]
        np.testing.assert_allclose(y[b, :n], right, atol=1e-6)
      begin_B += length_B
