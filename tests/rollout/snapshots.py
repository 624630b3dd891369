"""A learner's sink, a server's follower, and the folder between them."""

import os
import pathlib
import tempfile
import time

import jax
import msgspec
import numpy as np
from absl.testing import parameterized
from etils import epath

from agentrl_jax.data import snapshot_manifest
from agentrl_jax.rollout.engine.engine import ServedWeights
from agentrl_jax.rollout.server.snapshots import SnapshotFollower
from agentrl_jax.train.weights.publish import Publisher
from agentrl_jax.train.weights.snapshots import SnapshotSink
from tests.rollout import small


def assert_same(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


class SnapshotsCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name) / "snapshots"
    # Relative, as the default workdir is.
    self.path = os.path.relpath(self.folder)
    self.policy = small.policy()

  def open_sink(
    self, *, max_lag=2, deadline_s=60.0, clock=time.monotonic, **changes
  ):
    sink = SnapshotSink(
      self.path, max_lag=max_lag, deadline_s=deadline_s, clock=clock
    )
    self.addCleanup(sink.close)
    self.publisher = Publisher(
      self.policy, sink, **(dict(layers_apart=False) | changes)
    )
    return sink

  def publish(self, sink, step, *, policy_slot=0):
    self.publisher.publish(small.params(step), step, policy_slot=policy_slot)
    sink.flush()
    return sink.publications()[policy_slot]

  def follow(self, policy=None, num_policy_slots=1):
    self.now = 0.0
    self.store = ServedWeights(num_policy_slots)
    return SnapshotFollower(
      self.path, policy or self.policy, self.store, clock=lambda: self.now
    )

  def serves(self, version, *, policy_slot=0):
    served = self.store.get(policy_slot)
    self.assertEqual(served.version, version)
    assert_same(served.params, self.policy.to_decode(small.params(version)))

  def manifest(self):
    return snapshot_manifest.read_manifest(epath.Path(self.folder))

  def rewrite(self, **changes):
    """Replaces policy slot 0's entry in the manifest by another."""
    policy_slots = dict(self.manifest().policy_slots)
    policy_slots[0] = msgspec.structs.replace(policy_slots[0], **changes)
    snapshot_manifest.write_manifest(
      epath.Path(self.folder), snapshot_manifest.Manifest(policy_slots)
    )
