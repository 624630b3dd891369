"""Applies layers one after another: written out, or by scans.

A scan compiles one layer for all of a stack. Where layers of several stacks
alternate, it compiles one period of them.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentrl_jax.model.compute import REMAT_POLICIES, ComputeConfig
from agentrl_jax.model.config import STACKS, ModelConfig
from agentrl_jax.model.decoder import unstacked

Params = dict[str, Any]
# Maps hidden states, a layer's params and the experts to replay to the hidden
# states after it and which experts were the same; given `stack`, `is_local`.
Follow = Callable[..., tuple[jax.Array, jax.Array | None]]


def each_layer(config: ModelConfig, params: Params) -> Sequence[Params]:
  """Returns params of each layer, first to last, stacked or not."""
  layers = params["layers"]
  if not isinstance(layers, dict):
    return layers
  apart = {
    stack: unstacked(params[stack]) for stack in STACKS if stack in params
  }
  if len(apart) == 1:
    (alike,) = apart.values()
    return alike
  return [apart[stack][place] for stack, place in config.layer_places]


@dataclasses.dataclass(frozen=True)
class LayerLoop:
  """Applies a policy's layers one after another."""

  config: ModelConfig
  compute: ComputeConfig
  mesh: Mesh | None

  def run(
    self,
    follow: Follow,
    x_BTD: jax.Array,
    params: Params,
    replayed_LBTK: jax.Array | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Applies the layers one after another, by a scan or written out."""
    if not (self.compute.scan_layers and isinstance(params["layers"], dict)):
      layers = each_layer(self.config, params)
      x_BTD, same = self._follow_each(follow, x_BTD, layers, replayed_LBTK)
    elif self.config.has_mixed_stacks:
      x_BTD, same = self._follow_periods(follow, x_BTD, params, replayed_LBTK)
    else:
      x_BTD, same = self._follow_stacks(follow, x_BTD, params, replayed_LBTK)
    return x_BTD, jnp.concatenate(same) if same else None

  def _follow_each(
    self,
    follow: Follow,
    x_BTD: jax.Array,
    layers: Sequence[Params],
    replayed_LBTK: jax.Array | None,
    first: int = 0,
  ) -> tuple[jax.Array, list[jax.Array]]:
    """Applies layers that are written out, from number `first` on."""
    same = []
    for n, layer in enumerate(layers):
      step = self._forgetful(
        functools.partial(
          follow,
          stack=self.config.layer_stacks[first + n],
          is_local=self.config.local_layers[first + n],
        ),
        prevent_cse=not self.compute.scan_layers,
      )
      replayed_BTK = None if replayed_LBTK is None else replayed_LBTK[n]
      x_BTD, same_BT = step(x_BTD, layer, replayed_BTK)
      if same_BT is not None:
        same.append(same_BT[None])
    return x_BTD, same

  def _follow_stacks(
    self,
    follow: Follow,
    x_BTD: jax.Array,
    params: Params,
    replayed_LBTK: jax.Array | None,
  ) -> tuple[jax.Array, list[jax.Array]]:
    """Scans over the layers of each stack, of which one follows the other."""
    locality, same = self.config.local_layers, []
    for stack, (_, numbers) in self.config.stacks.items():
      own = slice(numbers[0], numbers[-1] + 1)
      over: tuple[Any, ...] = (
        params[stack],
        None if replayed_LBTK is None else replayed_LBTK[own],
      )
      of_stack = functools.partial(follow, stack=stack)
      if len(set(locality[own])) == 1:
        of_stack = functools.partial(of_stack, is_local=locality[own][0])
      else:
        over += (jnp.array(locality[own]),)
      step = self._forgetful(of_stack, prevent_cse=False)
      x_BTD, same_LBT = jax.lax.scan(
        lambda x, of, step=step: step(x, *of), x_BTD, over
      )
      if same_LBT is not None:
        same.append(same_LBT)
    return x_BTD, same

  def _follow_periods(
    self,
    follow: Follow,
    x_BTD: jax.Array,
    params: Params,
    replayed_LBTK: jax.Array | None,
  ) -> tuple[jax.Array, list[jax.Array]]:
    """Scans over the periods in which layers of several stacks alternate.

    Layers after the last whole period are written out.
    """
    c = self.config
    periods = c.num_layers // c.period
    scanned = c.layer_places[: periods * c.period]
    num_scanned = collections.Counter(stack for stack, _ in scanned)

    def periodic(leaf: jax.Array, number: int) -> jax.Array:
      return leaf[:number].reshape(periods, number // periods, *leaf.shape[1:])

    def step(x_BTD, of_period):
      stacks, replayed = of_period
      apart = {stack: unstacked(layers) for stack, layers in stacks.items()}
      layers = [apart[stack][place] for stack, place in scanned[: c.period]]
      x_BTD, same = self._follow_each(follow, x_BTD, layers, replayed)
      return x_BTD, jnp.concatenate(same) if same else None

    over = {
      stack: jax.tree.map(
        functools.partial(periodic, number=number), params[stack]
      )
      for stack, number in num_scanned.items()
    }
    first, replayed, rest = len(scanned), None, None
    if replayed_LBTK is not None:
      replayed = periodic(replayed_LBTK, first)
      rest = replayed_LBTK[first:]
    x_BTD, same_PLBT = jax.lax.scan(step, x_BTD, (over, replayed))
    layers = each_layer(self.config, params)[first:]
    x_BTD, same = self._follow_each(follow, x_BTD, layers, rest, first)
    if same_PLBT is not None:
      same.insert(0, same_PLBT.reshape(-1, *same_PLBT.shape[2:]))
    return x_BTD, same

  def _forgetful(self, follow: Follow, *, prevent_cse: bool) -> Follow:
    """Applies `compute.remat` to a layer."""
    keeps_all = self.compute.remat == "none"
    if keeps_all and (self.mesh is None or self.mesh.shape["fsdp"] == 1):
      return follow
    return jax.checkpoint(
      follow, policy=REMAT_POLICIES[self.compute.remat], prevent_cse=prevent_cse
    )
