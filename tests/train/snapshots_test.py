"""From the learner's params, through a folder, to what a server serves."""

import contextlib
import dataclasses
import pathlib
import tempfile
import threading

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl.testing import absltest, parameterized
from etils import epath

from agentrl_jax.data import snapshot_manifest
from agentrl_jax.errors import CheckpointError, ConfigError, DeadlineExceeded
from agentrl_jax.model.checksums import leaf_names
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.snapshot_follower import SnapshotFollower
from agentrl_jax.rollout.versions import VersionStore
from agentrl_jax.rollout.wire import ServedSlot
from agentrl_jax.train.publish import Publisher
from agentrl_jax.train.snapshots import SnapshotSink
from tests.rollout import small


def assert_same(found, wanted):
  jax.tree.map(np.testing.assert_array_equal, found, wanted)


class SnapshotsCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name) / "snapshots"
    self.policy = small.policy()

  def open_sink(self, *, max_lag=2, deadline_s=60.0, **changes):
    sink = SnapshotSink(
      str(self.folder), max_lag=max_lag, deadline_s=deadline_s
    )
    self.addCleanup(sink.close)
    self.publisher = Publisher(
      self.policy, sink, **(dict(layers_apart=False) | changes)
    )
    return sink

  def publish(self, sink, step, *, slot=0):
    self.publisher.publish(small.params(step), step, slot=slot)
    sink.flush()
    return sink.editions()[slot]

  def follow(self, policy=None, num_slots=1):
    self.now = 0.0
    self.store = VersionStore(num_slots)
    return SnapshotFollower(
      str(self.folder),
      policy or self.policy,
      self.store,
      clock=lambda: self.now,
    )

  def serves(self, step, *, slot=0):
    served = self.store.get(slot)
    self.assertEqual(served.step, step)
    assert_same(served.params, self.policy.unstacked(small.params(step)))

  def manifest(self):
    return snapshot_manifest.read_manifest(epath.Path(self.folder))

  def rewrite(self, **changes):
    """Replaces slot 0's entry in the manifest by another."""
    slots = dict(self.manifest().slots)
    slots[0] = dataclasses.replace(slots[0], **changes)
    snapshot_manifest.write_manifest(
      epath.Path(self.folder), snapshot_manifest.Manifest(slots)
    )


class FollowingTest(SnapshotsCase):
  def test_each_slot_serves_what_it_was_published(self):
    sink, follower = self.open_sink(), self.follow(num_slots=2)
    self.assertFalse(follower.look())
    self.assertFalse(follower.is_serving)
    first = self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.serves(1)
    self.assertEqual(follower.slots, (ServedSlot(1, first), None))
    other = self.publish(sink, 2, slot=1)
    second = self.publish(sink, 3)
    self.assertTrue(follower.look())
    self.serves(3)
    self.serves(2, slot=1)
    self.assertEqual(
      follower.slots, (ServedSlot(3, second), ServedSlot(2, other))
    )
    self.assertFalse(follower.look())  # nothing is read twice
    self.assertLess(first, other)
    self.assertLess(other, second)

  def test_the_same_step_published_again_is_served_again(self):
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    follower.look()
    edition = self.store.get(0).edition
    self.publisher.publish(small.params(4), 1)
    sink.flush()
    self.assertTrue(follower.look())
    self.assertNotEqual(self.store.get(0).edition, edition)
    assert_same(
      self.store.get(0).params, self.policy.unstacked(small.params(4))
    )

  def test_what_is_written_in_one_precision_is_served_in_another(self):
    sink = self.open_sink(dtype="bfloat16")
    self.publish(sink, 1)
    leaves = self.manifest().slots[0].leaves
    self.assertEqual(
      {x.partition("[")[0] for x in leaves.values()}, {"bfloat16"}
    )
    follower = self.follow()
    self.assertTrue(follower.look(), follower.trouble)
    rounded = jax.tree.map(
      lambda x: x.astype("bfloat16").astype("float32"),
      self.policy.unstacked(small.params(1)),
    )
    assert_same(self.store.get(0).params, rounded)
    halved = Policy(self.policy.config, ComputeConfig(dtype="bfloat16"))
    follower = self.follow(halved)
    self.assertTrue(follower.look(), follower.trouble)
    self.assertEqual(
      {x.dtype.name for x in jax.tree.leaves(self.store.get(0).params)},
      {"bfloat16"},
    )

  def test_only_what_slots_refer_to_is_kept_and_what_they_did_before(self):
    sink = self.open_sink(max_lag=0)
    (self.folder / "edition_5.orbax-checkpoint-tmp").mkdir()
    self.publish(sink, 1, slot=1)
    for step in range(2, 6):
      self.publish(sink, step)
    kept = {s.folder for s in self.manifest().slots.values()}
    found = {p.name for p in self.folder.iterdir() if p.is_dir()}
    self.assertLen(kept, 2)
    self.assertContainsSubset(kept, found)
    self.assertLen(found, 3)

  def test_a_new_start_goes_on_counting_and_forgets_what_was_published(self):
    edition = self.publish(self.open_sink(), 40)
    sink = self.open_sink()
    self.assertEmpty(sink.acceptable())
    later = self.publish(sink, 38)  # resumed from an older checkpoint
    self.assertGreater(later, edition)
    self.assertEqual(sink.acceptable(), {0: later})
    follower = self.follow()
    follower.look()
    self.serves(38)

  def test_what_may_be_sampled_from_is_at_most_max_lag_behind(self):
    sink = self.open_sink(max_lag=2)
    editions = [self.publish(sink, step) for step in (10, 11, 12, 13)]
    self.assertEqual(sink.acceptable(), {0: editions[1]})
    older = [self.publish(sink, step, slot=1) for step in (0, 10)]
    self.assertEqual(sink.acceptable(), {0: editions[1], 1: older[0]})


class TroubleTest(SnapshotsCase):
  def served(self):
    """A follower that serves version 1, and version 2 in the folder."""
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    return sink, follower

  def assert_in_trouble(self, follower, sentence):
    self.assertFalse(follower.look())
    self.assertRegex(follower.trouble, sentence)
    self.serves(1)

  def newest(self):
    return self.folder / self.manifest().slots[0].folder

  def test_a_flipped_bit_is_told_and_the_old_weights_go_on(self):
    sink, follower = self.served()
    sums = dict(self.manifest().slots[0].checksums)
    name = sorted(sums)[0]
    self.rewrite(checksums=sums | {name: sums[name] ^ 1})
    self.assert_in_trouble(follower, f"version 2 is damaged: leaf {name}")
    self.publish(sink, 3)
    self.now += 1.0
    self.assertFalse(follower.look())  # too soon to try again
    self.now += 60.0
    self.assertTrue(follower.look())
    self.serves(3)
    self.assertEqual(follower.trouble, "")

  def test_altered_arrays_are_not_served(self):
    _, follower = self.served()
    name = sorted(self.manifest().slots[0].leaves)[0]
    changed = small.params(2)
    leaf = np.array(changed[name])
    leaf.flat[5] += 1e-6
    other = Publisher(self.policy, _Rewriting(self), layers_apart=False)
    other.publish(changed | {name: jax.numpy.asarray(leaf)}, 2)
    self.assert_in_trouble(follower, "is damaged")

  @parameterized.parameters("*", "d", "manifest.ocdbt")
  def test_missing_and_cut_off_files(self, which):
    _, follower = self.served()
    found = [p for p in self.newest().rglob(which) if p.is_file()]
    if which == "d":
      found = [p for p in self.newest().rglob("d/*") if p.is_file()]
    self.assertNotEmpty(found)
    for path in found:
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    self.assert_in_trouble(follower, "cannot be read|is damaged")

  def test_a_folder_that_is_gone(self):
    _, follower = self.served()
    self.newest().rename(self.folder / "elsewhere")
    self.assert_in_trouble(follower, "version 2 cannot be read")

  def test_what_is_replaced_while_it_is_read_is_no_trouble(self):
    sink, follower = self.open_sink(max_lag=0), self.follow()
    self.publish(sink, 1)
    restore = follower._restore

    def slow_restore(snapshot):
      for step in (2, 3, 4):
        self.publish(sink, step)
      return restore(snapshot)

    follower._restore = slow_restore
    self.assertFalse(follower.look())
    self.assertEqual(follower.trouble, "")
    follower._restore = restore
    self.assertTrue(follower.look())
    self.serves(4)

  @parameterized.parameters("", "{", "[]", '{"format": 9}', '{"format": 1}')
  def test_a_manifest_that_is_none(self, text):
    sink, follower = self.served()
    (self.folder / snapshot_manifest.FILE).write_text(text)
    self.assert_in_trouble(follower, "is no manifest of snapshots")
    self.publish(sink, 3)  # the learner replaces it
    self.now += 60
    self.assertTrue(follower.look())
    self.serves(3)

  def test_another_model_will_not_pass(self):
    self.publish(self.open_sink(), 1)
    config = self.policy.config
    for change, leaf in (
      (dict(mlp_width=64), "down.kernel"),
      (dict(num_layers=3), "layers"),
      (dict(tied_embedding=False), "head.kernel"),
    ):
      other = Policy(dataclasses.replace(config, **change))
      with self.assertRaisesRegex(ConfigError, f"another model: leaf .*{leaf}"):
        self.follow(other).look()

  def test_more_slots_than_the_server_has(self):
    self.publish(self.open_sink(), 1, slot=1)
    with self.assertRaisesRegex(ConfigError, "slot 1 and this server 1 slots"):
      self.follow().look()


class WritingTest(SnapshotsCase):
  def hold_writer(self, sink):
    """Keeps the writer in its first snapshot until the test says go on."""
    go_on, begun = threading.Event(), threading.Event()
    finish = sink._finish

    def held(job):
      begun.set()
      self.assertTrue(go_on.wait(60))
      finish(job)

    sink._finish = held
    self.addCleanup(go_on.set)
    return begun, go_on

  def test_behind_the_writer_the_newest_of_each_slot_waits(self):
    sink = self.open_sink(max_lag=10)
    begun, go_on = self.hold_writer(sink)
    self.publisher.publish(small.params(1), 1)
    self.assertTrue(begun.wait(60))
    for step in (2, 3, 4):
      self.publisher.publish(small.params(step), step)
    self.publisher.publish(small.params(5), 0, slot=1)
    report = sink.report()
    self.assertEqual(report["snapshots/skipped"], 2)
    self.assertEqual(report["snapshots/lag"], 3)
    go_on.set()
    sink.flush()
    report = sink.report()
    self.assertEqual(report["snapshots/written"], 3)
    self.assertEqual(report["snapshots/lag"], 0)
    follower = self.follow(num_slots=2)
    follower.look()
    self.serves(4)
    self.assertEqual(self.store.get(1).step, 0)

  def test_the_learner_waits_for_a_writer_that_is_too_far_behind(self):
    sink = self.open_sink(max_lag=1, deadline_s=60)
    begun, go_on = self.hold_writer(sink)
    self.publisher.publish(small.params(1), 1)
    self.assertTrue(begun.wait(60))
    self.publisher.publish(small.params(2), 2)
    late = threading.Thread(
      target=self.publisher.publish, args=(small.params(3), 3)
    )
    late.start()
    late.join(0.3)
    self.assertTrue(late.is_alive())
    go_on.set()
    late.join(60)
    self.assertFalse(late.is_alive())
    self.assertGreater(sink.report()["snapshots/stall_s"], 0.2)

  def test_a_writer_that_takes_too_long_is_named(self):
    sink = self.open_sink(max_lag=0, deadline_s=0.2)
    _, go_on = self.hold_writer(sink)
    self.publisher.publish(small.params(1), 1)
    with self.assertRaisesRegex(DeadlineExceeded, "0.2 s for the writer"):
      self.publisher.publish(small.params(2), 2)
    go_on.set()
    with contextlib.suppress(DeadlineExceeded):
      sink.flush()

  def test_a_folder_that_cannot_be_written_is_named(self):
    sink = self.open_sink()
    self.folder.rmdir()
    self.folder.write_text("a file is in the way")
    self.publisher.publish(small.params(1), 1)
    with self.assertRaisesRegex(CheckpointError, "could not be written to"):
      sink.flush()
    with self.assertRaisesRegex(CheckpointError, "could not be written to"):
      self.publisher.publish(small.params(2), 2)

  def test_params_may_be_donated_as_soon_as_they_are_published(self):
    sink = self.open_sink()
    begun, go_on = self.hold_writer(sink)
    params = jax.tree.map(jax.numpy.copy, small.params(1))
    self.publisher.publish(params, 1)
    jax.tree.map(lambda x: x.delete(), params)
    go_on.set()
    sink.flush()
    follower = self.follow()
    self.assertTrue(follower.look(), follower.trouble)
    self.serves(1)


class _Rewriting:
  """Writes arrays into slot 0's newest folder, and leaves the manifest."""

  def __init__(self, case):
    self._case = case

  def publish(self, slot, params, step):
    del slot, step
    tree = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
      writer.save(
        self._case.newest(), args=ocp.args.PyTreeSave(tree), force=True
      )


if __name__ == "__main__":
  absltest.main()
