"""The key/value cache of a decoder: lanes of slots, one pair of arrays a layer.

Lane b of the cache holds the keys and values of one token sequence, slot s
those of its token s. Layers are separate arrays: a scan over stacked layers
would copy the whole cache every step. Slots come after heads, which lets one
decoding step read the cache in a single pass.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig

# A (keys, values) pair per layer, each [B lanes, K heads, S slots, H channels].
KVCache = tuple[tuple[jax.Array, jax.Array], ...]


def empty_cache(
  config: ModelConfig, num_lanes: int, num_slots: int, dtype=jnp.float32
) -> KVCache:
  """A cache of zeros; what a lane has not written is never attended to."""
  shape = (num_lanes, config.num_kv_heads, num_slots, config.head_dim)
  return tuple(
    (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
    for _ in range(config.num_layers)
  )


def write(
  slots_BKSH: jax.Array, entry_BCKH: jax.Array, position_BC: jax.Array
) -> jax.Array:
  """Puts one entry per token at its position; positions outside are dropped.

  Heads are named one by one, so that what is written is contiguous: a TPU would
  keep the cache in another order for slices across heads, and turn it round for
  whoever reads it.
  """
  num_lanes, num_heads = slots_BKSH.shape[:2]
  lane_B11 = jnp.arange(num_lanes)[:, None, None]
  head_1K1 = jnp.arange(num_heads)[None, :, None]
  return slots_BKSH.at[lane_B11, head_1K1, position_BC[:, None]].set(
    jnp.swapaxes(entry_BCKH, 1, 2).astype(slots_BKSH.dtype), mode="drop"
  )


def copy_lane(cache: KVCache, source: jax.Array, target: jax.Array) -> KVCache:
  """The cache with lane `source` copied over lane `target`."""
  return jax.tree.map(lambda x: x.at[target].set(x[source]), cache)


def take_lanes(cache: KVCache, lane_P: jax.Array) -> KVCache:
  """A smaller cache of the lanes named; a lane outside gives zeros."""
  return jax.tree.map(
    lambda x: x.at[lane_P].get(mode="fill", fill_value=0), cache
  )


def put_lanes(cache: KVCache, lane_P: jax.Array, lanes: KVCache) -> KVCache:
  """The inverse of `take_lanes`; a lane outside is dropped."""
  return jax.tree.map(
    lambda x, part: x.at[lane_P].set(part, mode="drop"), cache, lanes
  )


def take_blocks(
  cache: KVCache, lane_N: jax.Array, index_N: jax.Array, size: int
) -> KVCache:
  """Blocks of `size` slots, [N, K, size, H]; a lane outside gives zeros.

  Block `index` of a lane begins at slot `index * size`; the number of slots is
  a multiple of `size`.
  """

  def take(x_BKSH: jax.Array) -> jax.Array:
    at = _block_indices(x_BKSH, lane_N, index_N)
    return _in_blocks(x_BKSH, size).at[at].get(mode="fill", fill_value=0)

  return jax.tree.map(take, cache)


def put_blocks(
  cache: KVCache, lane_N: jax.Array, index_N: jax.Array, blocks: KVCache
) -> KVCache:
  """The inverse of `take_blocks`; a lane outside is dropped."""

  def put(x_BKSH: jax.Array, block_NKTH: jax.Array) -> jax.Array:
    at = _block_indices(x_BKSH, lane_N, index_N)
    written = (
      _in_blocks(x_BKSH, block_NKTH.shape[2])
      .at[at]
      .set(block_NKTH, mode="drop")
    )
    return written.reshape(x_BKSH.shape)

  return jax.tree.map(put, cache, blocks)


def _in_blocks(x_BKSH: jax.Array, size: int) -> jax.Array:
  lanes, heads, slots, channels = x_BKSH.shape
  return x_BKSH.reshape(lanes, heads, slots // size, size, channels)


def _block_indices(
  x_BKSH: jax.Array, lane_N: jax.Array, index_N: jax.Array
) -> tuple[jax.Array, ...]:
  """Heads are named one by one, as in `write`."""
  head_1K = jnp.arange(x_BKSH.shape[1])[None]
  return lane_N[:, None], head_1K, index_N[:, None]
