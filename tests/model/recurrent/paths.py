"""Rows of packed sequences or trees, and each path from a root by itself."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.attention.packed import segment_ends
from tests.model.attention.trees import random_ends

ROWS, LENGTH, PADDING, CHUNK = 2, 47, 2, 8
MOST_PATHS = ROWS * LENGTH


class Paths(NamedTuple):
  """Of a batch of rows; P paths, from a root to a leaf each, or empty."""

  marks: tuple[np.ndarray | None, ...]  # arguments of `ancestry`
  row_P: np.ndarray
  token_PT: np.ndarray  # places in the row, filled up with 0
  length_P: np.ndarray
  where_BT: np.ndarray  # of a token among those of all paths; 0 is padding

  def apart(self, x_BTD):
    """The tokens of each path, [P, T, ...]."""
    return x_BTD[self.row_P[:, None], self.token_PT]

  def together(self, x_PTD):
    """The tokens of rows, [B, T, ...]; 0 on padding."""
    x_BTD = x_PTD.reshape(-1, *x_PTD.shape[2:])[self.where_BT]
    return off_padding(self.marks[-1] > 0, x_BTD)


def draw(seed: int, *, is_tree: bool) -> Paths:
  """Draws rows; their last tokens are padding."""
  rng = np.random.default_rng(seed)
  if is_tree:
    share = {"padding": PADDING, "branching": 0.1 + 0.2 * (seed % 3)}
    end_BT = np.stack([random_ends(rng, LENGTH, **share), _many_contexts()])
    marks = None, end_BT
  else:
    segment_BT = np.cumsum(rng.random((ROWS, LENGTH)) < 0.1, axis=1) + 1
    segment_BT[:, -PADDING:] = 0
    end_BT, marks = np.array(segment_ends(segment_BT)), (segment_BT,)
  where_BT = np.zeros_like(end_BT)
  row_P, length_P = np.zeros((2, MOST_PATHS), int)
  token_PT = np.zeros((MOST_PATHS, LENGTH), int)
  leaves = np.argwhere(end_BT == np.arange(LENGTH) + 1)
  for p, (b, t) in enumerate(leaves):
    path = np.flatnonzero(end_BT[b, : t + 1] > t)
    where_BT[b, path] = LENGTH * p + np.arange(len(path))
    row_P[p], token_PT[p, : len(path)], length_P[p] = b, path, len(path)
  return Paths(marks, row_P, token_PT, length_P, where_BT)


def _many_contexts() -> np.ndarray:
  """A path, and a branch of one token from each of its chunks, last to first.

  No tree has more parts with as many chunks.
  """
  end = np.arange(1, LENGTH + 1)
  for leaf, fork in enumerate(range(5 * CHUNK, 0, -CHUNK), 5 * CHUNK):
    end[:fork] = leaf + 1
  end[LENGTH - PADDING :] = 0
  return end


def off_padding(is_real_BT, x_BTD):
  """Puts 0 in place of padding."""
  return jnp.where(jnp.expand_dims(is_real_BT, range(2, x_BTD.ndim)), x_BTD, 0)


def spoilt(tokens):
  """Puts NaN in place of padding."""
  return [x.at[:, -PADDING:].set(np.nan) for x in tokens]


@functools.partial(jax.jit, static_argnums=0)
def slopes(compute, fixed, inputs):
  """Slopes of one number of all outputs, and the outputs."""

  def total(*inputs):
    found = compute(fixed, *inputs)
    return sum(jnp.vdot(x, jnp.cos(jnp.arange(x.size))) for x in found), found

  return jax.grad(total, range(len(inputs)), has_aux=True)(*inputs)


def assert_close(found, wanted):
  """Compares arrays, each by the largest entry that it should have."""
  for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * max(1, np.abs(y).max()))
