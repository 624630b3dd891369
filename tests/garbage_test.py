"""A process that is ready scans less, frees cycles, and keeps its memory."""

import gc
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import weakref
from unittest import mock

from absl.testing import absltest, parameterized

import launch
from agentrl_jax.garbage import (
  keep_freed_memory,
  spare_collections,
  spared_collections,
)

# Fills and frees 256 MiB in threads; prints the page faults of the last one.
_FILLS = """
import resource, threading, numpy
def fill():
  before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
  bytearray(1 << 28)
  pages.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
pages = []
for _ in range(4):
  thread = threading.Thread(target=fill)
  thread.start()
  thread.join()
print(pages[-1])
"""

# Frees 256 MiB on a machine that FOLDER describes; prints how many MiB it gives
# back.
_SHARES = """
import pathlib, resource, sys
from agentrl_jax import garbage
def pages():
  return int(pathlib.Path("/proc/self/statm").read_text().split()[1])
bytearray(1 << 28)
garbage._CONTAINER = pathlib.Path(sys.argv[2])
garbage._MEMINFO = garbage._CONTAINER / "meminfo"
before = pages()
shared = garbage.share_freed_memory()
print(int(shared) and (before - pages()) * resource.getpagesize() >> 20)
"""


class Node:
  def __init__(self) -> None:
    self.itself = self


class SpareCollectionsTest(absltest.TestCase):
  def setUp(self) -> None:
    super().setUp()
    before = gc.get_threshold()
    self.addCleanup(gc.set_threshold, *before)
    self.addCleanup(gc.unfreeze)
    self.rarely = before

  def test_present_objects_are_scanned_no_more(self) -> None:
    scanned = len(gc.get_objects())
    spare_collections()
    self.assertLess(len(gc.get_objects()), scanned / 10)
    self.assertGreater(gc.get_threshold()[0], self.rarely[0])

  def test_later_cycles_are_freed(self) -> None:
    spare_collections()
    first = weakref.ref(Node())
    nodes = 0
    while first() is not None:
      Node()
      nodes += 1
      self.assertLess(nodes, 100_000, "no collection came")

  def test_what_was_spared_is_freed_after_the_run(self) -> None:
    """A second run in the process must not keep the engine of the first."""
    node = Node()
    alive = weakref.ref(node)
    with spared_collections():
      del node
      gc.collect()
      self.assertIsNotNone(alive())
    gc.collect()
    self.assertIsNone(alive())
    self.assertEqual(gc.get_threshold(), self.rarely)


class KeepFreedMemoryTest(parameterized.TestCase):
  def printed(self, program: str, *arguments: str, **environment: str) -> int:
    """Runs the program as a command that computes; returns what it prints."""
    found = subprocess.run(
      [sys.executable, "-c", "import launch" + program, "launch.train"]
      + [*arguments],
      env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
      stdout=subprocess.PIPE,
      check=True,
      timeout=120,
    )
    return int(found.stdout)

  def faults(self, **environment: str) -> int:
    return self.printed(_FILLS, **environment)

  @parameterized.parameters(
    (100, None, True),
    (900, None, False),
    (900, 100, True),  # a container may have less than its machine
    (100, 900, True),
    (900, "max", False),
    (None, None, False),  # a kernel that does not tell
  )
  def test_freed_memory_is_given_to_who_needs_it(
    self, machine, container, short
  ):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / "meminfo").write_text(
      f"MemTotal: 9999999 kB\n\nMemAvailable: {machine << 10} kB\n"
      if machine
      else "MemTotal: 9999999 kB\n"
    )
    if container:
      most = container if container == "max" else (container + 50) << 20
      (folder / "memory.max").write_text(f"{most}\n")
      (folder / "memory.current").write_text(f"{50 << 20}\n")
    given = self.printed(_SHARES, str(folder))
    self.assertEqual(given > 200, short, given)

  def test_freed_memory_is_used_again(self) -> None:
    """Unless the environment or an accelerator says otherwise."""
    given = {"MALLOC_MMAP_MAX_": "65536", "MALLOC_ARENA_MAX": "8"}
    kept = self.faults()
    self.assertLess(kept, self.faults(**given) / 4)
    self.assertLess(kept, self.faults(JAX_PLATFORMS="cuda,cpu") / 4)

  def test_without_a_word_an_installed_plugin_decides(self) -> None:
    self.enterContext(mock.patch.dict(os.environ, JAX_PLATFORMS=""))
    self.enterContext(
      mock.patch.object(importlib.util, "find_spec", return_value=object())
    )
    self.assertFalse(keep_freed_memory())

  def test_commands_that_compute_are_there(self) -> None:
    for name in launch.COMPUTING:
      self.assertIsNotNone(importlib.util.find_spec(f"launch.{name}"))
