"""A process that is ready scans less, and still frees cycles."""

import gc
import weakref

from absl.testing import absltest

from agentrl_jax.garbage import spare_collections, spared_collections


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


if __name__ == "__main__":
  absltest.main()
