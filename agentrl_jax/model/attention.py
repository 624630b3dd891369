"""Causal grouped-query attention: over packed rows, and over a cache.

Axes: B rows or lanes, T or C tokens, S cache slots, K key/value heads, G query
heads per key/value head, H channels of a head, R pairs of them
that turn. Pure functions.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig

_MASKED = -1e30  # finite, so that a row with nothing to attend to stays finite


def rotary_frequencies(c: ModelConfig) -> jax.Array:
  """How far each pair of channels turns per token, radians [R]."""
  pairs = c.rotary_channels // 2
  frequency_R = c.rope_theta ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
  if c.rope_factor == 1:
    return frequency_R
  turns_R = c.rope_original_context * frequency_R / (2 * jnp.pi)
  kept_R = jnp.clip(
    (turns_R - c.rope_low_frequency)
    / (c.rope_high_frequency - c.rope_low_frequency),
    0,
    1,
  )
  return frequency_R * (kept_R + (1 - kept_R) / c.rope_factor)


def rotate(
  x_BTNH: jax.Array, position_BT: jax.Array, frequency_R: jax.Array
) -> jax.Array:
  """Rotary positions (arXiv:2104.09864) in the half-split layout of Qwen.

  Of the first 2R channels, channel i turns with channel i + R; the others pass.
  Written as a roll, which XLA fuses on a CPU, where taking halves and joining
  them again copies.
  """
  pairs = len(frequency_R)
  angle_BTR = position_BT[..., None].astype(jnp.float32) * frequency_R
  cos, sin = jnp.cos(angle_BTR), jnp.sin(angle_BTR)
  cos_BT1H = jnp.concatenate([cos, cos], axis=-1)[:, :, None]
  sin_BT1H = jnp.concatenate([-sin, sin], axis=-1)[:, :, None]
  turning = x_BTNH[..., : 2 * pairs]
  turned = turning * cos_BT1H + jnp.roll(turning, pairs, axis=-1) * sin_BT1H
  turned = turned.astype(x_BTNH.dtype)
  if turned.shape == x_BTNH.shape:
    return turned
  return jnp.concatenate([turned, x_BTNH[..., 2 * pairs :]], axis=-1)


def attend_packed(
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  segment_BT: jax.Array,
  segment_BS: jax.Array,
  *,
  first: int | jax.Array,
  block: int,
) -> jax.Array:
  """Each token attends to earlier tokens of its own segment, itself included.

  Queries are those of the row's tokens from `first` on; keys are the row's.
  Queries are taken `block` at a time, each block against the keys up to its own
  end: what lies above the diagonal is never computed. 0 takes them all at once;
  where `first` is not known before the program runs, keys are all taken.
  """
  length, num_keys = q_BTKGH.shape[1], k_BSKH.shape[1]
  block = block or length

  def of_block(start: int) -> jax.Array:
    here = slice(start, start + block)
    seen = first + start + block if isinstance(first, int) else num_keys
    return _attend_until(
      q_BTKGH[:, here],
      k_BSKH[:, :seen],
      v_BSKH[:, :seen],
      segment_BT[:, here],
      segment_BS[:, :seen],
      first + start,
    )

  blocks = [of_block(start) for start in range(0, length, block)]
  return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=1)


def _attend_until(q_BTKGH, k_BSKH, v_BSKH, segment_BT, segment_BS, first):
  num_queries, num_keys = q_BTKGH.shape[1], k_BSKH.shape[1]
  query_T = first + jnp.arange(num_queries)
  causal_TS = jnp.arange(num_keys) <= query_T[:, None]
  same_BTS = segment_BT[:, :, None] == segment_BS[:, None, :]
  score_BKGTS = jnp.einsum(
    "btkgh,bskh->bkgts", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32
  )
  score_BKGTS = score_BKGTS * q_BTKGH.shape[-1] ** -0.5
  visible_BTS = causal_TS & same_BTS
  weight_BKGTS = jax.nn.softmax(
    jnp.where(visible_BTS[:, None, None], score_BKGTS, _MASKED), axis=-1
  )
  return jnp.einsum(
    "bkgts,bskh->btkgh", weight_BKGTS.astype(v_BSKH.dtype), v_BSKH
  )


def attend_cache(
  q_BCKGH: jax.Array,
  k_BKSH: jax.Array,
  v_BKSH: jax.Array,
  position_BC: jax.Array,
) -> jax.Array:
  """Each token attends to the slots of its lane up to its own position.

  One token per lane, the decoding case, is written as products and sums that
  XLA fuses into a single pass over the cache; as batched matrix products it
  takes four times as long on a CPU.
  """
  scale = q_BCKGH.shape[-1] ** -0.5
  num_slots = k_BKSH.shape[2]
  visible_BCS = jnp.arange(num_slots) <= position_BC[..., None]
  if q_BCKGH.shape[1] == 1:
    score_BKGS = jnp.sum(
      q_BCKGH[:, 0, :, :, None].astype(jnp.float32) * k_BKSH[:, :, None], -1
    )
    weight_BKGS = jax.nn.softmax(
      jnp.where(visible_BCS[:, 0, None, None], score_BKGS * scale, _MASKED), -1
    )
    mixed_BKGH = jnp.sum(weight_BKGS[..., None] * v_BKSH[:, :, None], -2)
    return mixed_BKGH[:, None].astype(v_BKSH.dtype)
  score_BKGCS = jnp.einsum(
    "bckgh,bksh->bkgcs", q_BCKGH, k_BKSH, preferred_element_type=jnp.float32
  )
  weight_BKGCS = jax.nn.softmax(
    jnp.where(visible_BCS[:, None, None], score_BKGCS * scale, _MASKED), -1
  )
  return jnp.einsum(
    "bkgcs,bksh->bckgh", weight_BKGCS.astype(v_BKSH.dtype), v_BKSH
  )
