"""Places policy slots on devices: all on the same ones, or apart on slices.

Together, all policy slots take turns on all devices. Apart, each has its own
devices, splits heads, channels and vocabulary over them, and decodes while the
others do. If there are more devices than key/value heads, several devices hold
the same heads, and channels and vocabulary are split over all of them.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import quantization, sharding
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy

# Axes of an engine's cache: slots, key/value heads, tokens, channels.
_CACHE = (None, sharding.RULES["kv_heads"])


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
  """The devices of a policy slot, and the shardings on them."""

  policy: Policy
  cache: Sharding | None = None  # of keys and values; None: the default

  @property
  def mesh(self) -> Mesh | None:
    """The mesh; None for the default device."""
    return self.policy.mesh


def layout_of(place: Place, weights: str = "full") -> Any:
  """Returns the shardings of the params that a policy slot decodes with.

  `weights` is `engine.weights`.
  """
  policy = place.policy
  shapes = jax.eval_shape(
    lambda params: policy.unstacked(quantization.quantize(params, weights)),
    policy.abstract_params(),
  )
  if place.mesh is None:
    raise ConfigError("a place without a mesh has no param shardings")
  return sharding.param_shardings(shapes, place.mesh)


def places_together(
  model: ModelConfig, compute: ComputeConfig, num_policy_slots: int
) -> tuple[Place, ...]:
  """Places every policy slot on all devices of this process."""
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
  """Gives each policy slot a number of devices, one slice after the other.

  Raises `ConfigError` if there are too few devices, or if the axes that are
  split cannot be divided by their number.
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
  check_devices(model, len(devices))
  mesh = sharding.decoding_mesh(model.num_kv_heads, devices)
  spec = PartitionSpec(*_CACHE)
  return Place(
    Policy(model, compute, mesh),
    NamedSharding(mesh, spec),  # type: ignore[no-untyped-call]
  )


def check_devices(model: ModelConfig, num_devices: int) -> None:
  """Raises `ConfigError` unless the devices divide channels and vocabulary."""
  sizes = model.mlp_parts | {"vocab_size": model.vocab_size}
  if not any(size % num_devices for size in sizes.values()):
    return
  allowed = math.gcd(*sizes.values())
  fitting = [n for n in range(1, num_devices) if allowed % n == 0]
  named = " and ".join(f"model.{key}={size}" for key, size in sizes.items())
  raise ConfigError(
    f"{named} cannot all be split over the {num_devices} devices of a policy "
    f"slot: give it {' or '.join(map(str, fitting))} of them, by "
    "--config.engine.slices or by the devices that the process sees "
    "(TPU_VISIBLE_CHIPS)"
  )
