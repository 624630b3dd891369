"""Weights for rollout servers in other processes, through a folder.

A snapshot is written by Orbax beside the learner's work, sharded, by all of its
processes together, in the form and precision in which it was published. Once it
is complete the manifest names it. When the writer is behind, the newest version
of a policy slot takes the place of those that wait; how far behind it may be is
bounded, and told in the metrics.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from agentrl_jax.data.snapshot_manifest import (
  Manifest,
  Snapshot,
  open_folder,
  read_manifest,
  write_manifest,
)
from agentrl_jax.errors import CheckpointError, DeadlineExceeded
from agentrl_jax.model.checksums import checksums, describe_leaf, leaf_names
from agentrl_jax.model.policy import Params


@dataclasses.dataclass(eq=False)
class _Job:
  """A publication on its way to the folder."""

  policy_slot: int
  step: int
  publication: int
  tree: dict[str, jax.Array]  # empty once it was copied off the devices
  checksums: dict[str, jax.Array]
  leaves: dict[str, str]
  has_begun: bool = False

  def snapshot(self) -> Snapshot:
    """As the manifest names it. Waits for the checksums."""
    return Snapshot(
      publication=self.publication,
      step=self.step,
      folder=f"edition_{self.publication}",
      leaves=self.leaves,
      checksums={name: int(value) for name, value in self.checksums.items()},
    )


class SnapshotSink:
  """A `train.publish.WeightSink` that writes what it is given.

  With several learner processes, all of them publish the same at the same
  time. Then nothing is skipped: whoever is early waits for the writer.
  """

  def __init__(self, folder: str, *, max_lag: int, deadline_s: float):
    self.folder = open_folder(folder)
    self._max_lag, self._deadline_s = max_lag, deadline_s
    self._is_shared = jax.process_count() > 1
    self._leads = jax.process_index() == 0
    if self._leads:
      self.folder.mkdir(parents=True, exist_ok=True)
    # What an earlier start published goes on being served until it is replaced.
    self._manifest = self._found()
    # What recent manifests named: servers may be reading it. A server that is
    # slower than this would end with weights too old to sample from.
    self._named = collections.deque([self._manifest.folders], max_lag + 2)
    self._edition = self._first_edition()
    self._checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    self._changed = threading.Condition()
    self._published: dict[int, _Job] = {}
    self._first_step = 0  # that policy slot 0 was published
    self._oldest: dict[
      int, int
    ] = {}  # publication to sample from, by policy slot
    self._recent: list[
      tuple[int, int]
    ] = []  # publication and step, of policy slot 0
    self._waiting: dict[int, _Job] = {}
    self._writing: _Job | None = None
    self._failure: BaseException | None = None
    self._is_closed = False
    self._num_written = self._num_skipped = 0
    self._write_s = self._stall_s = 0.0
    self._thread = threading.Thread(
      target=self._run, name="snapshots", daemon=True
    )
    self._thread.start()

  def publish(self, policy_slot: int, params: Params, step: int) -> None:
    """Has the params written; waits only if the writer is too far behind.

    They are the sink's from now on. Raises `CheckpointError` if an earlier
    snapshot could not be written.
    """
    begun = time.monotonic()
    job = self._job(policy_slot, params, step)
    if self._is_shared:
      self._wait(lambda: not (self._waiting or self._writing))
      self._begin(job)
    with self._changed:
      self._remember(job)
      self._num_skipped += policy_slot in self._waiting
      self._waiting[policy_slot] = job
      self._published[policy_slot] = job
      self._changed.notify_all()
    self._wait(lambda: self._lag() <= self._max_lag)
    self._stall_s += time.monotonic() - begun

  def publications(self) -> dict[int, int]:
    """What was published last, by policy slot."""
    with self._changed:
      return {
        policy_slot: job.publication
        for policy_slot, job in self._published.items()
      }

  def acceptable(self) -> dict[int, int]:
    """The oldest publication that may still be sampled from, by policy slot.

    Policy slot 0 may be `max_lag` updates behind. What an earlier start of the
    run published is from a past that is not this one's.
    """
    with self._changed:
      return dict(self._oldest)

  @property
  def step(self) -> int:
    """Of what policy slot 0 was published last; 0 before anything was."""
    with self._changed:
      return self._published[0].step if 0 in self._published else 0

  def flush(self) -> None:
    """Waits until everything published is in the folder, and named."""
    self._wait(lambda: not (self._waiting or self._writing))

  def report(self) -> dict[str, float]:
    """Counts since the start, and what is behind now."""
    with self._changed:
      return {
        "snapshots/written": self._num_written,
        "snapshots/skipped": self._num_skipped,
        "snapshots/lag": self._lag(),
        "snapshots/write_s": self._write_s,
        "snapshots/stall_s": self._stall_s,
      }

  def close(self) -> None:
    """Writes what waits, and ends the writer."""
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()
    self._thread.join(self._deadline_s)
    if self._thread.is_alive():
      raise self._too_slow()
    self._checkpointer.close()

  def _found(self) -> Manifest:
    try:
      return read_manifest(self.folder) or Manifest({})
    except CheckpointError:
      return Manifest({})  # it is about to be replaced

  def _first_edition(self) -> int:
    """Beyond every earlier one, also if the folder was emptied meanwhile."""
    publication = max(self._manifest.newest + 1, int(time.time() * 1000))
    if not self._is_shared:
      return publication
    halves = np.array(divmod(publication, 2**31), np.int32)
    high, low = multihost_utils.broadcast_one_to_all(halves)
    return int(high) * 2**31 + int(low)

  def _job(self, policy_slot: int, params: Params, step: int) -> _Job:
    tree = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    publication, self._edition = self._edition, self._edition + 1
    leaves = {name: describe_leaf(leaf) for name, leaf in tree.items()}
    return _Job(policy_slot, step, publication, tree, checksums(tree), leaves)

  def _remember(self, job: _Job) -> None:
    self._oldest.setdefault(job.policy_slot, job.publication)
    if job.policy_slot == 0:
      if not self._recent:
        self._first_step = job.step
      self._recent = [
        (publication, step)
        for publication, step in [*self._recent, (job.publication, job.step)]
        if abs(job.step - step) <= self._max_lag
      ]
      self._oldest[0] = self._recent[0][0]

  def _lag(self) -> int:
    """Updates between what policy slot 0 was published and what is named
    for it.
    """
    newest, named = self._published.get(0), self._manifest.policy_slots.get(0)
    if newest is None or (named and named.publication == newest.publication):
      return 0
    return abs(newest.step - (named.step if named else self._first_step))

  def _wait(self, holds: Callable[[], bool]) -> None:
    with self._changed:
      held = self._changed.wait_for(
        lambda: self._failure is not None or holds(), self._deadline_s
      )
    if self._failure is not None:
      raise CheckpointError(
        f"a snapshot for the rollout servers could not be written to "
        f"{self.folder}: {self._failure!r}. Is there room, and the right to "
        "write?"
      ) from self._failure
    if not held:
      raise self._too_slow()

  def _too_slow(self) -> DeadlineExceeded:
    return DeadlineExceeded(
      f"the learner waited {self._deadline_s:g} s for the writer of snapshots "
      f"to {self.folder}; look at how fast that place is. The one before took "
      f"{self._write_s:.1f} s"
    )

  def _run(self) -> None:
    try:
      while (job := self._next()) is not None:
        begun = time.monotonic()
        if not job.has_begun:
          self._begin(job)
        self._finish(job)
        with self._changed:
          self._writing = None
          self._num_written += 1
          self._write_s = time.monotonic() - begun
          self._changed.notify_all()
    except BaseException as failure:  # noqa: BLE001 - raised in the learner
      with self._changed:
        self._failure = failure
        self._changed.notify_all()

  def _next(self) -> _Job | None:
    with self._changed:
      self._changed.wait_for(lambda: self._waiting or self._is_closed)
      if not self._waiting:
        return None
      job = min(self._waiting.values(), key=lambda job: job.publication)
      self._writing = self._waiting.pop(job.policy_slot)
      return job

  def _begin(self, job: _Job) -> None:
    """Returns when the arrays have been copied off the devices."""
    if (
      self._leads
    ):  # else threads of Orbax's are the first to find out, and stay
      self.folder.mkdir(parents=True, exist_ok=True)
    self._checkpointer.save(
      self.folder / job.snapshot().folder, args=ocp.args.PyTreeSave(job.tree)
    )
    job.tree, job.has_begun = {}, True

  def _finish(self, job: _Job) -> None:
    """Names the snapshot once it is complete, and removes what nobody needs."""
    self._checkpointer.wait_until_finished()
    manifest = Manifest(
      {**self._manifest.policy_slots, job.policy_slot: job.snapshot()}
    )
    if self._leads:
      write_manifest(self.folder, manifest)
      self._named.append(manifest.folders)
      self._prune(set().union(*self._named))
    with self._changed:
      self._manifest = manifest

  def _prune(self, kept: set[str]) -> None:
    for found in self.folder.iterdir():
      if found.name.startswith("edition_") and found.name not in kept:
        found.rmtree()
