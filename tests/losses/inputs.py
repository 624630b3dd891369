"""Random arguments for tests of losses on packed rows."""

import numpy as np


def segment_ids(
  seed: int, shape: tuple[int, int], num_segments: int
) -> np.ndarray:
  """Ids that grow in a row, from -1 to `num_segments`: both name no segment."""
  rng = np.random.default_rng(seed)
  ids_BT = rng.integers(-1, num_segments + 1, size=shape)
  return np.sort(ids_BT, axis=1).astype(np.int32)
