"""Attention of a decode step over pages: reads those that sequences have.

A sequence's keys and values lie in pages of a pool, named by its row of a page
table. The kernel walks a list of blocks of filled pages, so that an empty slot
or the room behind a sequence costs nothing, not even a step of the grid. The
list is sorted by page: a page that several sequences share, such as a group's
prompt, is fetched once for all of them. Softmax is accumulated page by page, in
any order (arXiv:2205.14135). It is a Pallas kernel for TPUs; elsewhere it runs
in Pallas's interpreter, correct but slow. Pallas is imported with the first
kernel, since its import takes long, and no command should wait for it.

jax's own kernels do not fit. `paged_attention` fetches whole blocks of pages
past a sequence's end, each head of a page by a copy of its own, and multiplies
in float32. `ragged_paged_attention` wants keys and values interleaved in one
array, and runs on one of the two cores of a v4 or v5p. Both read a shared page
once per sequence, and want another layout than the plain form, for which every
prefill would copy the pool.

Axes: B sequences, K key/value heads, G query heads per key/value head, N pages
of the pool, W pages of a row of the table, T positions of a page, H channels of
a head, C lists, R sequences of a list, M blocks of a list, J pages of a block.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

_LOWEST = -1e30  # finite, so that differences of it are
_TILE = 128  # positions of a page: a multiple of it
_BLOCK = 1024  # positions of a block, at most; more hide the fetches better
_MOST_PAGES = 8  # of a block; each is an operand of its own
CORES = 2  # of a chip, at most; a chip with one takes their lists in turn
# Bytes on a core for the sequences of a list, and for pages on their way.
_LIST_BYTES = 8 * 2**20
_PAGES_BYTES = 6 * 2**20


def obstacle(page_size: int) -> str:
  """Explains why the kernel cannot take pages of this size; empty if it can."""
  if page_size % _TILE == 0:
    return ""
  return (
    f"takes pages of a multiple of {_TILE} positions, and these have "
    f"{page_size}: let engine.page_size be such a multiple"
  )


class Work(NamedTuple):
  """The blocks of pages to compute, by list; see `list_work`."""

  page_CMJ: jax.Array
  row_CM: jax.Array  # sequence of a block, counted within its list
  filled_CM: jax.Array  # positions that are filled, from the block's first on
  num_blocks: jax.Array  # of the longest list


def list_work(
  page_BW: jax.Array,
  length_B: jax.Array,
  *,
  window: int = 0,
  page_size: int,
  num_pages: int,
  num_lists: int,
  num_joined: int,
) -> Work:
  """Lists the blocks that sequences fill, sorted by their first page.

  Blocks have `num_joined` pages. Sequences are divided evenly between lists,
  and a core computes one list after another. Entries behind the end of a list,
  and pages behind the end of a sequence, repeat the page before them in the
  list, so that nothing is fetched for them. Blocks that end before the window
  of the last token are not listed; a window of 0 holds all.
  """
  (num_sequences, width), size = page_BW.shape, page_size
  most = -(-width // num_joined)
  page_BW = jnp.pad(page_BW, ((0, 0), (0, most * num_joined - width)))
  begin_N = jnp.arange(most) * num_joined * size
  shape = num_lists, -1
  filled_CM = (length_B[:, None] - begin_N).reshape(shape)
  page_CMJ = page_BW.reshape(num_lists, -1, num_joined)
  row_M = jnp.repeat(jnp.arange(num_sequences // num_lists), most)
  if window:
    is_over_CM = filled_CM >= num_joined * size + window
    filled_CM = jnp.where(is_over_CM, 0, filled_CM)
  is_listed_CM = filled_CM > 0
  order_CM = jnp.argsort(
    jnp.where(is_listed_CM, page_CMJ[..., 0], num_pages), axis=1
  )
  filled_CM = jnp.take_along_axis(filled_CM, order_CM, axis=1)
  page_CMJ = jnp.take_along_axis(page_CMJ, order_CM[..., None], axis=1)
  # Of pages that are not filled, the last filled one before.
  is_filled_CMJ = filled_CM[..., None] > jnp.arange(num_joined) * size
  m_M1 = jnp.arange(filled_CM.shape[1])[:, None]
  last_CMJ = jax.lax.cummax(jnp.where(is_filled_CMJ, m_M1, 0), axis=1)
  page_CMJ = jnp.take_along_axis(page_CMJ, last_CMJ, axis=1)
  return Work(
    jnp.clip(page_CMJ, 0, num_pages - 1).astype(jnp.int32),
    row_M[order_CM].astype(jnp.int32),
    jnp.maximum(filled_CM, 0).astype(jnp.int32),
    jnp.max(jnp.sum(is_listed_CM, axis=1)),
  )


def attend(
  q_BKGH: jax.Array,
  cached: Sequence[jax.Array],
  page_BW: jax.Array,
  length_B: jax.Array,
  sink_KG: jax.Array | None = None,
  *,
  window: int = 0,
  interpret: bool,
) -> jax.Array:
  """Lets each sequence's query attend to its first `length` positions.

  `cached` are keys and values [N, K, T, H], or keys that are their own values:
  each page of them is fetched once. Of these it sees the last `window`, where
  that is not 0. `sink_KG` are scores of `reference.softmax`. Returns
  [B, K, G, H]; zeros for a sequence of length 0.
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu

  num_sequences, num_heads, num_queries, channels = q_BKGH.shape
  num_pages, _, size, _ = cached[0].shape
  num_joined = _num_joined(cached[0], page_BW.shape[1])
  num_lists = _num_lists(q_BKGH)
  num_rows = num_sequences // num_lists
  work = list_work(
    page_BW,
    length_B,
    window=window,
    page_size=size,
    num_pages=num_pages,
    num_lists=num_lists,
    num_joined=num_joined,
  )

  def of_list(number, m, *scalars):
    del m, scalars
    return number, 0, 0, 0

  def of_page(j, number, m, page_CMJ, *scalars):
    del scalars
    return page_CMJ[number, m * num_joined + j], 0, 0, 0

  rows = pl.BlockSpec((num_rows, num_heads, num_queries, channels), of_list)
  pages = [
    pl.BlockSpec((1, num_heads, size, channels), functools.partial(of_page, j))
    for j in range(num_joined)
  ]
  running = pltpu.VMEM((num_rows, num_heads, num_queries, 1), jnp.float32)
  sinks = [] if sink_KG is None else [sink_KG.astype(jnp.float32)[..., None]]
  of_sinks = pl.BlockSpec((num_heads, num_queries, 1), lambda *_: (0, 0, 0))
  mixed_BKGH = pl.pallas_call(
    functools.partial(
      _attend_block,
      num_joined=num_joined,
      size=size,
      window=window,
      num_sinks=len(sinks),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4,
      grid=(num_lists, work.num_blocks),
      in_specs=[rows, *pages * len(cached), *[of_sinks] * len(sinks)],
      out_specs=rows,
      scratch_shapes=[
        running,
        running,
        pltpu.VMEM((num_rows, num_heads, num_queries, channels), jnp.float32),
      ],
    ),
    out_shape=jax.ShapeDtypeStruct(q_BKGH.shape, q_BKGH.dtype),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary")
    ),
    interpret=interpret,
    name="paged_attention",
  )(
    work.page_CMJ.reshape(num_lists, -1),
    work.row_CM,
    work.filled_CM,
    work.num_blocks[None],
    q_BKGH,
    *[array for array in cached for _ in range(num_joined)],
    *sinks,
  )
  return jnp.where(length_B[:, None, None, None] > 0, mixed_BKGH, 0)


def _num_joined(k_NKTH: jax.Array, width: int) -> int:
  """Pages of a block: keys and values, those of one block and of the next."""
  _, num_heads, size, channels = k_NKTH.shape
  bytes_of_page = num_heads * size * channels * k_NKTH.dtype.itemsize
  fitting = _PAGES_BYTES // (4 * bytes_of_page)
  return max(min(_BLOCK // size, _MOST_PAGES, fitting, width), 1)


def _num_lists(q_BKGH: jax.Array) -> int:
  """Lists of sequences: as many as cores, or more so that each list fits."""
  num_sequences, num_heads, num_queries, channels = q_BKGH.shape
  # Queries and results, in two copies, and the running softmax in float32. On
  # the chip, queries are padded to 16, or to 8 in float32.
  each = -(-num_queries // 16) * 16 * 4 * channels * q_BKGH.dtype.itemsize
  each += -(-num_queries // 8) * 8 * 4 * (channels + 2 * 128)
  fitting = max(_LIST_BYTES // (num_heads * each), 1)
  return next(
    number
    for number in (CORES, 1, *range(CORES + 1, num_sequences + 1))
    if num_sequences % number == 0 and num_sequences // number <= fitting
  )


def _attend_block(
  page_CMJ,
  row_CM,
  filled_CM,
  num_blocks,
  q_RKGH,
  *refs,
  num_joined,
  size,
  window,
  num_sinks,
):
  """Adds one block of a sequence's pages to its running softmax."""
  from jax.experimental import pallas as pl

  del page_CMJ
  end = len(refs) - 4 - num_sinks
  keys, values = refs[:num_joined], refs[end - num_joined : end]
  sinks = refs[end:-4]
  mixed_RKGH, top_RKG1, sum_RKG1, acc_RKGH = refs[-4:]
  number, m = pl.program_id(0), pl.program_id(1)
  row, filled = row_CM[number, m], filled_CM[number, m]

  @pl.when(m == 0)
  def _():
    _start_softmax(top_RKG1, sum_RKG1, acc_RKGH, *sinks)

  for j in range(num_joined):
    is_seen = filled > j * size
    if window:
      is_seen &= filled - window < (j + 1) * size

    @pl.when(is_seen)
    def _(j=j):
      running = (x.at[row] for x in (top_RKG1, sum_RKG1, acc_RKGH))
      _add_page(
        q_RKGH.at[row],
        keys[j].at[0],
        values[j].at[0],
        filled - j * size,
        window,
        *running,
      )

  @pl.when(m == num_blocks[0] - 1)
  def _():
    # An empty sequence has a sum of 0, and its result is not used.
    mixed_RKGH[...] = (acc_RKGH[...] / sum_RKG1[...]).astype(mixed_RKGH.dtype)


def _add_page(
  q_KGH, k_KTH, v_KTH, num_filled, window, top_KG1, sum_KG1, acc_KGH
):
  """Adds the filled positions of a page, in the window, to the softmax."""
  for k in range(k_KTH.shape[0]):
    score_GT = _product(q_KGH[k], k_KTH[k], 1) * q_KGH.shape[-1] ** -0.5
    position_GT = jax.lax.broadcasted_iota(jnp.int32, score_GT.shape, 1)
    visible_GT = position_GT < num_filled
    if window:
      visible_GT &= position_GT >= num_filled - window
    score_GT = jnp.where(visible_GT, score_GT, _LOWEST)
    before_G1 = top_KG1[k]
    top_G1 = jnp.maximum(before_G1, jnp.max(score_GT, axis=1, keepdims=True))
    weight_GT = jnp.exp(score_GT - top_G1)
    kept_G1 = jnp.exp(before_G1 - top_G1)
    mixed_GH = _product(weight_GT.astype(v_KTH.dtype), v_KTH[k], 0)
    top_KG1[k] = top_G1
    sum_KG1[k] = kept_G1 * sum_KG1[k] + jnp.sum(
      weight_GT, axis=1, keepdims=True
    )
    acc_KGH[k] = kept_G1 * acc_KGH[k] + mixed_GH


def _start_softmax(top, total, acc, sink=None) -> None:
  """Sets the running maximum, sum and output to those of a sink, or none."""
  if sink is None:
    top[...] = jnp.full_like(top, _LOWEST)
    total[...] = jnp.zeros_like(total)
  else:
    top[...] = jnp.broadcast_to(sink[...], top.shape)
    total[...] = jnp.ones_like(total)
  acc[...] = jnp.zeros_like(acc)


def _product(x, y, of_y: int) -> jax.Array:
  return jax.lax.dot_general(
    x, y, (((1,), (of_y,)), ((), ())), preferred_element_type=jnp.float32
  )
