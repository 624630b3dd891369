"""Where each policy slot lives: all on the same devices, or apart on slices.

Together, every policy slot uses every device in turn. Apart, a policy slot has
devices of its own, splits its heads, channels and vocabulary over them, and
decodes while the others do.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy

# Axes of an engine's cache: slots, key/value heads, tokens, channels.
_CACHE = (None, sharding.RULES["kv_heads"])


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
  """The devices of a policy slot, and what is laid out on them."""

  policy: Policy
  cache: Sharding | None = None  # of its keys and values; None: as it comes

  @property
  def mesh(self) -> Mesh | None:
    """None for one device, whichever is the default."""
    return self.policy.mesh


def layout_of(place: Place) -> Any:
  """Shardings of the params that the policy slot decodes with."""
  policy = place.policy
  shapes = jax.eval_shape(policy.unstacked, policy.abstract_params())
  if place.mesh is None:
    raise ConfigError("params of a place without a mesh lie as they come")
  return sharding.param_shardings(shapes, place.mesh)


def places_together(
  model: ModelConfig, compute: ComputeConfig, num_policy_slots: int
) -> tuple[Place, ...]:
  """Every policy slot on every device of this process."""
  devices = jax.local_devices()
  if len(devices) == 1:
    return (Place(Policy(model, compute)),) * num_policy_slots
  return (_place(model, compute, devices),) * num_policy_slots


def places_apart(
  model: ModelConfig,
  compute: ComputeConfig,
  sizes: Sequence[int],
  devices: Sequence[jax.Device] | None = None,
) -> tuple[Place, ...]:
  """So many devices to each policy slot, one after the other.

  Raises `ConfigError` if there are not as many, or if they do not divide what
  is split over them.
  """
  devices = jax.local_devices() if devices is None else list(devices)
  if sum(sizes) > len(devices):
    raise ConfigError(
      f"engine.slices={tuple(sizes)} asks for {sum(sizes)} devices, and this "
      f"process has {len(devices)}; make the slices smaller, or set "
      "engine.slices=() for all policy slots on all devices"
    )
  ends = list(itertools.accumulate(sizes))
  return tuple(
    _place(model, compute, devices[end - size : end])
    for size, end in zip(sizes, ends, strict=True)
  )


def _place(
  model: ModelConfig, compute: ComputeConfig, devices: Sequence[jax.Device]
) -> Place:
  for key in ("num_kv_heads", "mlp_width", "vocab_size"):
    if (size := getattr(model, key)) % len(devices):
      raise ConfigError(
        f"model.{key}={size} cannot be split over the {len(devices)} devices "
        "of a policy slot: give it a divisor of that number (engine.slices, "
        "or the devices that the process sees)"
      )
  mesh = sharding.make_mesh({"tensor": len(devices)}, devices)
  spec = PartitionSpec(*_CACHE)
  return Place(
    Policy(model, compute, mesh),
    NamedSharding(mesh, spec),  # type: ignore[no-untyped-call]
  )
