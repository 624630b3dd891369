"""Serves what the learner publishes in a folder, in a process of its own.

Whoever calls `look` now and then has the policy slots of a `ServedWeights`
follow the folder's manifest. A snapshot is restored into the server's own
layout and precision, checked leaf by leaf, and published between two decode
steps. What is damaged is told and not served: the weights before it go on.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
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
from agentrl_jax.model import sharding
from agentrl_jax.model.checksums import checksums, leaf_names
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.rollout.engine.weights import ServedWeights
from agentrl_jax.rollout.remote.wire import ServedPolicySlot

MAX_PAUSE_S = 30.0  # between two tries at a snapshot that is damaged


@dataclasses.dataclass(frozen=True)
class _Failure:
  """A snapshot that could not be served."""

  snapshot: Snapshot
  trouble: str  # one line
  tries: int
  again_at: float  # by the follower's clock


class SnapshotFollower:
  """Keeps a version store at what a folder says."""

  def __init__(
    self,
    folder: str,
    policy: Policy,
    versions: ServedWeights,
    *,
    meshes: Sequence[Mesh | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """`meshes` has one entry per policy slot; without, all are on one
    device.
    """
    self.folder = open_folder(folder)
    self._versions, self._clock = versions, clock
    self._stacked = policy.abstract_params()
    meshes = meshes or (None,) * versions.num_policy_slots
    self._layouts = [_layout(self._stacked, mesh) for mesh in meshes]
    made = {mesh: _preparation(policy, mesh) for mesh in set(meshes)}
    self._prepare = [made[mesh] for mesh in meshes]
    self._checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    self.policy_slots: tuple[ServedPolicySlot | None, ...] = (
      None,
    ) * versions.num_policy_slots
    self.trouble = ""  # a sentence, while a snapshot cannot be served
    self._failures: dict[int, _Failure] = {}  # by policy slot

  @property
  def is_serving(self) -> bool:
    """Whether policy slot 0 has weights."""
    return self.policy_slots[0] is not None

  def look(self) -> bool:
    """Serves what is new; whether anything was. Waits for reading it.

    Raises `ConfigError` if the first that it finds is of another model or
    config: that will not pass. Later ones are told, and the old weights go on.
    A snapshot that could not be served is tried again after a while; another
    one is tried at once.
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
      if not self._is_put_off(policy_slot):
        served |= self._try(policy_slot, snapshot, manifest)
    self.trouble = "; ".join(f.trouble for f in self._failures.values())
    return served

  def _is_put_off(self, policy_slot: int) -> bool:
    failure = self._failures.get(policy_slot)
    return failure is not None and self._clock() < failure.again_at

  def _try(
    self, policy_slot: int, snapshot: Snapshot, manifest: Manifest | None
  ) -> bool:
    """Whether the snapshot is served now; notes why it is not."""
    try:
      self._serve(policy_slot, snapshot)
    except CheckpointError as error:
      if self._was_replaced(manifest):
        return False
      before = self._failures.get(policy_slot)
      tries = 1 if before is None else before.tries + 1
      again_at = self._clock() + min(2.0**tries, MAX_PAUSE_S)
      told = " ".join(str(error).split())
      self._failures[policy_slot] = _Failure(snapshot, told, tries, again_at)
      return False
    self._failures.pop(policy_slot, None)
    return True

  def _new(self, policy_slots: Mapping[int, Snapshot]) -> dict[int, Snapshot]:
    if policy_slots and max(policy_slots) >= len(self.policy_slots):
      raise self._refusal(
        f"{self.folder} has weights for policy slot {max(policy_slots)} and "
        f"this "
        f"server {len(self.policy_slots)} policy slots: start it with the "
        f"learner's config"
      )
    served = dict(enumerate(self.policy_slots))
    return {
      policy_slot: snapshot
      for policy_slot, snapshot in policy_slots.items()
      if (now := served[policy_slot]) is None
      or now.publication != snapshot.publication
    }

  def _refusal(self, sentence: str) -> ConfigError | CheckpointError:
    """Ends a server that has nothing to serve, and no other."""
    if any(policy_slot is not None for policy_slot in self.policy_slots):
      return CheckpointError(sentence)
    return ConfigError(sentence)

  def _was_replaced(self, manifest: Manifest | None) -> bool:
    """Whether the learner has gone on, and removed what was being read."""
    try:
      return read_manifest(self.folder) != manifest
    except CheckpointError:
      return False

  def _serve(self, policy_slot: int, snapshot: Snapshot) -> None:
    self._refuse_other_model(snapshot)
    try:
      params = self._restore(snapshot, self._layouts[policy_slot])
      self.hand_over(policy_slot, params, snapshot)
    except jax.errors.JaxRuntimeError as error:
      raise CheckpointError(
        f"snapshot {snapshot.folder} of version {snapshot.step} cannot be put "
        f"on the devices: {str(error)[:500]}"
      ) from error
    policy_slots = list(self.policy_slots)
    policy_slots[policy_slot] = ServedPolicySlot(
      snapshot.step, snapshot.publication
    )
    self.policy_slots = tuple(policy_slots)

  def hand_over(
    self, policy_slot: int, params: Params, snapshot: Snapshot
  ) -> None:
    """Has stacked params, which were checked, served."""
    prepared = self._prepare[policy_slot](params)
    self._versions.publish(policy_slot, prepared, snapshot.step)

  def _refuse_other_model(self, snapshot: Snapshot) -> None:
    names = leaf_names(self._stacked)
    here = {
      name: str(list(leaf.shape))
      for name, leaf in zip(names, jax.tree.leaves(self._stacked), strict=True)
    }
    there = {
      name: found[found.index("[") :] for name, found in snapshot.leaves.items()
    }
    for name in sorted(here.keys() | there.keys()):
      if here.get(name) != there.get(name):
        raise self._refusal(
          f"the snapshots in {self.folder} are of another model: leaf {name} "
          f"is {there.get(name, 'absent')} there and "
          f"{here.get(name, 'absent')} in this server's config; start it with "
          "the learner's --config"
        )

  def _restore(self, snapshot: Snapshot, layout: Any) -> Params:
    """The params as they were written, in the training form."""
    where = self.folder / snapshot.folder
    tree = {
      name: jax.ShapeDtypeStruct(
        leaf.shape, snapshot.leaves[name].partition("[")[0], sharding=placed
      )
      for name, leaf, placed in zip(
        leaf_names(self._stacked),
        jax.tree.leaves(self._stacked),
        jax.tree.leaves(layout),
        strict=True,
      )
    }
    try:
      restored = self._checkpointer.restore(
        where,
        args=ocp.args.PyTreeRestore(
          tree,
          restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
        ),
      )
    except jax.errors.JaxRuntimeError:
      raise  # the devices': nothing is wrong with the snapshot
    except Exception as error:  # noqa: BLE001 - Orbax raises it bare, too
      raise CheckpointError(
        f"snapshot {where} of version {snapshot.step} cannot be read: "
        f"{str(error)[:500]}"
      ) from error
    _refuse_damage(where, restored, snapshot)
    _refuse_not_finite(where, restored, snapshot)
    leaves = [restored[name] for name in tree]
    return jax.tree.unflatten(jax.tree.structure(self._stacked), leaves)


def _preparation(
  policy: Policy, mesh: Mesh | None
) -> Callable[[Params], Params]:
  """From params as they were written to those that a policy slot decodes
  with.
  """
  dtype = policy.compute.dtype
  # Over a mesh, leaves are laid out by the axes that they are trained with.
  to_decode = policy.unstacked if mesh is not None else policy.to_decode
  shapes = jax.eval_shape(to_decode, policy.abstract_params())
  return jax.jit(
    lambda params: jax.tree.map(
      lambda x: jnp.asarray(x, dtype), to_decode(params)
    ),
    out_shardings=_layout(shapes, mesh),
  )


def _layout(params: Params, mesh: Mesh | None) -> Any:
  """Where each leaf goes: over the mesh, or all on this process's device."""
  if mesh is not None:
    return sharding.param_shardings(params, mesh)
  placed = SingleDeviceSharding(jax.local_devices()[0])
  return jax.tree.map(lambda _: placed, params)


def _refuse_damage(
  where: epath.Path, restored: Mapping[str, jax.Array], snapshot: Snapshot
) -> None:
  for name, found in checksums(restored).items():
    if int(found) != snapshot.checksums[name]:
      raise CheckpointError(
        f"snapshot {where} of version {snapshot.step} is damaged: leaf {name} "
        f"has checksum {int(found)}, and {snapshot.checksums[name]} was written"
      )


def _refuse_not_finite(
  where: epath.Path, restored: Mapping[str, jax.Array], snapshot: Snapshot
) -> None:
  for name, finite in _all_finite(dict(restored)).items():
    if not finite:
      raise CheckpointError(
        f"snapshot {where} of version {snapshot.step} is not served: leaf "
        f"{name} has a number that is not finite, and so it was written; look "
        "at the learner's loss and gradients"
      )


@jax.jit
def _all_finite(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return {name: jnp.isfinite(leaf).all() for name, leaf in tree.items()}
