"""The cache of a decoder: a pool of pages, one pair of arrays per layer.

A page holds the keys and values of a number of tokens. Row b of a page table
[B, W] names the pages of sequence b in order. A page number outside the pool is
a page that the sequence does not have: writes there are dropped, and reads give
zeros. A layer that does not attend (`layers.delta`) keeps one state and one
window of inputs for each sequence instead, and one that reads the keys and
values of another has none. Layers are separate arrays, because a scan over
stacked layers would copy the whole cache every step.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.model.config import ModelConfig

# A (keys, values) pair per layer, each [N pages, K heads, T positions, H
# channels], or latents, as the keys of one head; or states [N, heads, key
# channels, value channels] in float32 and windows [N, tokens, channels]. The
# numbers of each token's experts may follow, as one head.
KVCache = tuple[tuple[jax.Array, ...], ...]
WINDOW_AXES = 3  # pools of pages have four


def empty_cache(
  config: ModelConfig,
  num_pages: int,
  page_size: int,
  dtype=jnp.float32,
  *,
  keeps_experts: bool = False,
  num_states: int | None = None,
) -> KVCache:
  """Makes a cache of zeros; unwritten positions are never attended to.

  `num_states` is the number of sequences that may have states; None is that of
  the pages.
  """
  kept = []
  if keeps_experts:
    _, num_chosen, number = config.experts_kind
    kept = [((num_pages, 1, page_size, num_chosen), number)]

  def layer(c: ModelConfig) -> tuple[jax.Array, ...]:
    if c.shares_kv:
      return ()
    arrays = [
      ((num_pages, num_heads, page_size, channels), dtype)
      for num_heads, channels in c.cached_shapes
    ]
    if c.is_delta:
      number = num_pages if num_states is None else num_states
      state = (number, c.delta_heads, c.delta_key_dim, c.delta_value_dim)
      window = (number, c.delta_taps - 1, c.delta_channels)
      arrays = [(state, jnp.float32), (window, dtype)]
    return tuple(jnp.zeros(*array) for array in (*arrays, *kept))

  stacks = config.stacks
  return tuple(layer(stacks[stack][0]) for stack in config.layer_stacks)


def has_state(layer: tuple[jax.Array, ...]) -> bool:
  """Says if a layer keeps a state of each sequence in place of pages."""
  return any(x.ndim == WINDOW_AXES for x in layer)


def pages_of(cache: KVCache) -> jax.Array:
  """Returns a pool of keys, whose shape is that of every layer's pages."""
  return next(layer[0] for layer in cache if not has_state(layer))


def write(
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
  # Heads are indexed one by one, so that each write is contiguous. For slices
  # across heads a TPU would keep the pool in another layout and transpose it
  # for every reader.
  head_1K1 = jnp.arange(pool_NKTH.shape[1])[None, :, None]
  at = page_BC[:, None], head_1K1, (position_BC % size)[:, None]
  entry_BKCH = jnp.swapaxes(entry_BCKH, 1, 2).astype(pool_NKTH.dtype)
  return pool_NKTH.at[at].set(entry_BKCH, mode="drop")


def take_pages(pool_NKTH: jax.Array, page_BW: jax.Array) -> jax.Array:
  """Copies the pages of sequences to rows [B, K, W T, H]; others are zeros."""
  _, num_heads, _, channels = pool_NKTH.shape
  head_1K1 = jnp.arange(num_heads)[None, :, None]
  page_BKWTH = pool_NKTH.at[page_BW[:, None], head_1K1].get(
    mode="fill", fill_value=0
  )
  return page_BKWTH.reshape(len(page_BW), num_heads, -1, channels)
