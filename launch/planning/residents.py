"""What lies in a chip's memory between programs, and how much of it.

A program's own arguments are counted by the compiler; what other programs keep
on the same chip has to fit beside them.
"""

import jax
from jax.sharding import Mesh

from agentrl_jax.model.policy import Policy
from launch.planning.programs import (
  abstract_cache,
  abstract_weights,
  bytes_per_chip,
  make_learner,
)
from launch.settings import Settings

Residents = dict[str, int]  # bytes of one chip, by name


def learner_residents(settings: Settings, mesh: Mesh) -> Residents:
  """What an update works on; gradients are there while it is made."""
  policy = Policy(settings.model, settings.compute, mesh)
  state = make_learner(settings, policy, mesh).abstract_state()
  params = bytes_per_chip(state.params)
  found = {
    "params": params,
    "optimizer": bytes_per_chip(state.optimizer),
    "gradients": params,
  }
  if settings.loss.kl_coefficient:
    found["reference"] = params
  return found


def rollout_residents(
  settings: Settings, mesh: Mesh, *, dtype: str
) -> Residents:
  """Weights and cache of every version slot, and weights on their way in.

  New weights arrive beside those that are being served.
  """
  policy = Policy(settings.model, settings.compute, mesh)
  weights = bytes_per_chip(abstract_weights(policy, mesh, dtype))
  found = {"weights on their way": weights}
  for slot, lanes in enumerate(settings.engine.lanes):
    cache = abstract_cache(policy, mesh, lanes, settings.engine.context)
    found[f"weights of slot {slot}"] = weights
    found[f"cache of slot {slot}"] = bytes_per_chip(jax.tree.leaves(cache))
  return found
