"""Snapshots: weights for rollout servers in other processes, in a folder.

- Orbax writes a snapshot in the background, sharded, from all processes of the
  learner together, in the form and precision in which it was published.
- The manifest names a snapshot only after it is complete.
- When the writer is behind, the newest version of a policy slot replaces those
  that wait. The lag is bounded, and is a metric.
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
from agentrl_jax.files import writing
from agentrl_jax.model.checksums import checksums, named_leaves
from agentrl_jax.model.policy import Params
from agentrl_jax.train.weights.checkpoint import BEGINNING_A_SAVE, describe_leaf


@dataclasses.dataclass(eq=False)
class _Job:
  """A publication to be written."""

  policy_slot: int
  version: int
  publication: int
  tree: dict[str, jax.Array]  # empty after the copy to the host
  checksums: dict[str, jax.Array]
  leaves: dict[str, str]
  has_begun: bool = False

  def snapshot(self) -> Snapshot:
    """Returns its entry of the manifest. Waits for the checksums."""
    return Snapshot(
      publication=self.publication,
      version=self.version,
      folder=f"edition_{self.publication}",
      leaves=self.leaves,
      checksums={name: int(value) for name, value in self.checksums.items()},
    )


class SnapshotSink:
  """A `WeightSink` that writes weights to a folder.

  With several learner processes, all of them publish the same at the same
  time. Then nothing is skipped: every process waits for its writer first.
  """

  def __init__(
    self,
    folder: str,
    *,
    max_lag: int,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.folder = open_folder(folder)
    self._clock = clock
    self._max_lag, self._deadline_s = max_lag, deadline_s
    self._is_shared = jax.process_count() > 1
    self._leads = jax.process_index() == 0
    if self._leads:
      self.folder.mkdir(parents=True, exist_ok=True)
    # Snapshots of an earlier start are served until they are replaced.
    self._manifest = self._read_manifest()
    # Folders of recent manifests, which servers may be reading. A slower server
    # would end with weights that are too old to sample from.
    self._named = collections.deque([self._manifest.folders], max_lag + 2)
    self._publication = self._first_publication()
    self._checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    self._changed = threading.Condition()
    self._published: dict[int, _Job] = {}
    self._first_version = 0  # of policy slot 0
    # By policy slot, the oldest publication to sample from.
    self._oldest: dict[int, int] = {}
    # Publication and version, of policy slot 0.
    self._recent: list[tuple[int, int]] = []
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

  def publish(
    self, params: Params, version: int, *, policy_slot: int = 0
  ) -> None:
    """Queues the params; waits only if the writer is too far behind.

    The sink owns the params from now on. Raises `CheckpointError` if an earlier
    snapshot could not be written.
    """
    begun = self._clock()
    job = self._job(policy_slot, params, version)
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
    self._stall_s += self._clock() - begun

  def publications(self) -> dict[int, int]:
    """Returns the last publication of each policy slot."""
    with self._changed:
      return {
        policy_slot: job.publication
        for policy_slot, job in self._published.items()
      }

  def acceptable(self) -> dict[int, int]:
    """Returns the oldest publication to sample from, by policy slot.

    Policy slot 0 may be `max_lag` updates behind. Publications of an earlier
    start of the run are not accepted: their versions may differ from this
    start's.
    """
    with self._changed:
      return dict(self._oldest)

  @property
  def version(self) -> int:
    """The last published version of policy slot 0; 0 before the first."""
    with self._changed:
      return self._published[0].version if 0 in self._published else 0

  def flush(self) -> None:
    """Waits until all publications are in the folder and in the manifest."""
    self._wait(lambda: not (self._waiting or self._writing))

  def report(self) -> dict[str, float]:
    """Returns counts since the start, and the current lag."""
    with self._changed:
      return {
        "snapshots/written": self._num_written,
        "snapshots/skipped": self._num_skipped,
        "snapshots/lag": self._lag(),
        "snapshots/write_s": self._write_s,
        "snapshots/stall_s": self._stall_s,
      }

  def close(self) -> None:
    """Writes the waiting snapshots and stops the writer."""
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()
    self._thread.join(self._deadline_s)
    if self._thread.is_alive():
      raise self._too_slow()
    self._checkpointer.close()

  def _read_manifest(self) -> Manifest:
    try:
      return read_manifest(self.folder) or Manifest({})
    except CheckpointError:
      return Manifest({})  # this sink will replace it

  def _first_publication(self) -> int:
    """Returns a number above all earlier ones, even if the folder is empty."""
    publication = max(self._manifest.newest + 1, int(time.time() * 1000))
    if not self._is_shared:
      return publication
    halves = np.array(divmod(publication, 2**31), np.int32)
    high, low = multihost_utils.broadcast_one_to_all(halves)
    return int(high) * 2**31 + int(low)

  def _job(self, policy_slot: int, params: Params, version: int) -> _Job:
    tree = named_leaves(params)
    publication, self._publication = self._publication, self._publication + 1
    leaves = {name: describe_leaf(leaf) for name, leaf in tree.items()}
    return _Job(
      policy_slot, version, publication, tree, checksums(tree), leaves
    )

  def _remember(self, job: _Job) -> None:
    self._oldest.setdefault(job.policy_slot, job.publication)
    if job.policy_slot == 0:
      if not self._recent:
        self._first_version = job.version
      self._recent = [
        recent
        for recent in [*self._recent, (job.publication, job.version)]
        if abs(job.version - recent[1]) <= self._max_lag
      ]
      self._oldest[0] = self._recent[0][0]

  def _lag(self) -> int:
    """Returns updates between policy slot 0's last publication and manifest."""
    newest, named = self._published.get(0), self._manifest.policy_slots.get(0)
    if newest is None or (named and named.publication == newest.publication):
      return 0
    return abs(
      newest.version - (named.version if named else self._first_version)
    )

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
      f"to {self.folder}; look at how fast that folder is. The snapshot before "
      f"took {self._write_s:.1f} s"
    )

  def _run(self) -> None:
    try:
      while (job := self._next()) is not None:
        begun = self._clock()
        if not job.has_begun:
          self._begin(job)
        self._finish(job)
        with self._changed:
          self._writing = None
          self._num_written += 1
          self._write_s = self._clock() - begun
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
    # Otherwise Orbax's threads find a missing folder first, and never end.
    if self._leads:
      self.folder.mkdir(parents=True, exist_ok=True)
    snapshot = job.snapshot()
    with BEGINNING_A_SAVE, writing(self.folder):
      self._checkpointer.save(
        self.folder / snapshot.folder, args=ocp.args.PyTreeSave(job.tree)
      )
    job.tree, job.has_begun = {}, True

  def _finish(self, job: _Job) -> None:
    """Waits for the files, updates the manifest, removes old snapshots."""
    with writing(self.folder):
      self._checkpointer.wait_until_finished()
    manifest = Manifest(
      {**self._manifest.policy_slots, job.policy_slot: job.snapshot()}
    )
    if self._leads:
      with writing(self.folder):
        write_manifest(self.folder, manifest)
      self._named.append(manifest.folders)
      self._prune(set().union(*self._named))
    with self._changed:
      self._manifest = manifest

  def _prune(self, kept: set[str]) -> None:
    for path in self.folder.iterdir():
      if path.name.startswith("edition_") and path.name not in kept:
        path.rmtree()
