"""Rows of packed sequences or trees, and each path from a root by itself."""

from typing import NamedTuple

import numpy as np

from tests.model.attention.trees import random_ends

ROWS, LENGTH, PADDING = 2, 45, 4


class Paths(NamedTuple):
  """Of a batch of rows; P paths, from a root to a leaf each."""

  mark_BT: np.ndarray  # segments, or ends of subtrees
  row_P: np.ndarray
  token_PT: np.ndarray  # places in the row, filled up with 0
  length_P: np.ndarray
  where_BT: np.ndarray  # of a token among those of all paths; 0 is padding


def draw(seed: int, *, is_tree: bool) -> Paths:
  """Draws rows; their last tokens are padding."""
  rng = np.random.default_rng(seed)
  if is_tree:
    marks = end_BT = np.stack(
      [random_ends(rng, LENGTH, padding=PADDING) for _ in range(ROWS)]
    )
  else:
    cut_BT = rng.random((ROWS, LENGTH)) < 0.1
    marks = np.cumsum(cut_BT, axis=1, dtype=np.int32) + 1
    marks[:, -PADDING:] = 0
    end_BT = (marks[:, None] <= marks[..., None]) & (marks[:, None] > 0)
    end_BT = np.where(marks > 0, end_BT.sum(2), 0)
  where_BT, paths = np.zeros_like(marks), []
  for b, t in np.argwhere(end_BT == np.arange(LENGTH) + 1):
    path = np.flatnonzero(end_BT[b, : t + 1] > t)
    where_BT[b, path] = LENGTH * len(paths) + np.arange(len(path))
    paths.append((b, np.pad(path, (0, LENGTH - len(path))), len(path)))
  row_P, token_PT, length_P = map(np.array, zip(*paths, strict=True))
  return Paths(marks, row_P, token_PT, length_P, where_BT)
