"""Publication of weights to rollout engines.

Training donates its params to the next update, so a copy is published: cast,
in the form that its reader wants, and laid out for the sampler, on the device.
Where layers are stacked and wanted apart, one compiled program copies them one
after another: a program for all of 30 takes six times as long to compile.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from agentrl_jax.model import quantization, sharding
from agentrl_jax.model.config import STACKS
from agentrl_jax.model.policy import Params, Policy


class WeightSink(Protocol):
  """An engine, or its proxy, that takes weights for a policy slot."""

  def publish(
    self, params: Params, version: int, *, policy_slot: int = 0
  ) -> None:
    """Checks the weights, then samples with them from the next token on."""


class Publisher:
  """Copies a policy's params to the devices that sample."""

  def __init__(
    self,
    policy: Policy,
    sink: WeightSink | None,
    *,
    dtype=jnp.float32,
    to: Any = None,
    layers_apart: bool = True,
    weights: str = "full",
    gathered: bool = False,
  ):
    """Compiles the copy.

    Args:
      to: the shardings of the params.
      layers_apart: whether to unstack the layers, as decoding needs; files
        keep them stacked.
      weights: `engine.weights`, to decode with.
      gathered: for several processes that all publish, of which one has a
        sink: the sink gets whole params on its first device.
    """
    form = policy.unstacked if layers_apart else lambda params: params
    if layers_apart and to is None:
      form = policy.to_decode
    plain = policy.plain  # merges adapters, which no engine knows
    self._sink = sink
    self._to, self._gathered = to, gathered
    # Adapters are merged into all layers at once.
    self._one_by_one = layers_apart and not policy.adaptation
    self._places = policy.config.layer_places

    def copy(params: Params) -> Params:
      params = quantization.quantize(plain(params), weights)
      return sharding.copied(form(params), dtype)

    def copy_layer(layers: Params, number: jax.Array) -> Params:
      one = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, number, 1), layers
      )
      (layer,) = copy({"layers": one})["layers"]
      return layer

    where = sharding.replicated(policy.mesh) if gathered else None
    self._copy = jax.jit(copy, out_shardings=where)
    self._copy_layer = jax.jit(copy_layer, out_shardings=where)

  def publish(
    self, params: Params, version: int, *, policy_slot: int = 0
  ) -> None:
    """Publishes the params to `policy_slot` with their version."""
    copied = self._copied(params)
    if self._sink is None:
      return
    if self._gathered:
      copied = jax.tree.map(lambda x: x.addressable_data(0), copied)
    if self._to is not None:
      copied = jax.device_put(copied, self._to)
    self._sink.publish(
      jax.block_until_ready(copied), version, policy_slot=policy_slot
    )

  def _copied(self, params: Params) -> Params:
    is_stacked = isinstance(params["layers"], dict)
    if not self._one_by_one or not is_stacked:
      return self._copy(params)
    apart = [
      self._copy_layer(params[stack], jnp.int32(n)) for stack, n in self._places
    ]
    stem = {name: x for name, x in params.items() if name not in STACKS}
    return self._copy(stem | {"layers": ()}) | {"layers": tuple(apart)}
