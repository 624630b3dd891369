"""Memory of processes that live long: collections of objects, freed blocks.

A full collection of Python scans every object. Where 10,000 episodes are open
it holds the event loop for a second, and takes a fifth of all CPU time.

XLA on a CPU allocates the temporary buffers of a program for each call, and
glibc gives blocks of that size back to the kernel, which zeroes the same pages
again for the next call: 600,000 pages in an update of 135 M params. So freed
blocks are kept, as long as the machine has as much memory to spare: XLA aligns
its buffers, which glibc seldom places where the last of their size was (its bug
14581), and 6 GB in use may leave 8 GB of holes.
"""

import contextlib
import ctypes
import gc
import importlib.util
import math
import os
import pathlib
import platform
import re
from collections.abc import Iterator

# Objects more than were freed, until the youngest are scanned; such scans until
# the middle generation is; and scans of that until all are.
_THRESHOLDS = (10_000, 50, 20)

# Parameters of mallopt(3), the variable by which users set each, and the value:
# one arena, since others take large blocks from the kernel whatever is set; no
# blocks of their own mapping; nothing given back from the end of the heap.
_MALLOC = (
  (-8, "MALLOC_ARENA_MAX", 1),
  (-4, "MALLOC_MMAP_MAX_", 0),
  (-1, "MALLOC_TRIM_THRESHOLD_", -1),
)
_MEMINFO = pathlib.Path("/proc/meminfo")
_CONTAINER = pathlib.Path("/sys/fs/cgroup")
_ACCELERATORS = ("libtpu", "jax_plugins")  # packages that JAX finds devices by


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


def keep_freed_memory() -> bool:
  """Lets malloc keep what is freed, for a process that computes on a CPU.

  Call it before numpy is imported, whose threads have arenas of their own. What
  the environment sets stays. Returns False, and changes nothing, where another
  C library than glibc allocates or JAX computes on an accelerator.
  """
  platforms = os.environ.get("JAX_PLATFORMS", "")
  is_cpu = platforms == "cpu" or not (
    platforms or any(map(importlib.util.find_spec, _ACCELERATORS))
  )
  if not is_cpu or platform.libc_ver()[0] != "glibc":
    return False
  for parameter, variable, value in _MALLOC:
    if variable not in os.environ:
      ctypes.CDLL(None).mallopt(parameter, value)
  return True


def share_freed_memory() -> bool:
  """Gives freed blocks to the kernel if they are more than it has to spare.

  Call it from time to time, once an update or so. Returns whether it did: glibc
  before 2.33 and other C libraries are left alone.
  """
  libc = ctypes.CDLL(None)
  if not hasattr(libc, "mallinfo2"):
    return False
  libc.mallinfo2.restype = _Blocks
  return libc.mallinfo2().fordblks > _available() and bool(libc.malloc_trim(0))


class _Blocks(ctypes.Structure):
  """mallinfo2(3): bytes and numbers of malloc's blocks."""

  _fields_ = tuple(
    (name, ctypes.c_size_t)
    for name in (
      *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
      *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
    )
  )


def _available() -> float:
  """Returns the bytes that the machine or its container has left, if known."""
  told = re.search(r"MemAvailable: *(\d+) kB", _MEMINFO.read_text())
  left = 1024 * int(told[1]) if told else math.inf
  if (limit := container_limit()) < math.inf:
    left = min(left, limit - int((_CONTAINER / "memory.current").read_text()))
  return left


def container_limit() -> float:
  """Returns the bytes that this process's container may use; or infinity."""
  path = _CONTAINER / "memory.max"
  most = path.read_text().strip() if path.is_file() else ""
  return int(most) if most.isdecimal() else math.inf
