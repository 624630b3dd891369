"""Memory that a chip keeps between programs: params, caches, snapshots.

The compiler counts a program's own arguments; the memory of other programs on
the same chip has to fit beside them.
"""

import jax
from jax.sharding import Mesh

from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from launch.config.settings import Settings
from launch.planning.programs import (
  STEPS,
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
  settings: Settings, mesh: Mesh, *, dtype: str, is_server: bool = False
) -> Residents:
  """Weights and caches of policy slots, and incoming weights.

  New weights arrive beside those that are served. With `is_server` they arrive
  in full, as snapshots have them, else as they are served.
  """
  policy = Policy(settings.model, settings.compute, mesh)
  kind = settings.engine.weights
  weights, arriving = (
    bytes_per_chip(abstract_weights(policy, mesh, dtype, kind))
    for kind in (kind, "full" if is_server else kind)
  )
  by_name = {"weights on their way": arriving}
  for policy_slot, slots in enumerate(settings.engine.slots):
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
  return by_name
