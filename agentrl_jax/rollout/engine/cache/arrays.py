"""Arrays of caches as a whole: where they stand, and what is read of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.model.cache import WINDOW_AXES, KVCache, has_state, take_pages


def map_cache(
  cache: KVCache,
  *,
  page: Callable[[jax.Array], Any] = lambda x: x,
  state: Callable[[jax.Array], Any] = lambda x: x,
) -> KVCache:
  """Applies functions to the arrays of pages, and to those of states."""
  mapped = []
  for layer in cache:
    num_states = 2 if has_state(layer) else 0
    states, pages = layer[:num_states], layer[num_states:]
    mapped.append((*map(state, states), *map(page, pages)))
  return tuple(mapped)


def place(cache: KVCache, split: jax.sharding.Sharding | None) -> KVCache:
  """Places a cache as `places` says, unless `split` is None."""
  return cache if split is None else jax.device_put(cache, places(cache, split))


def places(cache: KVCache, split: jax.sharding.Sharding) -> Any:
  """Returns `split` for arrays of several heads.

  The others are on every device: latents, windows, and numbers of experts.
  """
  whole = split
  if isinstance(split, jax.sharding.NamedSharding):
    whole = jax.sharding.NamedSharding(split.mesh, jax.P())

  def of(x: jax.Array) -> jax.sharding.Sharding:
    return split if x.ndim > WINDOW_AXES and x.shape[1] > 1 else whole

  return jax.tree.map(of, cache)


def experts_of(cache: KVCache, page_1W: jax.Array) -> jax.Array:
  """Returns the experts of a sequence's tokens, [S, L, K]."""
  rows = [take_pages(numbers, page_1W)[0, 0] for *_, numbers in cache]
  return jnp.stack(rows, axis=1)
