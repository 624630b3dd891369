"""Tests of `train.weights.checkpoint`: restoring, damage and retention."""

import dataclasses
import importlib.util
import json
import pathlib
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights.checkpoint import Checkpoints
from agentrl_jax.train.weights.publish import Publisher
from tests import programs
from tests.settings import COMPUTE
from tests.train import small


class CheckpointsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.directory = pathlib.Path(folder) / "checkpoints"
    _, self.learner = small.make_learner()
    self.states = []
    state = self.learner.init(small.params_of())
    for version in range(3):
      # Each an update apart; only the version and one leaf need differ.
      self.states.append(
        dataclasses.replace(
          state,
          params=state.params
          | {"embedding": state.params["embedding"] + version},
          version=state.version + version,
        )
      )

  def _open(self, keep=2, **options):
    checkpoints = Checkpoints(self.directory, keep=keep, **options)
    self.addCleanup(checkpoints.close)
    return checkpoints

  def _saved(self, keep=3):
    checkpoints = self._open(keep)
    for state in self.states:
      checkpoints.save(state, {"at": int(state.version)})
    checkpoints.wait()
    return checkpoints

  def _save_versions(self, checkpoints, versions):
    for version in versions:
      checkpoints.save(
        dataclasses.replace(
          self.states[0], version=jnp.asarray(version, jnp.int32)
        ),
        {},
      )
    checkpoints.wait()

  def _assert_same(self, a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)

  def test_restores_bit_for_bit(self):
    self._saved()
    state, position = self._open().restore(self.learner.abstract_state())
    self._assert_same(state, self.states[-1])
    self.assertEqual(position, {"at": 2})
    state, position = self._open().restore(self.learner.abstract_state(), 1)
    self._assert_same(state, self.states[1])

  def test_params_alone(self):
    checkpoints = self._saved()
    params = checkpoints.restore_params(self.learner.abstract_state(), 1)
    self._assert_same(params, self.states[1].params)

  def test_a_step_of_another_run_is_refused_by_what_differs(self):
    own = {"seed": 0, "loss.clip_high": 0.2, "since": [1]}
    made = self._open(owner=own)
    made.save(self.states[1], {})
    made.wait()
    abstract = self.learner.abstract_state()
    for owner in (own, None, {}, {"seed": 0, "a key of later": 1}):
      self.assertEqual(self._open(owner=owner).restore(abstract)[1], {})
    foreign = self._open(owner=own | {"seed": 77, "loss.clip_high": 0.9})
    for restore in (foreign.restore, foreign.restore_params):
      with self.assertRaisesRegex(
        ConfigError,
        "checkpoints/1 is of another run: loss.clip_high is 0.2 there and 0.9 "
        "here; seed is 0 there and 77 here. Set them back",
      ):
        restore(abstract)

  def test_a_step_that_names_no_run_may_be_anybodys(self):
    made = self._open()
    made.save(self.states[1], {})
    made.wait()
    checkpoints = self._open(owner={"seed": 77})
    checkpoints.restore(self.learner.abstract_state())

  def test_keeps_the_newest(self):
    self.assertEqual(self._saved(keep=2).steps(), [1, 2])

  @pytest.mark.slow
  def test_keeps_multiples_for_good(self):
    checkpoints = self._open(keep=2, keep_every=5)
    self._save_versions(checkpoints, range(12))
    self.assertEqual(checkpoints.steps(), [0, 5, 10, 11])

  @pytest.mark.slow
  def test_keeps_what_a_kept_one_needs_also_after_a_restart(self):
    checkpoints = self._open(keep=2)
    self._save_versions(checkpoints, [0, 1])
    checkpoints.pin([0])
    self._save_versions(checkpoints, [2, 3])
    checkpoints.pin([2])
    self._save_versions(checkpoints, [4])
    self.assertEqual(checkpoints.steps(), [0, 2, 3, 4])
    checkpoints.close()
    again = self._open(keep=2)
    again.pin([3])
    self._save_versions(again, [5])
    self.assertEqual(again.steps(), [2, 3, 4, 5])

  @pytest.mark.slow
  def test_what_was_saved_may_be_overwritten_at_once(self):
    batches = small.make_batches(micro_batch=8)
    state = self.states[0]
    expected = jax.tree.map(np.array, state)
    checkpoints = self._open()
    checkpoints.save(state, {})
    self.learner.update(state, batches)  # gives the state's memory away
    checkpoints.wait()
    restored, _ = checkpoints.restore(self.learner.abstract_state())
    self._assert_same(restored, expected)

  def test_of_another_dtype(self):
    checkpoints = self._saved()
    abstract = self.learner.abstract_state()
    half = jax.tree.map(
      lambda s: jax.ShapeDtypeStruct(
        s.shape, jnp.bfloat16, sharding=s.sharding
      ),
      abstract.params,
    )
    with self.assertRaisesRegex(
      CheckpointError,
      r"leaf params.\S+ is float32\[.*\] there and bfloat16\[.*\] here",
    ):
      checkpoints.restore(dataclasses.replace(abstract, params=half))

  @pytest.mark.slow
  def test_a_bit_that_changed_is_found(self):
    checkpoints = self._saved()
    about = self.directory / "2" / "about" / "metadata"
    changed = json.loads(about.read_text())
    changed["checksums"]["params.embedding"] ^= 1
    about.write_text(json.dumps(changed))
    with self.assertRaisesRegex(
      CheckpointError, "is damaged: leaf params.embedding has checksum"
    ):
      checkpoints.restore(self.learner.abstract_state(), 2)
    with self.assertRaisesRegex(CheckpointError, "resume_step=1"):
      checkpoints.restore_params(self.learner.abstract_state(), 2)

  def test_a_position_cut_off_is_refused(self):
    checkpoints = self._saved()
    about = self.directory / "2" / "about" / "metadata"
    about.write_text(about.read_text()[:-20])
    with self.assertRaisesRegex(CheckpointError, "cannot be read"):
      checkpoints.restore(self.learner.abstract_state(), 2)

  def test_forgets_what_came_later(self):
    checkpoints = self._saved()
    checkpoints.forget_after(0)
    self.assertEqual(checkpoints.steps(), [0])
    checkpoints.save(self.states[1], {})
    checkpoints.wait()
    self.assertEqual(checkpoints.steps(), [0, 1])

  def test_another_model_is_named_by_leaf(self):
    checkpoints = self._saved()
    other = Policy(dataclasses.replace(small.MODEL, mlp_width=32), COMPUTE)
    with self.assertRaisesRegex(
      CheckpointError, r"leaf params.layers.down.kernel is float32\[2, 24, 16\]"
    ) as caught:
      abstract = dataclasses.replace(
        self.learner.abstract_state(), params=other.abstract_params()
      )
      checkpoints.restore(abstract)
    self.assertIn("resume_step=1", str(caught.exception))

  @pytest.mark.slow
  def test_a_file_cut_off_is_refused_and_the_one_before_offered(self):
    self._saved()
    data = [
      path
      for path in (self.directory / "2" / "state").rglob("*")
      if path.is_file() and path.stat().st_size > 5000
    ]
    self.assertNotEmpty(data)
    for path in data:
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with self.assertRaisesRegex(CheckpointError, "resume_step=1"):
      self._open().restore(self.learner.abstract_state())
    state, _ = self._open().restore(self.learner.abstract_state(), 1)
    self._assert_same(state, self.states[1])

  def test_errors_of_no_kind_offer_the_one_before_too(self):
    """Orbax raises other errors, by the missing file and its threads."""
    checkpoints = self._saved()
    gone = Exception("Encountered error while reading array index: (0, 1)")
    with (
      mock.patch.object(checkpoints._manager, "restore", side_effect=gone),
      self.assertRaisesRegex(CheckpointError, "Encountered.*resume_step=1"),
    ):
      checkpoints.restore(self.learner.abstract_state())

  @pytest.mark.slow
  def test_nothing_there(self):
    with self.assertRaisesRegex(CheckpointError, "holds no checkpoint"):
      self._open().restore(self.learner.abstract_state())
    with self.assertRaisesRegex(CheckpointError, r"no step 9; there are \[0"):
      self._saved().restore(self.learner.abstract_state(), 9)


class PublisherTest(absltest.TestCase):
  def test_published_params_outlive_the_next_update(self):
    published = {}

    class Sink:
      def publish(self, params, version, *, policy_slot=0):
        published[policy_slot] = (params, version)

    policy, learner = small.make_learner()
    params = small.params_of()
    state = learner.init(params)
    Publisher(policy, Sink()).publish(state.params, 0, policy_slot=1)
    for leaf in jax.tree.leaves(state):
      leaf.delete()  # as donation does
    copied, version = published[1]
    wanted = jax.jit(policy.to_decode)(params)
    jax.tree.map(np.testing.assert_array_equal, copied, wanted)
    self.assertEqual(version, 0)


NEEDED = ("gcp_storage_emulator", "gcsfs")


@pytest.mark.full
class BucketTest(absltest.TestCase):
  """Checkpoints in a bucket are complete or absent."""

  def test_a_step_that_was_not_committed_is_not_there(self):
    missing = [n for n in NEEDED if importlib.util.find_spec(n) is None]
    if missing:
      self.skipTest(f"{' and '.join(missing)} are not installed")
    done = programs.run("tests.train.weights.bucket_program", deadline_s=280)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    self.assertIn("commit_success.txt", found["marks"])
    self.assertEqual(found["steps"], [0])
    self.assertEqual(found["position"], {"at": 0})
    self.assertTrue(found["same"])
