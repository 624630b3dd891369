"""Attention over packed rows, block by block, without blocks that nobody sees.

Token t sees token s of its row if s <= t < end[s]: with the end of its segment
for `end` this is causal attention within packed sequences, with the end of its
subtree that of a prefix tree (`data.packing`). A sliding window ends a token
sooner: at `s + window` in sequences. In a tree, whose branches go on from one
token, it bounds each query instead: s >= begin[t]. Pairs of a block of queries
and a block of keys that have a visible pair of tokens are computed one after
another, and the softmax is accumulated (arXiv:2205.14135). So time grows with
the tokens that are seen, not with the square of the row, and memory with
neither. Meant for CPUs, where a block keeps all cores busy.

Axes: B rows, T queries, S keys, K key/value heads, G query heads per key/value
head, H channels of a head, P pairs of blocks; N queries and M keys of a block.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.model import sharding
from agentrl_jax.model.attention import reference

_HIDDEN = -1e30  # finite, so that differences of scores are


class _Pairs(NamedTuple):
  """Pairs of blocks to compute."""

  index_P: jax.Array  # row, then block of queries, then block of keys
  number: jax.Array  # [], of entries that count


def attend(
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  end_BS: jax.Array,
  begin_BT: jax.Array | None = None,
  sink_KG: jax.Array | None = None,
  *,
  first: int | jax.Array,
  block: int,
) -> jax.Array:
  """Lets token t attend to token s of its row if begin[t] <= s <= t < end[s].

  Queries are those of the row's tokens from `first` on; keys are the row's.
  Every token has to see itself: end[t] > t. `sink_KG` are scores of
  `reference.softmax`. Returns [B, T, K, G, H].
  """
  length = q_BTKGH.shape[1]
  q_BKGTH = jnp.moveaxis(_padded(q_BTKGH, block), 1, 3)
  k_BKSH, v_BKSH = (
    jnp.moveaxis(_padded(x, block), 1, 2) for x in (k_BSKH, v_BSKH)
  )
  end_BS = _padded(end_BS, block)
  first = jnp.asarray(first, jnp.int32)
  if begin_BT is not None:
    begin_BT = _padded(begin_BT, block)
  mixed_BKGTH = _attend(
    block, q_BKGTH, k_BKSH, v_BKSH, sink_KG, _Range(end_BS, begin_BT, first)
  )
  return jnp.moveaxis(mixed_BKGTH, 3, 1)[:, :length]


class _Range(NamedTuple):
  """The pairs of tokens that see each other."""

  end_BS: jax.Array
  begin_BT: jax.Array | None
  first: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(block, q_BKGTH, k_BKSH, v_BKSH, sink_KG, visible) -> jax.Array:
  """Softmax attention to the visible keys, [B, K, G, T, H]."""
  return _forward(block, q_BKGTH, k_BKSH, v_BKSH, sink_KG, visible)[0]


def _forward(block, q_BKGTH, k_BKSH, v_BKSH, sink_KG, visible):
  inputs = (q_BKGTH, k_BKSH, v_BKSH, visible)

  def add(place: "_Place", sums):
    top_BKGT, total_BKGT, mixed_BKGTH = sums
    q_KGNH = place.queries(q_BKGTH)
    v_KMH = place.keys(v_BKSH)
    score_KGNM = place.scores(q_KGNH, place.keys(k_BKSH), visible)
    before_KGN = place.queries(top_BKGT)
    top_KGN = jnp.maximum(before_KGN, jnp.max(score_KGNM, axis=-1))
    weight_KGNM = jnp.exp(score_KGNM - top_KGN[..., None])
    # A query whose keys are all hidden so far has weights of 1 here; the first
    # visible key multiplies them by 0.
    kept_KGN = jnp.exp(before_KGN - top_KGN)
    total_KGN = kept_KGN * place.queries(total_BKGT)
    total_KGN += jnp.sum(weight_KGNM, axis=-1)
    mixed_KGNH = kept_KGN[..., None] * place.queries(mixed_BKGTH)
    mixed_KGNH += _product("kgnm,kmh->kgnh", weight_KGNM, v_KMH)
    return (
      place.put_queries(top_BKGT, top_KGN),
      place.put_queries(total_BKGT, total_KGN),
      place.put_queries(mixed_BKGTH, mixed_KGNH),
    )

  of_query = q_BKGTH.shape[:-1]
  zeros = (
    jnp.full(of_query, _HIDDEN),
    jnp.zeros(of_query),
    jnp.zeros((*of_query, v_BKSH.shape[-1])),
  )
  if sink_KG is not None:
    top_BKGT = jnp.broadcast_to(sink_KG[..., None].astype(float), of_query)
    zeros = (top_BKGT, jnp.ones(of_query), zeros[2])
  top_BKGT, total_BKGT, mixed_BKGTH = _over_pairs(block, inputs, add, zeros)
  # Padding after the row has no block to see; all that counts sees itself.
  total_BKGT = jnp.where(total_BKGT > 0, total_BKGT, 1)
  mixed_BKGTH = (mixed_BKGTH / total_BKGT[..., None]).astype(q_BKGTH.dtype)
  log_total_BKGT = top_BKGT + jnp.log(total_BKGT)
  return mixed_BKGTH, (*inputs, sink_KG, mixed_BKGTH, log_total_BKGT)


def _backward(block, kept, slope_BKGTH):
  *inputs, sink_KG, mixed_BKGTH, log_total_BKGT = kept
  q_BKGTH, k_BKSH, v_BKSH, visible = inputs
  along_BKGT = jnp.sum(slope_BKGTH.astype(jnp.float32) * mixed_BKGTH, axis=-1)

  def add(place: "_Place", sums):
    q_slope, k_slope, v_slope = sums
    q_KGNH, slope_KGNH = place.queries(q_BKGTH), place.queries(slope_BKGTH)
    k_KMH, v_KMH = place.keys(k_BKSH), place.keys(v_BKSH)
    score_KGNM = place.scores(q_KGNH, k_KMH, visible)
    log_total_KGN = place.queries(log_total_BKGT)
    weight_KGNM = jnp.exp(score_KGNM - log_total_KGN[..., None])
    score_slope_KGNM = _product("kgnh,kmh->kgnm", slope_KGNH, v_KMH)
    score_slope_KGNM -= place.queries(along_BKGT)[..., None]
    score_slope_KGNM *= weight_KGNM * q_KGNH.shape[-1] ** -0.5
    score_slope_KGNM = score_slope_KGNM.astype(q_KGNH.dtype)
    weight_KGNM = weight_KGNM.astype(q_KGNH.dtype)
    return (
      place.add_queries(
        q_slope, _product("kgnm,kmh->kgnh", score_slope_KGNM, k_KMH)
      ),
      place.add_keys(
        k_slope, _product("kgnm,kgnh->kmh", score_slope_KGNM, q_KGNH)
      ),
      place.add_keys(
        v_slope, _product("kgnm,kgnh->kmh", weight_KGNM, slope_KGNH)
      ),
    )

  factors = (q_BKGTH, k_BKSH, v_BKSH)
  zeros = tuple(jnp.zeros(x.shape) for x in factors)
  slopes = _over_pairs(block, tuple(inputs), add, zeros)
  sink_slope_KG = None
  if sink_KG is not None:
    of_sink_BKGT = jnp.exp(sink_KG[..., None] - log_total_BKGT)
    sink_slope_KG = -jnp.sum(of_sink_BKGT * along_BKGT, axis=(0, 3))
  return (
    *(slope.astype(x.dtype) for slope, x in zip(slopes, factors, strict=True)),
    sink_slope_KG,
    None,
  )


_attend.defvjp(_forward, _backward)


def _over_pairs(
  block: int,
  inputs: tuple[jax.Array, jax.Array, jax.Array, _Range],
  add: Callable[["_Place", Any], Any],
  zeros: Any,
) -> Any:
  """Adds up over the pairs of blocks that have a visible pair of tokens."""
  q_BKGTH, _, _, visible = inputs
  pairs = _visible_pairs(visible, q_BKGTH.shape[3], block)
  counts = (q_BKGTH.shape[3] // block, visible.end_BS.shape[1] // block)

  def add_pair(p: jax.Array, sums):
    rest, keys = jnp.divmod(pairs.index_P[p], counts[1])
    row, queries = jnp.divmod(rest, counts[0])
    return add(_Place(row, queries * block, keys * block, block), sums)

  zeros = sharding.varying_like(zeros, *jax.tree.leaves(inputs))
  return jax.lax.fori_loop(0, pairs.number, add_pair, zeros)


def _visible_pairs(visible: _Range, num_queries: int, block: int) -> _Pairs:
  """Lists the pairs of blocks with a visible pair of tokens, those first."""
  is_visible_BNM = reference.visible_blocks(
    visible.end_BS,
    num_queries,
    visible.first,
    visible.begin_BT,
    queries=block,
    keys=block,
  )
  is_visible_P = is_visible_BNM.reshape(-1)
  # Counted, not sorted: XLA sorts many entries slowly.
  count_P = jnp.cumsum(is_visible_P, dtype=jnp.int32)
  place_P = jnp.where(is_visible_P, count_P - 1, is_visible_P.size)
  all_P = jnp.arange(is_visible_P.size, dtype=jnp.int32)
  zeros_P = sharding.varying_like(jnp.zeros_like(all_P), place_P)
  index_P = zeros_P.at[place_P].set(all_P, mode="drop")
  return _Pairs(index_P, count_P[-1])


class _Place(NamedTuple):
  """A pair of blocks, as indices into arrays of rows."""

  row: jax.Array
  query: jax.Array  # first one
  key: jax.Array  # first one
  block: int

  def queries(self, x: jax.Array) -> jax.Array:
    """Takes the queries of x [B, K, G, T, ...]."""
    return self._take(x, 3, self.query)

  def put_queries(self, x: jax.Array, part: jax.Array) -> jax.Array:
    """Replaces the queries of x [B, K, G, T, ...]."""
    return self._put(x, 3, self.query, part)

  def add_queries(self, x: jax.Array, part: jax.Array) -> jax.Array:
    """Adds to the queries of x [B, K, G, T, ...]."""
    return self.put_queries(x, self.queries(x) + part)

  def keys(self, x: jax.Array) -> jax.Array:
    """Takes the keys of x [B, K, S, ...]."""
    return self._take(x, 2, self.key)

  def add_keys(self, x: jax.Array, part: jax.Array) -> jax.Array:
    """Adds to the keys of x [B, K, S, ...]."""
    return self._put(x, 2, self.key, self.keys(x) + part)

  def scores(
    self, q_KGNH: jax.Array, k_KMH: jax.Array, visible: _Range
  ) -> jax.Array:
    """Returns scaled products, float32 [K, G, N, M]; hidden ones lowest."""
    score_KGNM = _product("kgnh,kmh->kgnm", q_KGNH, k_KMH)
    score_KGNM *= q_KGNH.shape[-1] ** -0.5
    inside = jnp.arange(self.block)
    query_N1 = (visible.first + self.query + inside)[:, None]
    key_M = self.key + inside
    end_M = self._take(visible.end_BS, 1, self.key)
    is_visible_NM = (key_M <= query_N1) & (query_N1 < end_M)
    if visible.begin_BT is not None:
      begin_N = self._take(visible.begin_BT, 1, self.query)
      is_visible_NM &= key_M >= begin_N[:, None]
    return jnp.where(is_visible_NM, score_KGNM, _HIDDEN)

  def _take(self, x: jax.Array, axis: int, at: jax.Array) -> jax.Array:
    start, size = self._slice(x, axis, at)
    return jax.lax.dynamic_slice(x, start, size)[0]

  def _put(
    self, x: jax.Array, axis: int, at: jax.Array, part: jax.Array
  ) -> jax.Array:
    start, _ = self._slice(x, axis, at)
    return jax.lax.dynamic_update_slice(x, part[None], start)

  def _slice(self, x: jax.Array, axis: int, at: jax.Array):
    start: list[int | jax.Array] = [0] * x.ndim
    start[0], start[axis] = self.row, at
    return start, [1, *x.shape[1:axis], self.block, *x.shape[axis + 1 :]]


def _product(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
  return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


def _padded(x: jax.Array, block: int) -> jax.Array:
  """Pads axis 1 with zeros to a multiple of `block`."""
  missing = -x.shape[1] % block
  if not missing:
    return x
  return jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)))
