"""Rows of packed sequences or trees, and each path from a root by itself."""

from typing import NamedTuple

import numpy as np

from tests.model.attention.trees import random_ends

ROWS, LENGTH, PADDING, CHUNK = 2, 47, 2, 8
MOST_PATHS = ROWS * LENGTH


class Paths(NamedTuple):
  """Of a batch of rows; P paths, from a root to a leaf each, or empty."""

  mark_BT: np.ndarray  # segments, or ends of subtrees
  row_P: np.ndarray
  token_PT: np.ndarray  # places in the row, filled up with 0
  length_P: np.ndarray
  where_BT: np.ndarray  # of a token among those of all paths; 0 is padding


def draw(seed: int, *, is_tree: bool) -> Paths:
  """Draws rows; their last tokens are padding."""
  rng = np.random.default_rng(seed)
  if is_tree:
    share = {"padding": PADDING, "branching": 0.1 + 0.2 * (seed % 3)}
    marks = end_BT = np.stack(
      [random_ends(rng, LENGTH, **share), _many_contexts()]
    )
  else:
    marks = np.cumsum(rng.random((ROWS, LENGTH)) < 0.1, axis=1) + 1
    marks[:, -PADDING:] = 0
    is_last_BT = np.diff(marks, append=0, axis=1) != 0
    end_BT = np.where(is_last_BT, np.arange(1, LENGTH + 1), LENGTH)
    end_BT = np.minimum.accumulate(end_BT[:, ::-1], axis=1)[:, ::-1]
  where_BT = np.zeros_like(marks)
  row_P, length_P = np.zeros((2, MOST_PATHS), int)
  token_PT = np.zeros((MOST_PATHS, LENGTH), int)
  leaves = np.argwhere((marks > 0) & (end_BT == np.arange(LENGTH) + 1))
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
    end[:fork] = leaf + 1 + np.zeros(fork, int)
  end[LENGTH - PADDING :] = 0
  return end


def marks(rows: Paths, *, is_tree: bool) -> tuple[np.ndarray | None, ...]:
  """Returns the arguments of `ancestry`."""
  return (None, rows.mark_BT) if is_tree else (rows.mark_BT,)
