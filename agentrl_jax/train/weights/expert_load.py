"""Loads of experts, and the steps of the biases that even them out.

The loads come as the gradient of these biases: see `model.experts`.
"""

from typing import Any

import jax
import jax.numpy as jnp

_BIAS = ("layers", "experts", "correction_bias")


def split_load(gradient: dict[str, Any]) -> tuple[Any, jax.Array | None]:
  """Splits a gradient into that of a loss and the experts' loads, [L, E].

  Without biases that choose experts, or with frozen ones, there are no loads.
  """
  stack, layer, name = _BIAS
  router = gradient.get(stack, {}).get(layer, {})
  if name not in router:
    return gradient, None
  return _with_bias(gradient, jnp.zeros_like(router[name])), router[name]


def balance(updates: Any, load_LE: jax.Array, rate: float) -> Any:
  """Puts steps of biases in an update: rate * sign(mean load - load).

  Of arXiv:2408.15664; an optimizer's own, such as weight decay, are left out.
  """
  mean_L1 = load_LE.mean(-1, keepdims=True)
  return _with_bias(updates, rate * jnp.sign(mean_L1 - load_LE))


def imbalance(load_LE: jax.Array) -> jax.Array:
  """Computes the largest load over the mean, on average over layers."""
  mean_L = jnp.maximum(load_LE.mean(-1), 1)
  return (load_LE.max(-1) / mean_L).mean()


def _with_bias(tree: dict[str, Any], bias_LE: jax.Array) -> dict[str, Any]:
  stack, layer, name = _BIAS
  router = tree[stack][layer] | {name: bias_LE}
  return tree | {stack: tree[stack] | {layer: router}}
