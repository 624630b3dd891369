"""A window of the convolution holds a token's own ancestors."""

import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model.recurrent import convolution
from agentrl_jax.model.recurrent.ancestry import ancestry
from tests.model.recurrent import paths
from tests.model.recurrent.paths import LENGTH, ROWS

TAPS, WIDTH = 4, 3


def _drawn():
  """Rows of inputs, and taps."""
  rng = np.random.default_rng(1)
  shapes = (ROWS, LENGTH, WIDTH), (TAPS, WIDTH)
  return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def _of_rows(marks, *inputs):
  rows = ancestry(*marks)
  y_BTD = convolution.convolve(*inputs, rows)
  return [paths.off_padding(rows.is_real_BT, y_BTD)]


def _along(x_BTD, kernel_WD):
  padded = jnp.pad(x_BTD, ((0, 0), (TAPS - 1, 0), (0, 0)))
  length = x_BTD.shape[1]
  return sum(padded[:, j : j + length] * tap for j, tap in enumerate(kernel_WD))


def _by_paths(path: paths.Paths, x_BTD, kernel_WD):
  return [path.together(_along(path.apart(x_BTD), kernel_WD))]


class ConvolutionTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_rows_are_each_path_by_itself(self, is_tree):
    rows, (x_BTD, kernel) = paths.draw(1, is_tree=is_tree), _drawn()
    inputs = [*paths.spoilt([x_BTD]), kernel]
    found = paths.slopes(_of_rows, rows.marks, inputs)
    paths.assert_close(found, paths.slopes(_by_paths, rows, [x_BTD, kernel]))

  def test_nothing_is_before_the_root_of_a_row_without_padding(self):
    rows, x_BTD = ancestry(None, jnp.array([[3, 2, 3]])), jnp.eye(3)[None]
    for back, wanted in ((1, [0, 1, 1]), (2, [0, 0, 0])):
      np.testing.assert_array_equal(rows.before(x_BTD, back)[0, :, 0], wanted)

  def test_sequences_go_on(self):
    """The second begins later: before, it has no tokens and only padding."""
    x_BTD, kernel = _drawn()
    window = jnp.zeros((ROWS, TAPS - 1, WIDTH))
    first = x_BTD[:, :5].at[1].set(np.nan), kernel, window, jnp.array([5, 0])
    early, window = convolution.extend(*first)
    last = x_BTD[:, 5:9], kernel, window, jnp.array([4, 4])
    late, _ = convolution.extend(*last)
    wanted = _along(x_BTD, kernel), _along(x_BTD[:, 5:], kernel)
    paths.assert_close(early[0], wanted[0][0, :5])
    paths.assert_close(late, jnp.stack([wanted[0][0, 5:9], wanted[1][1, :4]]))
