"""Causal grouped-query attention in plain JAX: packed rows, and a KV cache.

Axes: B rows or slots, T or C tokens, S cache positions, K key/value heads, G
query heads per key/value head, H channels of a head, R rotated channel pairs.
Pure functions.
"""

import math

import jax
import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig

_MASKED = -1e30  # finite, so that a row with nothing to attend to stays finite


def rotary_frequencies(c: ModelConfig, *, is_local: bool = False) -> jax.Array:
  """Returns the rotation per token of each channel pair, radians [R].

    frequency (kept + (1 - kept) / factor)

  where `kept`, in [0, 1], is the share of a frequency that is not stretched.
  """
  theta, kind = c.rope_theta, c.rope_type
  if is_local and c.local_rope_theta:
    theta, kind = c.local_rope_theta, "default"
  pairs = c.rotary_channels // 2
  if kind == "proportional":
    turning = int(c.head_dim * c.partial_rotary_factor // 2)
    pair_R = jnp.arange(pairs, dtype=jnp.float32)
    frequency_R = theta ** (-pair_R / pairs) / c.rope_factor
    return jnp.where(pair_R < turning, frequency_R, 0)
  frequency_R = theta ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
  if kind == "default":
    return frequency_R
  if kind == "linear":
    return frequency_R / c.rope_factor
  kept = {"llama3": _kept_by_llama3, "yarn": _kept_by_yarn}[kind]
  kept_R = jnp.clip(kept(c, frequency_R), 0, 1)
  return frequency_R * (kept_R + (1 - kept_R) / c.rope_factor)


def _kept_by_llama3(c: ModelConfig, frequency_R: jax.Array) -> jax.Array:
  """Blends by the number of turns within the original context."""
  turns_R = c.rope_original_context * frequency_R / (2 * jnp.pi)
  return (turns_R - c.rope_low_frequency) / (
    c.rope_high_frequency - c.rope_low_frequency
  )


def _kept_by_yarn(c: ModelConfig, frequency_R: jax.Array) -> jax.Array:
  """Blends by channel (arXiv:2309.00071, eq. 17 to 23), as transformers does.

  The bound of the channels, one less than those that turn, and the width of an
  empty range are those of the authors' code.
  """
  first, last = (
    c.rotary_channels
    * math.log(c.rope_original_context / (2 * math.pi * turns))
    / (2 * math.log(c.rope_theta))
    for turns in (c.rope_high_frequency, c.rope_low_frequency)
  )
  if c.rope_truncate:
    first, last = math.floor(first), math.ceil(last)
  first, last = max(first, 0), min(last, c.rotary_channels - 1)
  pair_R = jnp.arange(len(frequency_R), dtype=jnp.float32)
  return 1 - (pair_R - first) / (last - first or 0.001)


def rotate(
  x_BTNH: jax.Array,
  position_BT: jax.Array,
  frequency_R: jax.Array,
  factor: float = 1.0,
) -> jax.Array:
  """Rotary positions (arXiv:2104.09864) in the half-split layout of Qwen.

  Of the first 2R channels, channel i is paired with channel i + R, and they are
  multiplied by `factor`; the others pass unchanged. A roll is used because XLA
  fuses it on a CPU, while taking halves and joining them again copies.
  """
  pairs = len(frequency_R)
  angle_BTR = position_BT[..., None].astype(jnp.float32) * frequency_R
  cos, sin = jnp.cos(angle_BTR), jnp.sin(angle_BTR)
  if factor != 1:
    cos, sin = factor * cos, factor * sin
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
  end_BS: jax.Array,
  begin_BT: jax.Array | None = None,
  sink_KG: jax.Array | None = None,
  *,
  first: int | jax.Array,
) -> jax.Array:
  """Lets token t attend to token s of its row if begin[t] <= s <= t < end[s].

  See `attention.blockwise`; here all pairs of tokens are computed at once.
  Queries are those of the row's tokens from `first` on; keys are the row's.
  """
  # Once here, so that no product has to turn round what it reads.
  q_BKGTH = jnp.moveaxis(q_BTKGH, 1, 3)
  k_BKSH, v_BKSH = (jnp.moveaxis(x, 1, 2) for x in (k_BSKH, v_BSKH))
  visible_BTS = visible(end_BS, q_BTKGH.shape[1], first, begin_BT)
  return jnp.moveaxis(
    _attend_visible(q_BKGTH, k_BKSH, v_BKSH, visible_BTS, sink_KG), 3, 1
  )


def visible(
  end_BS: jax.Array,
  num_queries: int,
  first: int | jax.Array,
  begin_BT: jax.Array | None = None,
) -> jax.Array:
  """Returns a mask of the keys that each query may see, bool [B, T, S]."""
  query_T1 = first + jnp.arange(num_queries)[:, None]
  key_S = jnp.arange(end_BS.shape[1])
  visible_BTS = (key_S <= query_T1) & (query_T1 < end_BS[:, None, :])
  if begin_BT is None:
    return visible_BTS
  return visible_BTS & (key_S >= begin_BT[..., None])


def visible_blocks(
  end_BS: jax.Array,
  num_queries: int,
  first: int | jax.Array,
  begin_BT: jax.Array | None = None,
  *,
  queries: int,
  keys: int,
) -> jax.Array:
  """Returns which blocks have a visible pair of tokens, bool [B, N, M].

  N blocks of `queries` tokens, M blocks of `keys`. Every token has to see
  itself: end[t] > t.
  """
  num_rows, num_keys = end_BS.shape
  query_N1 = (first + jnp.arange(0, num_queries, queries))[:, None]
  key_M = jnp.arange(0, num_keys, keys)
  end_B1M = jnp.max(end_BS.reshape(num_rows, 1, -1, keys), axis=-1)
  # A block of keys that begins among the queries has the key of one of them,
  # which sees itself.
  visible_BNM = (key_M < query_N1 + queries) & (end_B1M > query_N1)
  if begin_BT is None:
    return visible_BNM
  begin_BN1 = jnp.min(begin_BT.reshape(num_rows, -1, queries, 1), axis=2)
  return visible_BNM & (key_M + keys > begin_BN1)


@jax.custom_vjp
def _attend_visible(
  q_BKGTH: jax.Array,
  k_BKSH: jax.Array,
  v_BKSH: jax.Array,
  visible_BTS: jax.Array,
  sink_KG: jax.Array | None,
) -> jax.Array:
  """Softmax attention to the visible keys, [B, K, G, T, H].

    w = softmax(q k / sqrt(H)),  o = w v
    d (q k / sqrt(H)) = w (d w - sum_s w d w),  sum_s w d w = d o . o
    d sink = - w_sink d o . o

  The gradient is written by hand to fix the order of its products: `jax.grad`
  transposes arrays as large as the weights.
  """
  return _attend_forward(q_BKGTH, k_BKSH, v_BKSH, visible_BTS, sink_KG)[0]


def softmax(score: jax.Array, sink: jax.Array | None) -> jax.Array:
  """Softmax over the last axis, of whose weights `sink` takes a part.

  A sink is a score to which no value belongs, so that weights add up to less
  than 1; see gpt-oss's model card (arXiv:2508.10925).
  """
  if sink is None:
    return jax.nn.softmax(score, axis=-1)
  top = jnp.maximum(jnp.max(score, axis=-1, keepdims=True), sink)
  weight = jnp.exp(score - top)
  total = jnp.sum(weight, axis=-1, keepdims=True) + jnp.exp(sink - top)
  return weight / total


def _attend_forward(q_BKGTH, k_BKSH, v_BKSH, visible_BTS, sink_KG):
  score_BKGTS = _product(q_BKGTH, k_BKSH, (4,), (3,), jnp.float32)
  score_BKGTS = score_BKGTS * q_BKGTH.shape[-1] ** -0.5
  weight_BKGTS = softmax(
    jnp.where(visible_BTS[:, None, None], score_BKGTS, _MASKED),
    None if sink_KG is None else sink_KG[..., None, None],
  )
  of_sink_BKGT = None
  if sink_KG is not None:
    of_sink_BKGT = 1 - jnp.sum(weight_BKGTS, axis=-1)
  weight_BKGTS = weight_BKGTS.astype(v_BKSH.dtype)
  mixed_BKGTH = _product(weight_BKGTS, v_BKSH, (4,), (2,))
  kept = q_BKGTH, k_BKSH, v_BKSH, weight_BKGTS, mixed_BKGTH, of_sink_BKGT
  return mixed_BKGTH, kept


def _attend_backward(kept, slope_BKGTH):
  q_BKGTH, k_BKSH, v_BKSH, weight_BKGTS, mixed_BKGTH, of_sink_BKGT = kept
  weight_slope_BKGTS = _product(slope_BKGTH, v_BKSH, (4,), (3,), jnp.float32)
  along_BKGT1 = jnp.sum(
    slope_BKGTH.astype(jnp.float32) * mixed_BKGTH, axis=-1, keepdims=True
  )
  score_slope_BKGTS = weight_BKGTS * (weight_slope_BKGTS - along_BKGT1)
  score_slope_BKGTS *= q_BKGTH.shape[-1] ** -0.5
  score_slope_BKGTS = score_slope_BKGTS.astype(q_BKGTH.dtype)
  queries = (2, 3)
  k_slope_BKHS = _product(q_BKGTH, score_slope_BKGTS, queries, queries)
  v_slope_BKHS = _product(slope_BKGTH, weight_BKGTS, queries, queries)
  sink_slope_KG = None
  if of_sink_BKGT is not None:
    sink_slope_KG = -jnp.sum(of_sink_BKGT * along_BKGT1[..., 0], axis=(0, 3))
  return (
    _product(score_slope_BKGTS, k_BKSH, (4,), (2,)),
    jnp.swapaxes(k_slope_BKHS, 2, 3),
    jnp.swapaxes(v_slope_BKHS, 2, 3),
    None,
    sink_slope_KG,
  )


_attend_visible.defvjp(_attend_forward, _attend_backward)


def _product(x, y, of_x, of_y, dtype=None) -> jax.Array:
  """Contracts these axes; the first two, rows and heads, are batched."""
  along = ((0, 1), (0, 1))
  return jax.lax.dot_general(
    x, y, ((of_x, of_y), along), preferred_element_type=dtype
  )


def attend_cache(
  q_BCKGH: jax.Array,
  k_BKSH: jax.Array,
  v_BKSH: jax.Array,
  position_BC: jax.Array,
  sink_KG: jax.Array | None = None,
  *,
  window: int = 0,
) -> jax.Array:
  """Lets each token attend to its slot's positions up to its own position.

  Of these it sees the last `window`, where that is not 0. `sink_KG` are scores
  of `softmax`.

  Scores are products of the cache with queries, not of queries with the cache:
  a CPU transposes the second factor.
  """
  q_BKGCH = jnp.moveaxis(q_BCKGH, 1, 3)
  score_BKSGC = _product(k_BKSH, q_BKGCH, (3,), (4,), jnp.float32)
  score_BKGCS = jnp.moveaxis(score_BKSGC, 2, 4) * q_BCKGH.shape[-1] ** -0.5
  position_S = jnp.arange(k_BKSH.shape[2])
  visible_BCS = position_S <= position_BC[..., None]
  if window:
    visible_BCS &= position_S > position_BC[..., None] - window
  weight_BKGCS = softmax(
    jnp.where(visible_BCS[:, None, None], score_BKGCS, _MASKED),
    None if sink_KG is None else sink_KG[..., None, None],
  ).astype(v_BKSH.dtype)
  return jnp.moveaxis(_product(weight_BKGCS, v_BKSH, (4,), (2,)), 3, 1)
