"""Fresh params that RL can begin with: their heads copy."""

from typing import Any

import jax.numpy as jnp

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.config import SOURCES, STACKS


def copying(params: dict[str, Any], gain: float) -> dict[str, Any]:
  """Lets all layers but the first begin with heads that copy tokens.

    o = gain v^T / G

  A head adds a projection of the tokens that it attends to, which raises their
  own logits where embeddings are tied. From random params a policy has to find
  this map by training, one frequent token after another. The product of values
  and outputs near the identity is what "mimetic initialization" takes from
  trained models (arXiv:2305.09828); here the factors stay random, and a gain
  makes the copy as large as what the layer adds to.

  Args:
    params: fresh ones, with stacked layers.
    gain: 1 copies with about the norm of the attended states, of the part that
      the heads see.

  Returns:
    The same params but for the output kernels of attention, [L, K, G, H, D]:
    L layers, K key/value heads, G query heads of each, H channels, D width.

  Raises `ConfigError` where heads make their values of latents.
  """
  is_first = True
  for stack in STACKS:
    # Layers that read the values of others stay as they are.
    if "attention" in params.get(stack, {}) and stack not in SOURCES:
      layers = _copying(params[stack], gain, is_first=is_first)
      params, is_first = params | {stack: layers}, False
  return params


def _copying(
  layers: dict[str, Any], gain: float, *, is_first: bool
) -> dict[str, Any]:
  attention = layers["attention"]
  if "kv_up" in attention:
    raise ConfigError(
      "warm_start.copy_gain is for heads that make their values of hidden "
      "states, and these make them of latents: set "
      "--config.warm_start.copy_gain=0"
    )
  values = attention.get("v", attention["k"])
  v_LDKH, o_LKGHD = values["kernel"], attention["o"]["kernel"]
  transposed_LK1HD = jnp.moveaxis(v_LDKH, 1, 3)[:, :, None]
  copying_LKGHD = jnp.broadcast_to(
    gain / o_LKGHD.shape[2] * transposed_LK1HD, o_LKGHD.shape
  )
  o_LKGHD = jnp.concatenate([o_LKGHD[:is_first], copying_LKGHD[is_first:]])
  o = attention["o"] | {"kernel": o_LKGHD}
  return layers | {"attention": attention | {"o": o}}
