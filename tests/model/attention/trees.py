"""Random prefix trees, as rows of attention have them."""

import numpy as np


def random_ends(
  rng, length: int, *, padding: int = 0, branching: float = 0.05
) -> np.ndarray:
  """The end of each token's subtree, int32 [T], of a random forest.

  Nodes are in depth-first order; the last `padding` entries are 0. A token
  begins another branch with the probability `branching`.
  """
  used = length - padding
  end, path = np.zeros(length, np.int32), []
  for t in range(used):
    if path and rng.random() < branching:
      kept = int(rng.integers(len(path)))
      end[path[kept:]] = t
      path = path[:kept]
    path.append(t)
  end[path] = used
  return end
