"""Memory that a chip keeps between programs: params, caches, snapshots.

The compiler counts a program's own arguments; the memory of other programs on
the same chip has to fit beside them.
"""

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.rollout.engine.placement import places_apart
from launch.config.settings import Settings
from launch.planning.programs import (
  STEPS,
  abstract_cache,
  abstract_drafts,
  abstract_weights,
  bytes_per_chip,
  learner_policy,
  shape,
  slot_cache,
)
from launch.run.reinforcement import make_learner

Residents = dict[str, int]  # bytes of one chip, by name


def learner_residents(settings: Settings, mesh: Mesh) -> Residents:
  """Bytes of an update's state; includes gradients during the update."""
  policy = learner_policy(settings, mesh)
  state = make_learner(settings, policy, steps=STEPS).abstract_state()
  params = bytes_per_chip(state.params)
  by_name = {
    "params": params,
    "optimizer": bytes_per_chip(state.optimizer),
    "gradients": params,
  }
  _, frozen = policy.abstract_split()
  if frozen is not None:
    by_name["frozen params"] = _split_bytes(frozen, mesh)
  if settings.loss.kl_coefficient and settings.reference.place == "resident":
    of = Policy(settings.reference_model, policy.compute, policy.mesh)
    reference = jax.eval_shape(
      lambda params: sharding.in_dtype(params, of.compute.dtype),
      of.abstract_params(),
    )
    by_name["reference"] = _split_bytes(reference, mesh)
  return by_name


def _split_bytes(params: Params, mesh: Mesh) -> int:
  """Bytes per chip of unplaced params, split by the sharding table."""
  where = sharding.param_shardings(params, mesh)
  placed = jax.tree.map(
    lambda leaf, at: shape(leaf.shape, leaf.dtype, at), params, where
  )
  return bytes_per_chip(placed)


def rollout_residents(
  settings: Settings,
  mesh: Mesh,
  *,
  dtype: str,
  policy_slots: Sequence[int] | None = None,
  is_server: bool = False,
) -> Residents:
  """Weights, cache and store of policy slots, and incoming weights.

  `policy_slots` are those on the mesh; None is all of them.

  New weights arrive beside those that are served, and beside older ones that
  running answers are finished on. With `is_server` they arrive in full, as
  snapshots have them, else as they are served.
  """
  policy = Policy(settings.model, settings.compute, mesh)
  kind = settings.engine.weights
  weights, arriving = (
    bytes_per_chip(abstract_weights(policy, mesh, dtype, kind))
    for kind in (kind, "full" if is_server else kind)
  )
  by_name = {"weights on their way": arriving}
  for policy_slot in (
    range(settings.engine.num_policy_slots)
    if policy_slots is None
    else policy_slots
  ):
    slots = settings.engine.slots[policy_slot]
    cache = slot_cache(settings.engine, policy, mesh, policy_slot)
    by_name[f"weights of policy slot {policy_slot}"] = weights
    by_name[f"cache of policy slot {policy_slot}"] = bytes_per_chip(
      jax.tree.leaves(cache)
    )
    if settings.engine.draft_tokens:
      by_name[f"drafts of policy slot {policy_slot}"] = sum(
        leaf.size * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(abstract_drafts(settings.engine, slots))
      )
    if settings.engine.old_weights:
      by_name[f"older weights of policy slot {policy_slot}"] = (
        settings.engine.old_weights * weights
      )
    if settings.engine.prefix_cache_tokens:
      blocks, size = (
        settings.engine.prefix_cache_blocks[0],
        settings.engine.block_size,
      )
      store = abstract_cache(policy, mesh, blocks, size)
      by_name[f"store of policy slot {policy_slot}"] = bytes_per_chip(
        jax.tree.leaves(store)
      )
  return by_name


@dataclasses.dataclass(frozen=True)
class PolicySlotPlace:
  """Chips, and the policy slots that are all on each of them."""

  mesh: Mesh
  policy_slots: tuple[int, ...]

  def residents(
    self, settings: Settings, dtype: str, *, is_server: bool = False
  ) -> Residents:
    """Bytes that the policy slots keep on one of the chips."""
    return rollout_residents(
      settings,
      self.mesh,
      dtype=dtype,
      policy_slots=self.policy_slots,
      is_server=is_server,
    )


def together(settings: Settings, mesh: Mesh) -> PolicySlotPlace:
  """Puts all policy slots on all chips of the mesh."""
  return PolicySlotPlace(mesh, tuple(range(settings.engine.num_policy_slots)))


def tightest_apart(
  settings: Settings, devices: Sequence[jax.Device], dtype: str
) -> PolicySlotPlace:
  """Finds the fullest chips if policy slots have their own (engine.slices).

  `devices` are those of one process. Raises `ConfigError` if they do not
  suffice, or do not divide what is split over them.
  """
  places = places_apart(
    settings.model, settings.compute, settings.engine.slices, devices
  )
  apart = [
    PolicySlotPlace(place.mesh, (policy_slot,))
    for policy_slot, place in enumerate(places)
    if place.mesh is not None
  ]
  return max(
    apart, key=lambda place: sum(place.residents(settings, dtype).values())
  )
