"""Multi-head latent attention of DeepSeek-V2 and V3, and of GLM-4.7-Flash.

From arXiv:2405.04434, section 2.1: a token's keys and values, of all heads, are
made of one latent of few channels, and of one key that turns.

    c = norm(W_DKV x),  r = turn(W_KR x),  q_n = [s_n, turn(t_n)]
    k_n = [U_n c, r],   v_n = V_n c

Updates compute every head's keys and values. A cache has c and r alone, and
heads share them as one key: (U_n c) s_n = c (U_n^T s_n), so that queries are
mapped to the latent's channels, and V_n is applied to what they mix of c.

Axes: N heads, H channels of a query, V of a value, L of the latent, E of the
latent and the key that turns.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from agentrl_jax.model.attention import reference
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.layers.projection import Projection, RMSNorm

Array = jax.Array

# Of the norms of latents, whatever that of others is, as transformers has it.
_EPSILON = 1e-6


class LatentAttention(nnx.Module):
  """Projections, norms and rotation of a layer whose heads share latents."""

  def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
    self.config = c
    self.num_still = c.head_dim - c.rotary_key_dim
    if c.query_rank:
      self.q_down = Projection((c.width,), (c.query_rank,), rngs=rngs)
      self.q_norm = _norm(c.query_rank, c)
    # One query head for each key/value head, as `decoder.Attention` has them.
    self.q = Projection(
      (c.query_rank or c.width,), (c.num_heads, 1, c.head_dim), rngs=rngs
    )
    self.kv_down = Projection(
      (c.width,), (c.latent_dim + c.rotary_key_dim,), rngs=rngs
    )
    self.kv_norm = _norm(c.latent_dim, c)
    # A head's still channels of keys, then its values.
    self.kv_up = Projection(
      (c.latent_dim,), (c.num_heads, self.num_still + c.value_dim), rngs=rngs
    )
    self.o = Projection(
      (c.num_heads, 1, c.value_dim),
      (c.width,),
      gain=(2 * c.num_layers) ** -0.5,
      rngs=rngs,
    )

  def project(
    self, x_BTD: Array, position_BT: Array, is_local: bool | Array = False
  ) -> tuple[Array, Array, Array]:
    """Returns queries [B, T, N, 1, H], keys [B, T, N, H], values [B, T, N, V].

    No layer `is_local`.
    """
    del is_local
    still_BTNH, turned_BTNH = self._queries(x_BTD, position_BT)
    latent_BTL, key_BTH = self._latents(x_BTD, position_BT)
    kv_BTNH = self.kv_up(latent_BTL)
    of_keys, v_BTNV = jnp.split(kv_BTNH, [self.num_still], axis=-1)
    key_BTNH = jnp.broadcast_to(key_BTH[:, :, None], turned_BTNH.shape)
    q_BTNH = jnp.concatenate([still_BTNH, turned_BTNH], axis=-1)
    k_BTNH = jnp.concatenate([of_keys, key_BTNH], axis=-1)
    return q_BTNH[:, :, :, None] * self.config.score_factor, k_BTNH, v_BTNV

  def extend(
    self,
    x_BCD: Array,
    cache: tuple[Array, ...],
    position_BC: Array,
    write: Callable[[Array, Array], Array],
    attend: Callable[..., Array],
    is_local: bool,
  ) -> tuple[Array, tuple[Array, ...]]:
    """Mixes latents of a cache [pages, 1, tokens, E]; see `decoder.Layer`.

    Returns what heads make of them, [B, C, N, 1, V], and the new cache.
    """
    del is_local
    c = self.config
    up_LNH = self.kv_up.matrix(x_BCD.dtype)
    of_keys_LNH, of_values_LNV = jnp.split(up_LNH, [self.num_still], axis=-1)
    still_BCNH, turned_BCNH = self._queries(x_BCD, position_BC)
    still_BCNL = jnp.einsum("bcnh,lnh->bcnl", still_BCNH, of_keys_LNH)
    q_BCNE = jnp.concatenate([still_BCNL, turned_BCNH], axis=-1)
    # Attention divides by the root of E, and not of H.
    q_BCNE *= c.score_factor * (q_BCNE.shape[-1] / c.head_dim) ** 0.5
    entry_BCE = jnp.concatenate(self._latents(x_BCD, position_BC), axis=-1)
    latents = write(cache[0], entry_BCE[:, :, None])
    mixed_BCNE = attend(q_BCNE[:, :, None], latents)[:, :, 0]
    mixed_BCNV = jnp.einsum(
      "bcnl,lnv->bcnv", mixed_BCNE[..., : c.latent_dim], of_values_LNV
    )
    return mixed_BCNV[:, :, :, None], (latents,)

  def mix(self, attend: Callable[..., Array], *qkv: Array) -> Array:
    """Returns the values that `attend` mixes."""
    return attend(*qkv)

  def _queries(self, x_BTD: Array, position_BT: Array) -> tuple[Array, Array]:
    """Returns the still and the turned channels of each head's query."""
    if self.config.query_rank:
      x_BTD = self.q_norm(self.q_down(x_BTD))
    q_BTNH = self.q(x_BTD)[:, :, :, 0]
    still, turning = jnp.split(q_BTNH, [self.num_still], axis=-1)
    return still, self._turn(turning, position_BT)

  def _latents(self, x_BTD: Array, position_BT: Array) -> tuple[Array, Array]:
    """Returns the latent [B, T, L] and the key that turns [B, T, H]."""
    latent_BTL, key_BTH = jnp.split(
      self.kv_down(x_BTD), [self.config.latent_dim], axis=-1
    )
    key_BTH = self._turn(key_BTH[:, :, None], position_BT)[:, :, 0]
    return self.kv_norm(latent_BTL), key_BTH

  def _turn(self, x_BTNH: Array, position_BT: Array) -> Array:
    frequency_R = reference.rotary_frequencies(self.config)
    factor = self.config.rope_attention_factor
    return reference.rotate(x_BTNH, position_BT, frequency_R, factor)


def _norm(size: int, c: ModelConfig) -> RMSNorm:
  norm = RMSNorm(size, c)
  norm.epsilon = _EPSILON
  return norm
