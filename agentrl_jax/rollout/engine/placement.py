"""Places an engine on devices, which all policy slots use in turn.

Heads, channels and vocabulary are split over them. If there are more devices
than key/value heads, several devices hold the same heads, and channels and
vocabulary are split over all of them.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import quantization, sharding
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.policy import Policy

# Axes of an engine's cache: pages, key/value heads, tokens, channels.
_CACHE = (None, sharding.RULES["kv_heads"])


def decoding_policy(
  model: ModelConfig,
  compute: ComputeConfig,
  devices: Sequence[jax.Device] | None = None,
) -> Policy:
  """Makes a policy that decodes on devices; None: those of this process.

  Raises `ConfigError` if the axes that are split cannot be divided by their
  number.
  """
  devices = jax.local_devices() if devices is None else devices
  if len(devices) == 1:
    return Policy(model, compute)
  check_devices(model, len(devices))
  mesh = sharding.decoding_mesh(model.shared_kv_heads, devices)
  return Policy(model, compute, mesh)


def cache_sharding(mesh: Mesh | None) -> NamedSharding | None:
  """Returns the sharding of keys and values; None without a mesh."""
  if mesh is None:
    return None
  return NamedSharding(mesh, PartitionSpec(*_CACHE))  # type: ignore[no-untyped-call]


def layout_of(policy: Policy, weights: str = "full") -> Any:
  """Returns the shardings of the params of `decoding_policy`; None: none.

  `weights` is `engine.weights`.
  """
  if policy.mesh is None:
    return None
  shapes = jax.eval_shape(
    lambda params: policy.unstacked(quantization.quantize(params, weights)),
    policy.abstract_params(),
  )
  return sharding.param_shardings(shapes, policy.mesh)


def check_devices(model: ModelConfig, num_devices: int) -> None:
  """Raises `ConfigError` unless the devices divide channels and vocabulary."""
  sizes = model.mlp_parts | {"vocab_size": model.vocab_size}
  if not any(size % num_devices for size in sizes.values()):
    return
  allowed = math.gcd(*sizes.values())
  fitting = [n for n in range(1, num_devices) if allowed % n == 0]
  named = " and ".join(f"model.{key}={size}" for key, size in sizes.items())
  raise ConfigError(
    f"{named} cannot all be split over the {num_devices} devices of an "
    f"engine: give it {' or '.join(map(str, fitting))} of them "
    "(TPU_VISIBLE_CHIPS)"
  )


def only_device(mesh: Mesh | None) -> SingleDeviceSharding | None:
  """Returns the place of arrays where there is one device, else None.

  An array of no place is placed by the first program that returns it, and JAX
  then compiles the next call of the same program again. Without a mesh, params
  may lie on any of several devices.
  """
  devices = jax.local_devices() if mesh is None else mesh.devices.flat
  if len(devices) > 1:
    return None
  return SingleDeviceSharding(devices[0])  # type: ignore[no-untyped-call]
