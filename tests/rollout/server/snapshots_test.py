"""A server serves the newest intact snapshot, or its previous weights."""

import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest

from agentrl_jax.data import snapshot_manifest
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.remote.wire import ServedPolicySlot
from tests import eight_devices
from tests.rollout import small, small_grammars
from tests.rollout.snapshots import SnapshotsCase, assert_same
from tests.settings import COMPUTE, compute_config


class FollowingTest(SnapshotsCase):
  @pytest.mark.slow
  def test_each_policy_slot_serves_what_it_was_published(self):
    sink, follower = self.open_sink(), self.follow(num_policy_slots=2)
    self.assertFalse(follower.look())
    self.assertFalse(follower.is_serving)
    first = self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.serves(1)
    self.assertEqual(follower.policy_slots, (ServedPolicySlot(1, first), None))
    other = self.publish(sink, 2, policy_slot=1)
    second = self.publish(sink, 3)
    self.assertTrue(follower.look())
    self.serves(3)
    self.serves(2, policy_slot=1)
    self.assertEqual(
      follower.policy_slots,
      (ServedPolicySlot(3, second), ServedPolicySlot(2, other)),
    )
    self.assertFalse(follower.look())  # nothing is read twice
    self.assertLess(first, other)
    self.assertLess(other, second)

  @pytest.mark.slow
  def test_the_same_step_published_again_is_served_again(self):
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    follower.look()
    publication = self.store.get(0).publication
    self.publisher.publish(small.params(4), 1)
    sink.flush()
    self.assertTrue(follower.look())
    self.assertNotEqual(self.store.get(0).publication, publication)
    assert_same(
      self.store.get(0).params, self.policy.to_decode(small.params(4))
    )

  @pytest.mark.slow
  def test_snapshots_are_served_in_another_precision(self):
    sink = self.open_sink(dtype="bfloat16")
    self.publish(sink, 1)
    leaves = self.manifest().policy_slots[0].leaves
    self.assertEqual(
      {x.partition("[")[0] for x in leaves.values()}, {"bfloat16"}
    )
    follower = self.follow()
    self.assertTrue(follower.look(), follower.trouble)
    rounded = jax.tree.map(
      lambda x: x.astype("bfloat16").astype("float32"),
      self.policy.to_decode(small.params(1)),
    )
    assert_same(self.store.get(0).params, rounded)
    halved = Policy(self.policy.config, compute_config(dtype="bfloat16"))
    follower = self.follow(halved)
    self.assertTrue(follower.look(), follower.trouble)
    self.assertEqual(
      {x.dtype.name for x in jax.tree.leaves(self.store.get(0).params)},
      {"bfloat16"},
    )


@pytest.mark.full
class LayoutTest(SnapshotsCase):
  def test_one_and_two_devices_serve_a_snapshot_of_eight(self):
    actual = eight_devices.run(
      "tests.rollout.server.mesh_program", str(self.folder)
    )
    self.assertTrue(actual["same_sums"])
    self.assertTrue(actual["same_params"])
    self.assertEqual(actual["devices"], 2)
    (one, by_a_grammar), two = actual["sampled"]
    self.assertLen(one, 30)
    small_grammars.grammars().masks(
      small_grammars.GRAMMARS["json"], by_a_grammar
    )
    self.assertEqual([one, by_a_grammar], two)


class FollowerCase(SnapshotsCase):
  def served(self):
    """Makes a follower that serves version 1, with version 2 in the folder."""
    sink, follower = self.open_sink(), self.follow()
    self.publish(sink, 1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    return sink, follower

  def assert_in_trouble(self, follower, sentence):
    self.assertFalse(follower.look())
    self.assertRegex(follower.trouble, sentence)
    self.serves(1)

  def assert_recovers(self, follower, step):
    """Serves a version once it is time to look again."""
    self.now += 60
    self.assertTrue(follower.look(), follower.trouble)
    self.serves(step)


# Orbax gives up at the first leaf that cannot be read and closes its loop; then
# TensorStore's threads have nobody to tell of the others.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TroubleTest(FollowerCase):
  def newest(self):
    return self.folder / self.manifest().policy_slots[0].folder

  def test_missing_and_cut_off_files(self):
    _, follower = self.served()
    for pattern in ("manifest.ocdbt", "d/*", "*"):
      cut_off = [p for p in self.newest().rglob(pattern) if p.is_file()]
      self.assertNotEmpty(cut_off)
      contents = {path: path.read_bytes() for path in cut_off}
      for path, content in contents.items():
        path.write_bytes(content[: len(content) // 2])
      self.assert_in_trouble(follower, "cannot be read|is damaged")
      for path, content in contents.items():
        path.write_bytes(content)
      self.now += 60

  def test_a_folder_that_is_gone(self):
    _, follower = self.served()
    self.newest().rename(self.folder / "elsewhere")
    self.assert_in_trouble(follower, "version 2 cannot be read")

  def test_a_snapshot_replaced_while_read_is_no_error(self):
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

  def test_text_that_is_no_manifest(self):
    sink, follower = self.served()
    for text in (b"", b"{", b"[]", b'{"format": 9}', b'{"format\xff": 1}'):
      (self.folder / snapshot_manifest.FILE).write_bytes(text)
      self.assert_in_trouble(follower, "is no manifest of snapshots")
      self.now += 60
    self.publish(sink, 3)  # the learner replaces it
    self.assert_recovers(follower, 3)

  def test_snapshots_of_another_model_are_refused(self):
    self.publish(self.open_sink(), 1)
    config = self.policy.config
    for change, leaf in (
      (dict(mlp_width=64), "down.kernel"),
      (dict(num_layers=3), "layers"),
      (dict(tied_embedding=False), "head.kernel"),
    ):
      other = Policy(dataclasses.replace(config, **change), COMPUTE)
      with self.assertRaisesRegex(ConfigError, f"another model: leaf .*{leaf}"):
        self.follow(other).look()

  def test_a_leaf_that_is_wrong_is_named_and_the_old_weights_go_on(self):
    sink, follower = self.served()
    params = dict(small.params(3))
    name = sorted(params)[0]
    leaf = np.array(params.pop(name))
    nan = leaf.copy()
    nan.flat[0] = np.nan
    misshaped = r"leaf .* is \[.*\] there and \[.*\] in this server"
    for leaves, sentence in (
      ({}, "leaf .*absent there"),
      ({name: leaf, "spare": leaf}, "leaf spare .*absent in this server's"),
      ({name: leaf[..., :-1]}, misshaped),
      ({name: nan}, "leaf .* not finite.*learner's loss"),
    ):
      sink.publish(params | jax.tree.map(jax.numpy.asarray, leaves), 3)
      sink.flush()
      self.assert_in_trouble(follower, sentence)
    self.publish(sink, 4)
    self.assert_recovers(follower, 4)
    self.assertEqual(follower.trouble, "")

  def test_a_policy_slot_in_trouble_keeps_no_other_from_its_weights(self):
    sink, follower = self.open_sink(), self.follow(num_policy_slots=2)
    self.publish(sink, 1)
    self.publish(sink, 1, policy_slot=1)
    self.assertTrue(follower.look())
    self.publish(sink, 2)
    self.publish(sink, 3, policy_slot=1)
    self.rewrite(
      checksums=dict.fromkeys(self.manifest().policy_slots[0].leaves, 0)
    )
    self.assertTrue(follower.look())
    self.assertRegex(follower.trouble, "version 2 is damaged")
    self.serves(1)
    self.serves(3, policy_slot=1)

  def test_more_policy_slots_than_the_server_has(self):
    self.publish(self.open_sink(), 1, policy_slot=1)
    with self.assertRaisesRegex(
      ConfigError, "policy slot 1 and this server 1 policy slots"
    ):
      self.follow().look()


class DamageTest(FollowerCase):
  def test_errors_of_any_class_are_reported(self):
    """Raises what Orbax does, which depends on the missing file and threads."""
    _, follower = self.served()
    reader = follower._checkpointer
    gone = Exception("Encountered error while reading array index: (0, 1)")
    with mock.patch.object(reader, "restore", side_effect=gone):
      self.assert_in_trouble(follower, "2 cannot be read: Encountered")
    self.now += 60
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
    with mock.patch.object(reader, "restore", side_effect=full):
      self.assert_in_trouble(follower, "version 2 cannot be put on the devices")
    self.assert_recovers(follower, 2)

  def test_a_manifest_that_cannot_be_read(self):
    _, follower = self.served()
    path = self.folder / snapshot_manifest.FILE
    moved = path.rename(self.folder / "elsewhere")
    path.mkdir()  # a bucket or a network folder may fail in ways of their own
    self.assert_in_trouble(follower, "manifest.json cannot be read")
    path.rmdir()
    moved.rename(path)
    self.assert_recovers(follower, 2)

  @pytest.mark.slow
  def test_a_first_manifest_that_is_damaged_is_waited_out(self):
    for changes in (
      dict(version="abc"),
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
    sink, follower = self.served()
    sums = dict(self.manifest().policy_slots[0].checksums)
    name = sorted(sums)[0]
    self.rewrite(checksums=sums | {name: sums[name] ^ 1})
    with mock.patch.object(
      follower, "_restore", wraps=follower._restore
    ) as restore:
      for _ in range(5):
        self.assertFalse(follower.look())
    restore.assert_called_once()  # the same one is put off
    self.assertRegex(follower.trouble, f"version 2 is damaged: leaf {name}")
    self.serves(1)
    self.publish(sink, 3)
    self.assertTrue(follower.look())  # no time has passed
    self.assertEqual(follower.trouble, "")
    self.serves(3)
