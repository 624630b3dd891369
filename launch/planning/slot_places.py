"""Which chips the version slots of an engine share, as a plan has them."""

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from agentrl_jax.rollout.engine.placement import places_apart
from launch.config.settings import Settings
from launch.planning.residents import Residents, rollout_residents


@dataclasses.dataclass(frozen=True)
class SlotPlace:
  """Chips, and the slots that are all on each of them."""

  mesh: Mesh
  slots: tuple[int, ...]

  def residents(self, settings: Settings, dtype: str) -> Residents:
    """What the slots keep on one of the chips."""
    return rollout_residents(settings, self.mesh, dtype=dtype, slots=self.slots)


def together(settings: Settings, mesh: Mesh) -> SlotPlace:
  """All slots on all chips of the mesh."""
  return SlotPlace(mesh, tuple(range(settings.engine.num_slots)))


def tightest_apart(
  settings: Settings, devices: Sequence[jax.Device], dtype: str
) -> SlotPlace:
  """Of slots with chips of their own (engine.slices), who keeps most on each.

  `devices` are those of one process. Raises `ConfigError` if they do not
  suffice, or do not divide what is split over them.
  """
  places = places_apart(
    settings.model, settings.compute, settings.engine.slices, devices
  )
  apart = [
    SlotPlace(place.mesh, (slot,))
    for slot, place in enumerate(places)
    if place.mesh is not None
  ]
  return max(
    apart, key=lambda place: sum(place.residents(settings, dtype).values())
  )
