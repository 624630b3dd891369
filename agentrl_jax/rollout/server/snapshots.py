"""Serves the snapshots that the learner publishes in a folder.

Every call of `look` updates the policy slots of a `ServedWeights` to the
folder's manifest. A snapshot is restored into the server's own layout and
precision, checked leaf by leaf, and published between two decode steps. A
damaged snapshot is reported and not served: the previous weights stay.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh, SingleDeviceSharding

from agentrl_jax.data.snapshot_manifest import (
  Manifest,
  Snapshot,
  open_folder,
  read_manifest,
)
from agentrl_jax.errors import CheckpointError, ConfigError
from agentrl_jax.model import quantization, sharding
from agentrl_jax.model.checksums import checksums, named_leaves
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.rollout.engine.engine import ServedWeights
from agentrl_jax.rollout.remote.wire import ServedPolicySlot

MAX_PAUSE_S = 30.0  # between two tries to load a damaged snapshot


@dataclasses.dataclass(frozen=True)
class _Failure:
  """A snapshot that could not be served."""

  snapshot: Snapshot
  trouble: str  # one line
  num_tries: int
  retry_at: float  # by the follower's clock


class SnapshotFollower:
  """Keeps a `ServedWeights` at the versions of a folder."""

  def __init__(
    self,
    folder: str,
    policy: Policy,
    versions: ServedWeights,
    *,
    weights: str = "full",
    clock: Callable[[], float] = time.monotonic,
  ):
    """Makes a follower that serves nothing yet.

    `weights` is `engine.weights`: snapshots have them in full.
    """
    self.folder = open_folder(folder)
    self._versions, self._clock = versions, clock
    self._stacked = policy.abstract_params()
    self._layout = _layout(self._stacked, policy.mesh)
    self._prepare = _preparation(policy, weights)
    self._checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    self.policy_slots: tuple[ServedPolicySlot | None, ...] = (
      None,
    ) * versions.num_policy_slots
    self.trouble = ""  # a sentence, while a snapshot cannot be served
    self._failures: dict[int, _Failure] = {}  # by policy slot

  @property
  def is_serving(self) -> bool:
    """True if policy slot 0 has weights."""
    return self.policy_slots[0] is not None

  def look(self) -> bool:
    """Reads and serves new snapshots; returns whether there were any.

    Raises `ConfigError` if the first snapshot is of another model or config,
    which is permanent. For later ones `trouble` has the error and the previous
    weights stay. A snapshot that could not be served is tried again after a
    pause; a newer one is tried at once.
    """
    try:
      manifest = read_manifest(self.folder)
      new = {} if manifest is None else self._new(manifest.policy_slots)
    except CheckpointError as error:
      self.trouble = str(error)
      return False
    self._failures = {
      policy_slot: failure
      for policy_slot, failure in self._failures.items()
      if new.get(policy_slot) == failure.snapshot
    }
    served = False
    for policy_slot, snapshot in sorted(new.items()):
      if not self._is_paused(policy_slot):
        served |= self._try(policy_slot, snapshot, manifest)
    self.trouble = "; ".join(f.trouble for f in self._failures.values())
    return served

  def _is_paused(self, policy_slot: int) -> bool:
    failure = self._failures.get(policy_slot)
    return failure is not None and self._clock() < failure.retry_at

  def _try(
    self, policy_slot: int, snapshot: Snapshot, manifest: Manifest | None
  ) -> bool:
    """Returns whether the snapshot is served now, and stores the error."""
    try:
      self._serve(policy_slot, snapshot)
    except CheckpointError as error:
      if self._was_replaced(manifest):
        return False
      previous = self._failures.get(policy_slot)
      num_tries = 1 if previous is None else previous.num_tries + 1
      retry_at = self._clock() + min(2.0**num_tries, MAX_PAUSE_S)
      trouble = " ".join(str(error).split())
      self._failures[policy_slot] = _Failure(
        snapshot, trouble, num_tries, retry_at
      )
      return False
    self._failures.pop(policy_slot, None)
    return True

  def _new(self, policy_slots: Mapping[int, Snapshot]) -> dict[int, Snapshot]:
    if policy_slots and max(policy_slots) >= len(self.policy_slots):
      raise self._refusal(
        f"{self.folder} has weights for policy slot {max(policy_slots)} and "
        f"this server {len(self.policy_slots)} policy slots: start it with the "
        "learner's config"
      )
    served = dict(enumerate(self.policy_slots))
    return {
      policy_slot: snapshot
      for policy_slot, snapshot in policy_slots.items()
      if (now := served[policy_slot]) is None
      or now.publication != snapshot.publication
    }

  def _refusal(self, sentence: str) -> ConfigError | CheckpointError:
    """Returns the error that ends a server which serves nothing yet."""
    if any(policy_slot is not None for policy_slot in self.policy_slots):
      return CheckpointError(sentence)
    return ConfigError(sentence)

  def _was_replaced(self, manifest: Manifest | None) -> bool:
    """Returns whether the learner has published since, and removed files."""
    try:
      return read_manifest(self.folder) != manifest
    except CheckpointError:
      return False

  def _serve(self, policy_slot: int, snapshot: Snapshot) -> None:
    self._refuse_other_model(snapshot)
    try:
      params = self._restore(snapshot)
      self.hand_over(policy_slot, params, snapshot)
    except jax.errors.JaxRuntimeError as error:
      raise CheckpointError(
        f"snapshot {snapshot.folder} of version {snapshot.version} cannot be "
        f"put on the devices: {str(error)[:500]}"
      ) from error
    policy_slots = list(self.policy_slots)
    policy_slots[policy_slot] = ServedPolicySlot(
      snapshot.version, snapshot.publication
    )
    self.policy_slots = tuple(policy_slots)

  def hand_over(
    self, policy_slot: int, params: Params, snapshot: Snapshot
  ) -> None:
    """Serves stacked params that were checked."""
    prepared = self._prepare(params)
    self._versions.publish(prepared, snapshot.version, policy_slot=policy_slot)

  def _refuse_other_model(self, snapshot: Snapshot) -> None:
    expected = {
      name: str(list(leaf.shape))
      for name, leaf in named_leaves(self._stacked).items()
    }
    written = {
      name: leaf[leaf.index("[") :] for name, leaf in snapshot.leaves.items()
    }
    for name in sorted(expected.keys() | written.keys()):
      if expected.get(name) != written.get(name):
        raise self._refusal(
          f"the snapshots in {self.folder} are of another model: leaf {name} "
          f"is {written.get(name, 'absent')} there and "
          f"{expected.get(name, 'absent')} in this server's config; start "
          "it with the learner's --config"
        )

  def _restore(self, snapshot: Snapshot) -> Params:
    """Restores the params as they were written, in the training form."""
    where = self.folder / snapshot.folder
    placed = named_leaves(self._layout)
    tree = {
      name: jax.ShapeDtypeStruct(
        leaf.shape,
        snapshot.leaves[name].partition("[")[0],
        sharding=placed[name],
      )
      for name, leaf in named_leaves(self._stacked).items()
    }
    try:
      restored = self._checkpointer.restore(
        where,
        args=ocp.args.PyTreeRestore(
          tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree)
        ),
      )
    except jax.errors.JaxRuntimeError:
      raise  # an error of the devices, not of the snapshot
    except Exception as error:  # noqa: BLE001 - Orbax raises it bare too
      raise CheckpointError(
        f"snapshot {where} of version {snapshot.version} cannot be read: "
        f"{str(error)[:500]}"
      ) from error
    _refuse_damage(where, restored, snapshot)
    _refuse_not_finite(where, restored, snapshot)
    leaves = [restored[name] for name in tree]
    return jax.tree.unflatten(jax.tree.structure(self._stacked), leaves)


def _preparation(policy: Policy, weights: str) -> Callable[[Params], Params]:
  """Returns the conversion of written params for decoding."""
  dtype, mesh = policy.compute.dtype, policy.mesh
  # On a mesh, the axes of training decide the layout.
  to_decode = policy.unstacked if mesh is not None else policy.to_decode
  shapes = jax.eval_shape(
    lambda params: to_decode(quantization.quantize(params, weights)),
    policy.abstract_params(),
  )
  convert = jax.jit(
    lambda params: sharding.copied(to_decode(params), dtype),
    out_shardings=_layout(shapes, mesh),
  )

  def prepare(params: Params) -> Params:
    return convert(quantization.quantize(params, weights, donates=True))

  return prepare


def _layout(params: Params, mesh: Mesh | None) -> Any:
  """Returns the sharding of each leaf: the mesh, or this process's device."""
  if mesh is not None:
    return sharding.param_shardings(params, mesh)
  placed = SingleDeviceSharding(jax.local_devices()[0])
  return jax.tree.map(lambda _: placed, params)


def _refuse_damage(
  where: epath.Path, restored: Mapping[str, jax.Array], snapshot: Snapshot
) -> None:
  for name, checksum in checksums(restored).items():
    if int(checksum) != snapshot.checksums[name]:
      raise CheckpointError(
        f"snapshot {where} of version {snapshot.version} is damaged: leaf "
        f"{name} has checksum {int(checksum)} and was written with "
        f"{snapshot.checksums[name]}"
      )


def _refuse_not_finite(
  where: epath.Path, restored: Mapping[str, jax.Array], snapshot: Snapshot
) -> None:
  for name, is_finite in _all_finite(dict(restored)).items():
    if not is_finite:
      raise CheckpointError(
        f"snapshot {where} of version {snapshot.version} is not served: leaf "
        f"{name} was written with a number that is not finite; look "
        "at the learner's loss and gradients"
      )


@jax.jit
def _all_finite(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return {name: jnp.isfinite(leaf).all() for name, leaf in tree.items()}
