"""Folders of which a part is gone, cut off or out of reach for a while."""

from unittest import mock

import jax
from absl.testing import absltest

from agentrl_jax.data import snapshot_manifest
from tests.rollout.snapshots import SnapshotsCase


class DamageTest(SnapshotsCase):
  def test_errors_of_no_kind_are_told_too(self):
    """What Orbax raises depends on which file is gone, and on its threads."""
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    reader = follower._checkpointer
    gone = Exception("Encountered error while reading array index: (0, 1)")
    with mock.patch.object(reader, "restore", side_effect=gone):
      self.assertFalse(follower.look())
    self.assertRegex(follower.trouble, "version 2 cannot be read: Encountered")
    self.serves(1)
    self.now += 60
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
    with mock.patch.object(reader, "restore", side_effect=full):
      self.assertFalse(follower.look())
    self.assertRegex(follower.trouble, "version 2 cannot be put on the devices")
    self.now += 60
    self.assertTrue(follower.look())
    self.serves(2)

  def test_a_manifest_that_cannot_be_read(self):
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    path = self.folder / snapshot_manifest.FILE
    moved = path.rename(self.folder / "elsewhere")
    path.mkdir()  # a bucket or a network folder may fail in ways of their own
    self.assertFalse(follower.look())
    self.assertRegex(follower.trouble, "manifest.json cannot be read")
    self.serves(1)
    path.rmdir()
    moved.rename(path)
    self.now += 60
    self.assertTrue(follower.look(), follower.trouble)
    self.serves(2)

  def test_a_manifest_of_other_bytes(self):
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    (self.folder / snapshot_manifest.FILE).write_bytes(b'{"format\xff": 1}')
    self.assertFalse(follower.look())
    self.assertRegex(follower.trouble, "is no manifest of snapshots")


if __name__ == "__main__":
  absltest.main()
