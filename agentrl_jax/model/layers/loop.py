"""Applies layers one after another: written out, or by scans.

A scan compiles one layer for all of a stack. Where layers of several stacks
alternate, it compiles one period of them; and where the last layers share keys
and values, one of those that have them and one of those that read them. These
are kept by the kind of layer, the last ones of each, beside the hidden states.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentrl_jax.model import sharding
from agentrl_jax.model.compute import REMAT_POLICIES, ComputeConfig
from agentrl_jax.model.config import SOURCES, STACKS, ModelConfig
from agentrl_jax.model.decoder import unstacked

Params = dict[str, Any]
# Maps hidden states, a layer's params, its part of what was given for each
# layer, and the keys and values that it shares, to the hidden states after it,
# keys and values to be shared and which experts were the same; given `stack`,
# `is_local`.
Follow = Callable[..., tuple[jax.Array, Any, jax.Array | None]]
Kept = dict[str, tuple[jax.Array, ...]]
# Hidden states, and by stack the last keys and values, if any are shared.
Carry = tuple[jax.Array, Kept]


def each_layer(config: ModelConfig, params: Params) -> Sequence[Params]:
  """Returns params of each layer, first to last, stacked or not.

  Layers of one stack may be some of the model's.
  """
  layers = params["layers"]
  if not isinstance(layers, dict):
    return layers
  apart = {
    stack: unstacked(params[stack]) for stack in STACKS if stack in params
  }
  if len(apart) == 1:
    return next(iter(apart.values()))
  return [apart[stack][place] for stack, place in config.layer_places]


@dataclasses.dataclass(frozen=True)
class LayerLoop:
  """Applies a policy's layers one after another."""

  config: ModelConfig
  compute: ComputeConfig
  mesh: Mesh | None

  def run(
    self, follow: Follow, x_BTD: jax.Array, params: Params, given: Any
  ) -> tuple[jax.Array, jax.Array | None]:
    """Applies the layers one after another, by a scan or written out.

    Arrays of `given` begin with an axis of all layers.
    """
    c, carry, same = self.config, (x_BTD, self._nothing_kept(x_BTD)), []
    if not (self.compute.scan_layers and isinstance(params["layers"], dict)):
      layers = each_layer(c, params)
      carry, same = self._follow_each(follow, carry, layers, given, 0)
    elif c.has_mixed_stacks:
      for of in ((0, c.num_own_kv), (c.num_own_kv, c.num_layers)):
        if of[0] < of[1]:
          carry, more = self._follow_periods(follow, carry, params, given, *of)
          same += more
    else:
      carry, same = self._follow_stacks(follow, carry, params, given)
    return carry[0], jnp.concatenate(same) if same else None

  def _nothing_kept(self, x_BTD: jax.Array) -> Kept:
    """Returns zeros in the shapes of keys and values that are shared."""
    stacks = self.config.stacks
    return {
      own: tuple(
        sharding.constrain(
          self.mesh,
          jnp.zeros((*x_BTD.shape[:2], *shape), x_BTD.dtype),
          *("rows", "tokens", "kv_heads", None),
        )
        for shape in stacks[own][0].cached_shapes
      )
      for sharing, own in SOURCES.items()
      if sharing in stacks
    }

  def _follow_each(
    self,
    follow: Follow,
    carry: Carry,
    layers: Sequence[Params],
    given: Any,
    first: int,
  ) -> tuple[Carry, list[jax.Array]]:
    """Applies layers that are written out, from number `first` on."""
    same = []
    for n, layer in enumerate(layers):
      over = layer, jax.tree.map(lambda x, n=n: x[n], given)
      carry, same_BT = self._step(
        follow,
        carry,
        over,
        stack=self.config.layer_stacks[first + n],
        is_local=self.config.local_layers[first + n],
      )
      if same_BT is not None:
        same.append(same_BT[None])
    return carry, same

  def _follow_stacks(
    self, follow: Follow, carry: Carry, params: Params, given: Any
  ) -> tuple[Carry, list[jax.Array]]:
    """Scans over the layers of each stack, of which one follows the other."""
    locality, same = self.config.local_layers, []
    for stack, (_, numbers) in self.config.stacks.items():
      own = slice(numbers[0], numbers[-1] + 1)
      over = params[stack], jax.tree.map(lambda x, own=own: x[own], given)
      step = functools.partial(self._step, follow, stack=stack)
      if len(set(locality[own])) == 1:
        step = functools.partial(step, is_local=locality[own][0])
      else:
        over += (jnp.array(locality[own]),)
      carry, same_LBT = jax.lax.scan(step, carry, over)
      if same_LBT is not None:
        same.append(same_LBT)
    return carry, same

  def _follow_periods(
    self,
    follow: Follow,
    carry: Carry,
    params: Params,
    given: Any,
    first: int,
    end: int,
  ) -> tuple[Carry, list[jax.Array]]:
    """Scans over the periods in which layers of several stacks alternate.

    These are the layers from `first` to before `end`, the first of their
    stacks. Those after the last whole period are written out.
    """
    c = self.config
    period = c.period(first, end)
    periods = (end - first) // period
    split = first + periods * period
    scanned = c.layer_places[first:split]
    num_scanned = collections.Counter(stack for stack, _ in scanned)

    def periodic(leaf: jax.Array, start: int, number: int) -> jax.Array:
      part = leaf[start : start + number]
      return part.reshape(periods, number // periods, *leaf.shape[1:])

    def step(carry, of_period):
      stacks, given = of_period
      apart = {stack: unstacked(layers) for stack, layers in stacks.items()}
      layers = [apart[stack][place] for stack, place in scanned[:period]]
      carry, same = self._follow_each(follow, carry, layers, given, first)
      return carry, jnp.concatenate(same) if same else None

    over = {
      stack: jax.tree.map(
        functools.partial(periodic, start=0, number=number), params[stack]
      )
      for stack, number in num_scanned.items()
    }
    of_periods = functools.partial(periodic, start=first, number=split - first)
    carry, same_PLBT = jax.lax.scan(
      step, carry, (over, jax.tree.map(of_periods, given))
    )
    layers = each_layer(c, params)[split:end]
    rest = jax.tree.map(lambda x: x[split:end], given)
    carry, same = self._follow_each(follow, carry, layers, rest, split)
    if same_PLBT is not None:
      same.insert(0, same_PLBT.reshape(-1, *same_PLBT.shape[2:]))
    return carry, same

  def _step(
    self, follow: Follow, carry: Carry, over: Sequence[Any], **kind: Any
  ) -> tuple[Carry, jax.Array | None]:
    """Applies a layer of a `stack`, and keeps its keys and values to share.

    `over` are its params, what is given for it, and whether it is local, where
    its `kind` does not say.
    """
    (x_BTD, kept), (layer, given, *is_local) = carry, over
    step = functools.partial(follow, **kind)
    keeps_all = self.compute.remat == "none"
    if not keeps_all or (self.mesh and self.mesh.shape["fsdp"] > 1):
      step = jax.checkpoint(
        step,
        policy=REMAT_POLICIES[self.compute.remat],
        prevent_cse=not self.compute.scan_layers,
      )
    shared = kept.get(SOURCES.get(kind["stack"], ""))
    x_BTD, kv, same_BT = step(x_BTD, layer, given, shared, *is_local)
    if kind["stack"] in kept:
      kept = kept | {kind["stack"]: kv}
    return (x_BTD, kept), same_BT
