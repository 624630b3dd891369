"""Attention of a decode step over pages: reads those that a sequence has.

A sequence's keys and values lie in pages of a pool, named by its row of a page
table. The kernel walks the list of blocks of pages that are filled, so that an
empty slot or the room behind a sequence costs nothing, not even a step of the
grid. Softmax is accumulated page by page, as in `ragged`. It is a Pallas kernel
for TPUs; elsewhere it runs in Pallas's interpreter, correct but slow.

jax's own kernels do not fit. `paged_attention` fetches whole blocks of pages
past a sequence's end, each head of a page by a copy of its own, and multiplies
in float32. `ragged_paged_attention` wants keys and values interleaved in one
array, and runs on one of the two cores of a v4 or v5p. Both want another layout
than the plain form, which would copy the pool for every prefill.

Axes: B sequences, K key/value heads, G query heads per key/value head, N pages
of the pool, W pages of a row of the table, T positions of a page, H channels of
a head, C cores, M blocks of a core.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_TILE = 128  # positions of a page: a multiple of it
_BLOCK = 1024  # positions of a block, at most; more hide the fetches better
_MOST_PAGES = 8  # of a block; each is an operand of its own
_CORES = 2  # of a chip, at most; a chip with one takes their lists in turn
_LOWEST = -1e30  # finite, so that differences of it are


def obstacle(page_size: int) -> str:
  """Explains why the kernel cannot take pages of this size; empty if it can."""
  if page_size % _TILE == 0:
    return ""
  return (
    f"takes pages of a multiple of {_TILE} positions, and these have "
    f"{page_size}: let engine.page_size be such a multiple"
  )


class _Work(NamedTuple):
  """The blocks to compute: which ones of which sequence, by core."""

  sequence_CM: jax.Array
  block_CM: jax.Array
  num_blocks: jax.Array  # of the core that has most
  num_C: jax.Array  # of each core


def attend(
  q_BKGH: jax.Array,
  k_NKTH: jax.Array,
  v_NKTH: jax.Array,
  page_BW: jax.Array,
  length_B: jax.Array,
  *,
  interpret: bool,
) -> jax.Array:
  """Lets each sequence's query attend to its first `length` positions.

  Returns [B, K, G, H]; zeros for a sequence of length 0.
  """
  num_sequences, num_heads, num_queries, channels = q_BKGH.shape
  num_pages, _, size, _ = k_NKTH.shape
  width = page_BW.shape[1]
  num_per_block = min(max(_BLOCK // size, 1), _MOST_PAGES, width)
  work = _work(length_B, num_per_block * size, -(-width // num_per_block))

  def of_sequence(core, m, sequence_CM, block_CM, *scalars):
    del block_CM, scalars
    return sequence_CM[core, m], 0, 0, 0

  def of_page(number, core, m, sequence_CM, block_CM, num_C, page_BW, length_B):
    del num_C
    b, n = sequence_CM[core, m], block_CM[core, m]
    last = jax.lax.div(jnp.maximum(length_B[b] - 1, 0), jnp.int32(size))
    w = n * num_per_block + number
    # Past the end, the page that this operand had before: nothing is fetched.
    w = jnp.where(w <= last, w, jnp.where(n > 0, w - num_per_block, last))
    return jnp.clip(page_BW[b, w], 0, num_pages - 1), 0, 0, 0

  queries = pl.BlockSpec((1, num_heads, num_queries, channels), of_sequence)
  pages = [
    pl.BlockSpec(
      (1, num_heads, size, channels), functools.partial(of_page, number)
    )
    for number in range(num_per_block)
  ]
  running = pltpu.VMEM((num_heads, num_queries, 1), jnp.float32)
  mixed_BKGH = pl.pallas_call(
    functools.partial(_attend_block, num_per_block=num_per_block, size=size),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=5,
      grid=(len(work.num_C), work.num_blocks),
      in_specs=[queries, *pages, *pages],
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
    name="paged_attention",
  )(
    work.sequence_CM,
    work.block_CM,
    work.num_C,
    page_BW,
    length_B,
    q_BKGH,
    *[k_NKTH] * num_per_block,
    *[v_NKTH] * num_per_block,
  )
  return jnp.where(length_B[:, None, None, None] > 0, mixed_BKGH, 0)


def _work(length_B: jax.Array, block: int, most: int) -> _Work:
  """Lists the blocks that sequences fill, an even share of rows per core.

  `most` is the number of blocks of the longest sequence that is possible. A
  list repeats its last entry behind its end, so that nothing is fetched there.
  """
  num_sequences = len(length_B)
  num_cores = _CORES if num_sequences % _CORES == 0 else 1
  count_CB = -(-length_B // block).reshape(num_cores, -1)
  end_CB = jnp.cumsum(count_CB, axis=1)
  num_C = end_CB[:, -1]
  num_rows = count_CB.shape[1]
  m_M = jnp.arange(num_rows * most)
  m_CM = jnp.minimum(m_M[None], jnp.maximum(num_C - 1, 0)[:, None])
  row_CM = jax.vmap(
    functools.partial(jnp.searchsorted, side="right", method="compare_all")
  )(end_CB, m_CM)
  row_CM = jnp.minimum(row_CM, num_rows - 1)
  first_CM = jnp.take_along_axis(end_CB - count_CB, row_CM, axis=1)
  core_C1 = jnp.arange(num_cores)[:, None]
  return _Work(
    (row_CM + core_C1 * num_rows).astype(jnp.int32),
    (m_CM - first_CM).astype(jnp.int32),
    jnp.max(num_C),
    num_C.astype(jnp.int32),
  )


def _attend_block(
  sequence_CM,
  block_CM,
  num_C,
  page_BW,
  length_B,
  q_1KGH,
  *refs,
  num_per_block,
  size,
):
  """Adds one block of a sequence's pages to the running softmax."""
  del page_BW
  keys, values = refs[:num_per_block], refs[num_per_block : 2 * num_per_block]
  mixed_1KGH, top_KG1, sum_KG1, acc_KGH = refs[2 * num_per_block :]
  core, m = pl.program_id(0), pl.program_id(1)
  n, length = block_CM[core, m], length_B[sequence_CM[core, m]]
  begin = n * num_per_block * size
  is_listed = m < num_C[core]

  @pl.when(is_listed & (n == 0))
  def _():
    top_KG1[...] = jnp.full_like(top_KG1, _LOWEST)
    sum_KG1[...] = jnp.zeros_like(sum_KG1)
    acc_KGH[...] = jnp.zeros_like(acc_KGH)

  for number in range(num_per_block):
    at = begin + number * size

    @pl.when(is_listed & (at < length))
    def _(number=number, at=at):
      _add_page(
        q_1KGH,
        keys[number],
        values[number],
        length - at,
        (top_KG1, sum_KG1, acc_KGH),
      )

  @pl.when(is_listed & (begin + num_per_block * size >= length))
  def _():
    mixed_1KGH[0] = (acc_KGH[...] / sum_KG1[...]).astype(mixed_1KGH.dtype)


def _add_page(q_1KGH, k_1KTH, v_1KTH, num_filled, running):
  """Adds the filled positions of a page to the running softmax."""
  top_KG1, sum_KG1, acc_KGH = running
  for k in range(k_1KTH.shape[1]):
    score_GT = _product(q_1KGH[0, k], k_1KTH[0, k], 1)
    score_GT *= q_1KGH.shape[-1] ** -0.5
    position_GT = jax.lax.broadcasted_iota(jnp.int32, score_GT.shape, 1)
    score_GT = jnp.where(position_GT < num_filled, score_GT, _LOWEST)
    before_G1 = top_KG1[k]
    top_G1 = jnp.maximum(before_G1, jnp.max(score_GT, axis=1, keepdims=True))
    weight_GT = jnp.exp(score_GT - top_G1)
    kept_G1 = jnp.exp(before_G1 - top_G1)
    mixed_GH = _product(weight_GT.astype(v_1KTH.dtype), v_1KTH[0, k], 0)
    top_KG1[k] = top_G1
    sum_KG1[k] = kept_G1 * sum_KG1[k] + jnp.sum(
      weight_GT, axis=1, keepdims=True
    )
    acc_KGH[k] = kept_G1 * acc_KGH[k] + mixed_GH


def _product(x, y, of_y: int) -> jax.Array:
  return jax.lax.dot_general(
    x, y, (((1,), (of_y,)), ((), ())), preferred_element_type=jnp.float32
  )
