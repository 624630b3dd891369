"""Attention of a decode step that reads each slot up to its length.

The plain form reads every position of every slot. This kernel neither fetches
nor computes blocks of positions past a slot's last token. The softmax is
accumulated block by block (arXiv:2205.14135). It is a Pallas kernel for TPUs;
elsewhere it runs in Pallas's interpreter, correct but slow.

Axes: B slots, K key/value heads, G query heads per key/value head, S positions,
N positions of a block, H channels of a head.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

# Slots in a block; more hide the fetches better, fewer waste less.
_BLOCKS = (256, 128)
LOWEST = -1e30  # finite, so that differences of it are


def obstacle(cache_length: int) -> str:
  """Explains why the kernel cannot cut this cache; empty if it can."""
  if cache_length % _BLOCKS[-1] == 0:
    return ""
  return (
    f"takes blocks of {_BLOCKS[-1]} positions, and slots have {cache_length}: "
    f"let engine.context and engine.lengths be multiples of {_BLOCKS[-1]}"
  )


def attend(
  q_BKGH: jax.Array,
  k_BKSH: jax.Array,
  v_BKSH: jax.Array,
  length_B: jax.Array,
  sink_KG: jax.Array | None = None,
  *,
  window: int = 0,
  interpret: bool,
) -> jax.Array:
  """Lets each slot's query attend to its first `length` (> 0) positions.

  Of these it sees the last `window`, where that is not 0. `sink_KG` are scores
  of `reference.softmax`. Returns [B, K, G, H].
  """
  num_slots, num_heads, num_queries, channels = q_BKGH.shape
  cache_length = k_BKSH.shape[2]
  block = next(size for size in _BLOCKS if cache_length % size == 0)

  def of_slot(b, n, length_B):
    del n, length_B
    return b, 0, 0, 0

  def of_block(b, n, length_B):
    # What is past the end is what is there already: nothing is fetched.
    last = jax.lax.div(length_B[b] - 1, jnp.int32(block))
    n = jnp.minimum(n, last)
    if window:
      n = jnp.maximum(n, jax.lax.div(_begin(length_B[b], window), block))
    return b, 0, n, 0

  queries = pl.BlockSpec((1, num_heads, num_queries, channels), of_slot)
  positions = pl.BlockSpec((1, num_heads, block, channels), of_block)
  running = pltpu.VMEM((num_heads, num_queries, 1), jnp.float32)
  sinks = [] if sink_KG is None else [sink_KG.astype(jnp.float32)[..., None]]
  of_sinks = pl.BlockSpec((num_heads, num_queries, 1), lambda *_: (0, 0, 0))
  return pl.pallas_call(
    functools.partial(
      _attend_block, block=block, window=window, num_sinks=len(sinks)
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(num_slots, cache_length // block),
      in_specs=[queries, positions, positions, *[of_sinks] * len(sinks)],
      out_specs=queries,
      scratch_shapes=[
        running,
        running,
        pltpu.VMEM((num_heads, num_queries, channels), jnp.float32),
      ],
    ),
    out_shape=jax.ShapeDtypeStruct(q_BKGH.shape, q_BKGH.dtype),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary")
    ),
    interpret=interpret,
    name="ragged_attention",
  )(length_B, q_BKGH, k_BKSH, v_BKSH, *sinks)


def _begin(length: jax.Array, window: int) -> jax.Array:
  """Returns the first position that the last token's window holds."""
  return jnp.maximum(length - window, 0)


def _attend_block(
  length_B, q_1KGH, k_1KNH, v_1KNH, *refs, block, window, num_sinks
):
  """Adds one block of a slot's positions to the running softmax."""
  sinks = refs[:num_sinks]
  mixed_1KGH, top_KG1, sum_KG1, acc_KGH = refs[num_sinks:]
  slot, n = pl.program_id(0), pl.program_id(1)
  begin, length = n * block, length_B[slot]
  is_seen = begin < length
  if window:
    is_seen &= begin + block > _begin(length, window)

  @pl.when(n == 0)
  def _():
    start_softmax(top_KG1, sum_KG1, acc_KGH, *sinks)

  @pl.when(is_seen)
  def _():
    for k in range(k_1KNH.shape[1]):
      score_GN = _product(q_1KGH[0, k], k_1KNH[0, k], 1)
      score_GN *= q_1KGH.shape[-1] ** -0.5
      position_GN = begin + jax.lax.broadcasted_iota(
        jnp.int32, score_GN.shape, 1
      )
      visible_GN = position_GN < length
      if window:
        visible_GN &= position_GN >= _begin(length, window)
      score_GN = jnp.where(visible_GN, score_GN, LOWEST)
      before_G1 = top_KG1[k]
      top_G1 = jnp.maximum(before_G1, jnp.max(score_GN, axis=1, keepdims=True))
      weight_GN = jnp.exp(score_GN - top_G1)
      kept_G1 = jnp.exp(before_G1 - top_G1)
      total_G1 = jnp.sum(weight_GN, axis=1, keepdims=True)
      mixed_GH = _product(weight_GN.astype(v_1KNH.dtype), v_1KNH[0, k], 0)
      top_KG1[k] = top_G1
      sum_KG1[k] = kept_G1 * sum_KG1[k] + total_G1
      acc_KGH[k] = kept_G1 * acc_KGH[k] + mixed_GH

  @pl.when(n == pl.num_programs(1) - 1)
  def _():
    mixed_1KGH[0] = (acc_KGH[...] / sum_KG1[...]).astype(mixed_1KGH.dtype)


def start_softmax(top, total, acc, sink=None) -> None:
  """Sets the running maximum, sum and output to those of a sink, or none."""
  if sink is None:
    top[...] = jnp.full_like(top, LOWEST)
    total[...] = jnp.zeros_like(total)
  else:
    top[...] = jnp.broadcast_to(sink[...], top.shape)
    total[...] = jnp.ones_like(total)
  acc[...] = jnp.zeros_like(acc)


def _product(x, y, of_y: int) -> jax.Array:
  return jax.lax.dot_general(
    x, y, (((1,), (of_y,)), ((), ())), preferred_element_type=jnp.float32
  )
