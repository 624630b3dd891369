"""Garbage collections of processes that hold many objects for long.

A full collection of Python scans every object. Where 10,000 episodes are open
it holds the event loop for a second, and takes a fifth of all CPU time.
"""

import contextlib
import gc
from collections.abc import Iterator

# Objects more than were freed, until the youngest are scanned; such scans until
# the middle generation is; and scans of that until all are.
_THRESHOLDS = (10_000, 50, 20)


def spare_collections() -> None:
  """Excludes all present objects from collections, and makes these rarer.

  For a process that is ready to serve or to play: jax, the model and all code
  are there, and stay. Objects without cycles are freed at once as ever.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(*_THRESHOLDS)


@contextlib.contextmanager
def spared_collections() -> Iterator[None]:
  """Calls `spare_collections` for its body; all is scanned again afterwards.

  For a process that goes on, which must free what it does not need any more.
  """
  thresholds = gc.get_threshold()
  spare_collections()
  try:
    yield
  finally:
    gc.set_threshold(*thresholds)
    gc.unfreeze()
