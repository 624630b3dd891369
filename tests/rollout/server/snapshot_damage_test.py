"""Folders of which a part is gone, cut off or out of reach for a while."""

import json
import random
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


class ManifestFuzzTest(SnapshotsCase):
  """A true manifest, altered by a seed: nothing of it ends a server."""

  STRANGE = (
    *(None, True, -1, 0, 1.5, 2**70, "", "abc", "-1", [], {}, [1], {"a": 1}),
    *("../elsewhere", ".", "float99[2]", "float32", "float32[-1]", "[2]"),
  )

  def mutated(self, body, generator):
    """The body with one value or key at any depth changed, or left out."""
    holder, depth = body, generator.randint(0, 4)
    while True:
      key = generator.choice(sorted(holder))
      inner = holder[key]
      if not isinstance(inner, dict) or not inner or not depth:
        break
      holder, depth = inner, depth - 1
    kind = generator.random()
    if kind < 0.2:
      del holder[key]
    elif kind < 0.4:
      holder[str(generator.choice(self.STRANGE))] = holder.pop(key)
    else:
      holder[key] = generator.choice(self.STRANGE)
    return body

  def test_whatever_is_altered_the_server_goes_on(self):
    sink, follower = self.open_sink(), self.follow()
    path = self.folder / snapshot_manifest.FILE
    self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    whole, generator = path.read_text(), random.Random(5)
    for _ in range(80):
      body = self.mutated(json.loads(whole), generator)
      with self.subTest(body=json.dumps(body)[:300]):
        path.write_text(json.dumps(body))
        if follower.look():  # a step or an publication that could be true
          self.assertIsInstance(self.store.get(0).step, int)
          self.assertGreaterEqual(self.store.get(0).step, 0)
        else:
          self.serves(self.store.get(0).step)
        self.assertNotIn("\n", follower.trouble)
        self.now += generator.choice((0, 1, 60))
    path.write_text(whole)
    self.publish(sink, 3)
    self.assertTrue(follower.look(), follower.trouble)  # at once
    self.assertEqual(follower.trouble, "")
    self.serves(3)

  def test_a_first_manifest_that_is_damaged_is_waited_out(self):
    for changes in (
      dict(step="abc"),
      dict(leaves={"a": "float32"}, checksums={"a": 1}),
      dict(leaves={"a": "float99[2]"}, checksums={"a": 1}),
    ):
      sink, follower = self.open_sink(), self.follow()
      self.publish(sink, 1)
      self.rewrite(**changes)
      self.assertFalse(follower.look())
      self.assertRegex(follower.trouble, "is no manifest")
      self.publish(sink, 2)
      self.assertTrue(follower.look())
      self.serves(2)
      sink.close()

  def test_a_good_snapshot_does_not_wait_for_a_damaged_one(self):
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    name = next(iter(self.manifest().policy_slots[0].checksums))
    sums = dict(self.manifest().policy_slots[0].checksums)
    self.rewrite(checksums=sums | {name: sums[name] ^ 1})
    restored = 0
    restore = follower._restore

    def counted(*arguments):
      nonlocal restored
      restored += 1
      return restore(*arguments)

    follower._restore = counted
    for _ in range(5):
      self.assertFalse(follower.look())
    self.assertEqual(restored, 1)  # the same one is put off
    self.assertRegex(follower.trouble, "is damaged")
    self.publish(sink, 3)
    self.assertTrue(follower.look())  # no time has passed
    self.assertEqual(follower.trouble, "")
    self.serves(3)


if __name__ == "__main__":
  absltest.main()
