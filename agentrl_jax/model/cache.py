"""The KV cache of a decoder: slots of positions, one pair of arrays per layer.

Slot b of the cache holds the keys and values of one token sequence, position s
those of its token s. Layers are separate arrays, because a scan over stacked
layers would copy the whole cache every step. Positions come after heads, which
lets one decoding step read the cache in a single pass.

A cache may also be a pool of pages: its slots are then N pages of T positions
each, and row b of a page table [B, W] names the pages of sequence b in order.
A page number outside the pool is a page that the sequence does not have:
writes there are dropped, and reads give zeros.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig

# A (keys, values) pair per layer, each [B slots, K heads, S positions, H
# channels]. The numbers of each token's experts may follow, as one head.
KVCache = tuple[tuple[jax.Array, ...], ...]


def empty_cache(
  config: ModelConfig,
  num_slots: int,
  cache_length: int,
  dtype=jnp.float32,
  *,
  keeps_experts: bool = False,
) -> KVCache:
  """Makes a cache of zeros; unwritten positions are never attended to."""
  shape = (num_slots, config.num_kv_heads, cache_length, config.head_dim)
  layer = [(shape, dtype), (shape, dtype)]
  if keeps_experts:
    _, num_chosen, number = config.experts_kind
    layer.append(((num_slots, 1, cache_length, num_chosen), number))
  return tuple(
    tuple(jnp.zeros(*array) for array in layer)
    for _ in range(config.num_layers)
  )


def place(cache: KVCache, split: jax.sharding.Sharding | None) -> KVCache:
  """Places keys and values as `split` says, and numbers on every device."""
  if split is None:
    return cache
  whole = split
  if isinstance(split, jax.sharding.NamedSharding):
    whole = jax.sharding.NamedSharding(split.mesh, jax.P())
  return tuple(
    (*jax.device_put(layer[:2], split), *jax.device_put(layer[2:], whole))
    for layer in cache
  )


def experts_of(
  cache: KVCache, slot: jax.Array, page_1W: jax.Array | None = None
) -> jax.Array:
  """Returns the experts of a slot's tokens, [S, L, K]."""
  if page_1W is None:
    rows = [numbers[slot, 0] for *_, numbers in cache]
  else:
    rows = [take_pages(numbers, page_1W)[0, 0] for *_, numbers in cache]
  return jnp.stack(rows, axis=1)


def write(
  cache_BKSH: jax.Array,
  entry_BCKH: jax.Array,
  position_BC: jax.Array,
  slot_B: jax.Array | None = None,
) -> jax.Array:
  """Writes one entry per token at its position; drops positions outside.

  Row b belongs to slot b, or to `slot_B[b]`; rows of slots outside are dropped.
  """
  num_slots = cache_BKSH.shape[0]
  slot_B = jnp.arange(num_slots) if slot_B is None else slot_B
  return _write(cache_BKSH, entry_BCKH, slot_B[:, None], position_BC)


def write_pages(
  pool_NKTH: jax.Array,
  entry_BCKH: jax.Array,
  position_BC: jax.Array,
  page_BW: jax.Array,
) -> jax.Array:
  """Writes one entry per token to the page of its position.

  Drops positions outside the table, and those whose page is outside the pool.
  """
  num_pages, _, size, _ = pool_NKTH.shape
  page_BC = jnp.take_along_axis(
    page_BW, position_BC // size, axis=1, mode="fill", fill_value=num_pages
  )
  return _write(pool_NKTH, entry_BCKH, page_BC, position_BC % size)


def _write(
  cache_BKSH: jax.Array,
  entry_BCKH: jax.Array,
  slot_BC: jax.Array,
  position_BC: jax.Array,
) -> jax.Array:
  """Writes the entry of each token at a position of a slot; drops others.

  Heads are indexed one by one, so that each write is contiguous. For slices
  across heads a TPU would keep the cache in another layout and transpose it for
  every reader.
  """
  head_1K1 = jnp.arange(cache_BKSH.shape[1])[None, :, None]
  return cache_BKSH.at[slot_BC[:, None], head_1K1, position_BC[:, None]].set(
    jnp.swapaxes(entry_BCKH, 1, 2).astype(cache_BKSH.dtype), mode="drop"
  )


def take_pages(pool_NKTH: jax.Array, page_BW: jax.Array) -> jax.Array:
  """Copies the pages of sequences to rows [B, K, W T, H]; others are zeros."""
  _, num_heads, _, channels = pool_NKTH.shape
  head_1K1 = jnp.arange(num_heads)[None, :, None]
  page_BKWTH = pool_NKTH.at[page_BW[:, None], head_1K1].get(
    mode="fill", fill_value=0
  )
  return page_BKWTH.reshape(len(page_BW), num_heads, -1, channels)


def length(cache: KVCache, page_BW: jax.Array | None = None) -> int:
  """Returns how many positions a sequence has at most."""
  size = cache[0][0].shape[2]
  return size if page_BW is None else page_BW.shape[1] * size


def take_slots(cache: KVCache, slot_P: jax.Array) -> KVCache:
  """Takes a smaller cache of these slots; a slot outside gives zeros."""
  return jax.tree.map(
    lambda x: x.at[slot_P].get(mode="fill", fill_value=0), cache
  )


def put_slots(cache: KVCache, slot_P: jax.Array, slots: KVCache) -> KVCache:
  """Writes back what `take_slots` took; drops slots outside."""
  return jax.tree.map(
    lambda x, part: x.at[slot_P].set(part, mode="drop"), cache, slots
  )


def take_blocks(
  cache: KVCache, slot_N: jax.Array, index_N: jax.Array, size: int
) -> KVCache:
  """Takes blocks of `size` positions, [N, K, size, H]; zeros for slots outside.

  Block `index` of a slot begins at position `index * size`; the number of
  positions is a multiple of `size`.
  """

  def take(x_BKSH: jax.Array) -> jax.Array:
    at = _block_indices(x_BKSH, slot_N, index_N)
    return _in_blocks(x_BKSH, size).at[at].get(mode="fill", fill_value=0)

  return jax.tree.map(take, cache)


def put_blocks(
  cache: KVCache, slot_N: jax.Array, index_N: jax.Array, blocks: KVCache
) -> KVCache:
  """Writes back what `take_blocks` took; drops slots outside."""

  def put(x_BKSH: jax.Array, block_NKTH: jax.Array) -> jax.Array:
    at = _block_indices(x_BKSH, slot_N, index_N)
    written = (
      _in_blocks(x_BKSH, block_NKTH.shape[2])
      .at[at]
      .set(block_NKTH, mode="drop")
    )
    return written.reshape(x_BKSH.shape)

  return jax.tree.map(put, cache, blocks)


def _in_blocks(x_BKSH: jax.Array, size: int) -> jax.Array:
  slots, heads, positions, channels = x_BKSH.shape
  return x_BKSH.reshape(slots, heads, positions // size, size, channels)


def _block_indices(
  x_BKSH: jax.Array, slot_N: jax.Array, index_N: jax.Array
) -> tuple[jax.Array, ...]:
  """Indexes heads one by one, as `write` does."""
  head_1K = jnp.arange(x_BKSH.shape[1])[None]
  return slot_N[:, None], head_1K, index_N[:, None]
