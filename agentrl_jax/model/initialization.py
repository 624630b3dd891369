"""Fresh params of which small policies learn sooner than of random ones."""

import jax.numpy as jnp

from agentrl_jax.model.config import STACKS
from agentrl_jax.model.policy import Params


def copying(params: Params, gain: float) -> Params:
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
  """
  is_first = True
  for stack in STACKS:
    if stack in params:
      layers = _copying(params[stack], gain, is_first=is_first)
      params, is_first = params | {stack: layers}, False
  return params


def _copying(layers: Params, gain: float, *, is_first: bool) -> Params:
  attention = layers["attention"]
  v_LDKH, o_LKGHD = attention["v"]["kernel"], attention["o"]["kernel"]
  transposed_LK1HD = jnp.moveaxis(v_LDKH, 1, 3)[:, :, None]
  copying_LKGHD = jnp.broadcast_to(
    gain / o_LKGHD.shape[2] * transposed_LK1HD, o_LKGHD.shape
  )
  o_LKGHD = jnp.concatenate([o_LKGHD[:is_first], copying_LKGHD[is_first:]])
  o = attention["o"] | {"kernel": o_LKGHD}
  return layers | {"attention": attention | {"o": o}}
