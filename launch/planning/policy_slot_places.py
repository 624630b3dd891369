"""Which chips the policy slots of an engine share, as a plan has them."""

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from agentrl_jax.rollout.engine.placement import places_apart
from launch.config.settings import Settings
from launch.planning.residents import Residents, rollout_residents


@dataclasses.dataclass(frozen=True)
class PolicySlotPlace:
  """Chips, and the policy slots that are all on each of them."""

  mesh: Mesh
  policy_slots: tuple[int, ...]

  def residents(self, settings: Settings, dtype: str) -> Residents:
    """What the policy slots keep on one of the chips."""
    return rollout_residents(
      settings, self.mesh, dtype=dtype, policy_slots=self.policy_slots
    )


def together(settings: Settings, mesh: Mesh) -> PolicySlotPlace:
  """All policy slots on all chips of the mesh."""
  return PolicySlotPlace(mesh, tuple(range(settings.engine.num_policy_slots)))


def tightest_apart(
  settings: Settings, devices: Sequence[jax.Device], dtype: str
) -> PolicySlotPlace:
  """Of policy slots with chips of their own (engine.slices), who keeps most on
  each.

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
