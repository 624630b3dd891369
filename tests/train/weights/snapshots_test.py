"""Tests of `train.weights.snapshots`: writing in the background, removal."""

import dataclasses
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from agentrl_jax.errors import CheckpointError, DeadlineExceeded
from agentrl_jax.train.weights.checkpoint import Checkpoints
from tests.clocks import StoppedClock, wait_until
from tests.rollout import small
from tests.rollout.snapshots import SnapshotsCase
from tests.train import small as small_learner


class KeepingTest(SnapshotsCase):
  def test_only_what_policy_slots_refer_to_is_kept_and_what_they_did_before(
    self,
  ):
    sink = self.open_sink(max_lag=0)
    (self.folder / "edition_5.orbax-checkpoint-tmp").mkdir()
    self.publish(sink, 1, policy_slot=1)
    for step in range(2, 6):
      self.publish(sink, step)
    kept = {s.folder for s in self.manifest().policy_slots.values()}
    found = {p.name for p in self.folder.iterdir() if p.is_dir()}
    self.assertLen(kept, 2)
    self.assertContainsSubset(kept, found)
    self.assertLen(found, 3)

  @pytest.mark.slow
  def test_a_new_start_goes_on_counting_and_forgets_what_was_published(self):
    publication = self.publish(self.open_sink(), 40)
    sink = self.open_sink()
    self.assertEmpty(sink.acceptable())
    later = self.publish(sink, 38)  # resumed from an older checkpoint
    self.assertGreater(later, publication)
    self.assertEqual(sink.acceptable(), {0: later})
    follower = self.follow()
    follower.look()
    self.serves(38)

  def test_what_may_be_sampled_from_is_at_most_max_lag_behind(self):
    sink = self.open_sink(max_lag=2)
    publications = [self.publish(sink, step) for step in (10, 11, 12, 13)]
    self.assertEqual(sink.acceptable(), {0: publications[1]})
    older = [self.publish(sink, step, policy_slot=1) for step in (0, 10)]
    self.assertEqual(sink.acceptable(), {0: publications[1], 1: older[0]})


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

  def test_behind_the_writer_the_newest_of_each_policy_slot_waits(self):
    sink = self.open_sink(max_lag=10)
    begun, go_on = self.hold_writer(sink)
    self.publisher.publish(small.params(1), 1)
    self.assertTrue(begun.wait(60))
    for step in (2, 3, 4):
      self.publisher.publish(small.params(step), step)
    self.publisher.publish(small.params(5), 0, policy_slot=1)
    report = sink.report()
    self.assertEqual(report["snapshots/skipped"], 2)
    self.assertEqual(report["snapshots/lag"], 3)
    go_on.set()
    sink.flush()
    report = sink.report()
    self.assertEqual(report["snapshots/written"], 3)
    self.assertEqual(report["snapshots/lag"], 0)
    follower = self.follow(num_policy_slots=2)
    follower.look()
    self.serves(4)
    self.assertEqual(self.store.get(1).version, 0)

  def test_no_checkpoint_begins_while_a_snapshot_begins(self):
    """Orbax mixes up saves that two threads begin at once, and hangs."""
    _, learner = small_learner.make_learner()
    state = learner.init(small_learner.params_of())
    checkpoints = Checkpoints(self.folder.parent / "rl", keep=2)
    checkpoints.save(state, {})  # compiles the checksums
    checkpoints.wait()
    sink = self.open_sink()
    first, second, most = threading.Event(), threading.Event(), []
    save = ocp.PyTreeCheckpointHandler.async_save

    async def slow_save(handler, *args, **options):
      (second if first.is_set() else first).set()
      most.append(second.wait(0.5))  # True in the first: they overlap
      return await save(handler, *args, **options)

    self.enter_context(
      mock.patch.object(ocp.PyTreeCheckpointHandler, "async_save", slow_save)
    )
    self.publisher.publish(small.params(1), 1, policy_slot=0)
    self.assertTrue(first.wait(60))
    checkpoints.save(dataclasses.replace(state, version=jnp.int32(1)), {})
    checkpoints.wait()
    sink.flush()
    self.assertEqual(most, [False, True])

  def test_the_learner_waits_for_a_writer_that_is_too_far_behind(self):
    clock = StoppedClock()
    sink = self.open_sink(max_lag=1, clock=clock)
    begun, go_on = self.hold_writer(sink)
    self.publisher.publish(small.params(1), 1)
    self.assertTrue(begun.wait(60))
    self.publisher.publish(small.params(2), 2)
    late = threading.Thread(
      target=self.publisher.publish, args=(small.params(3), 3)
    )
    late.start()
    wait_until(lambda: sink._changed._waiters)
    self.assertTrue(late.is_alive())
    clock.now_s += 5.0
    go_on.set()
    late.join(60)
    self.assertFalse(late.is_alive())
    self.assertEqual(sink.report()["snapshots/stall_s"], 5.0)

  def test_a_writer_that_takes_too_long_is_named(self):
    sink = self.open_sink(max_lag=0, deadline_s=0.2)
    _, go_on = self.hold_writer(sink)
    self.publisher.publish(small.params(1), 1)
    with self.assertRaisesRegex(DeadlineExceeded, "0.2 s for the writer"):
      self.publisher.publish(small.params(2), 2)
    sink._deadline_s = 60.0  # of its end, on a slow machine
    go_on.set()
    # Its folder may not be taken away while it writes.
    wait_until(lambda: sink.report()["snapshots/written"])

  def test_a_folder_that_cannot_be_written_is_named(self):
    sink = self.open_sink()
    self.folder.rmdir()
    self.folder.write_text("a file is in the way")
    before = set(threading.enumerate())
    with self.assertRaisesRegex(CheckpointError, "could not be written to"):
      self.publisher.publish(small.params(1), 1)  # or already here
      sink.flush()
    with self.assertRaisesRegex(CheckpointError, "could not be written to"):
      self.publisher.publish(small.params(2), 2)
    self.assertEmpty(set(threading.enumerate()) - before)  # none waits on

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
