"""Attention over packed rows by JAX's splash kernel for TPUs (Pallas).

Scores never leave the chip's fast memory, and blocks that nobody sees are
skipped. One call serves the query heads of one key/value head, so that keys and
values are not repeated. Off a TPU the kernel runs in Pallas's interpreter,
correct but slow.

Axes: N blocks of queries, M blocks of keys; others as in `attention.blockwise`.
"""

import functools
import importlib.util
import types

import jax
import jax.numpy as jnp

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention import reference

_KERNELS = (
  "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel"
)
SLOTS = 128  # tokens that the kernel takes at least, and multiples of them
_BLOCK = 512  # tokens, where `compute.attention_block` does not say
# Of a number of a token, where a query has two: its own, and `begin`.
_BITS = 16


def check_length(length: int, shards: int, *, has_begin: bool) -> None:
  """Raises `ConfigError` for row lengths that the kernel cannot cut."""
  if has_begin and length > 2**_BITS:
    raise ConfigError(
      f"train.row_length={length} may be at most {2**_BITS} tokens where "
      "trees meet a sliding window (model.window) in splash attention: set "
      "--config.train.sharing=1, shorter rows, or "
      "--config.compute.attention=xla"
    )
  if length % (SLOTS * shards):
    allowed = SLOTS * shards
    raise ConfigError(
      f"train.row_length={length} must be a multiple of {SLOTS} tokens x "
      f"mesh.sequence={shards} for splash attention: set "
      f"--config.train.row_length={-(-length // allowed) * allowed} or "
      "--config.compute.attention=xla"
    )


def attend(
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  end_BS: jax.Array,
  begin_BT: jax.Array | None = None,
  sink_KG: jax.Array | None = None,
  *,
  first: int | jax.Array,
  by_row: bool,
  block: int,
  interpret: bool,
  name: str,
) -> jax.Array:
  """Computes `reference.attend_packed` by splash, [B, T, K, G, H].

  With `begin_BT` rows have at most 2^16 tokens.

  Which blocks are skipped is known at run time only. The mask of a block is
  computed in the kernel from the ends of its keys, so that a row takes memory
  for T ends and not for T S pairs. `by_row` computes one row after another and
  skips what nobody sees in it, for which the compiler copies the row; else one
  call computes all rows, and skips what nobody sees in any. `name` is that of
  the residuals in checkpoint policies.
  """
  length, num_keys = q_BTKGH.shape[1], k_BSKH.shape[1]
  query_T = first + jnp.arange(length, dtype=jnp.int32)
  kernels = _kernels(has_begin=begin_BT is not None)
  sizes = _block_sizes(kernels, block, length, num_keys)
  query = query_T if begin_BT is None else query_T | (begin_BT << _BITS)

  def of_row(q_KGTH, k_KSH, v_KSH, query_T, end_S, visible_NM):
    along_keys = _mask_info(kernels, visible_NM, axis=1)
    kernel = kernels.SplashAttentionKernel(
      along_keys,
      along_keys,
      _mask_info(kernels, visible_NM, axis=0),
      block_sizes=sizes,
      is_mqa=True,
      save_residuals=False,
      mask_value=kernels.DEFAULT_MASK_VALUE,
      attn_logits_soft_cap=None,
      residual_checkpoint_name=name,
      mask_function=None,
      interpret=interpret,
    )
    marks = kernels.SegmentIds(q=query_T, kv=end_S)
    of_heads = jax.vmap(kernel, in_axes=(0, 0, 0, None, 0))
    return of_heads(q_KGTH, k_KSH, v_KSH, marks, sink_KG)

  visible = reference.visible_blocks(
    end_BS, length, first, begin_BT, queries=sizes.block_q, keys=sizes.block_kv
  )
  if not by_row:
    visible = jnp.any(visible, axis=0)
  q_BTKGH = q_BTKGH * q_BTKGH.shape[-1] ** -0.5
  in_axes = (0, 0, 0, None if begin_BT is None else 0, 0, 0 if by_row else None)
  mixed_BKGTH = jax.vmap(of_row, in_axes=in_axes)(
    q_BTKGH.transpose(0, 2, 3, 1, 4),
    k_BSKH.swapaxes(1, 2),
    v_BSKH.swapaxes(1, 2),
    query,
    end_BS,
    visible,
  )
  return mixed_BKGTH.transpose(0, 3, 1, 2, 4)


def _mask_info(kernels: types.ModuleType, visible_NM: jax.Array, axis: int):
  """Says which blocks a kernel computes that goes along `axis`.

  While it skips blocks, the next one that it computes is fetched.
  """
  index_NM = jax.lax.broadcasted_iota(jnp.int32, visible_NM.shape, axis)
  last = jnp.max(
    index_NM, axis=axis, keepdims=True, where=visible_NM, initial=0
  )
  next_NM = jax.lax.cummin(
    jnp.where(visible_NM, index_NM, last), axis=axis, reverse=True
  )
  return kernels.mask_info_lib.MaskInfo(
    data_next=next_NM[None].astype(jnp.int16),  # scalar memory is small
    mask_next=None,
    block_mask=visible_NM[None].astype(jnp.int8),
    partial_mask_blocks=None,
    q_sequence=None,
    is_dynamic_mask=True,
  )


def _hide(
  score,
  hidden,
  _should_not_mask,
  _mask_ref,
  _q_sequence_ref,
  query_ref,
  end_ref,
  *,
  k_slice,
  k_offset,
  k_in_lanes=True,
  has_begin,
  **_,
):
  """Sets scores of a block to `hidden` where the key is not visible.

  Scores are [queries, keys] if `k_in_lanes`, else [keys, queries]. The kernel
  repeats what belongs to lines in SLOTS columns, and to columns in 8 lines.
  With `has_begin`, the first key that a query sees is in its higher bits.
  """
  key = k_offset + jax.lax.broadcasted_iota(
    jnp.int32, score.shape, 1 if k_in_lanes else 0
  )
  copies = (1, score.shape[1] // SLOTS)
  if k_in_lanes:
    query, end = jnp.tile(query_ref[...], copies), end_ref[:1, k_slice]
  else:
    query, end = query_ref[:1, :], jnp.tile(end_ref[k_slice, :], copies)
  if not has_begin:
    return jnp.where((key <= query) & (query < end), score, hidden)
  begin = jax.lax.shift_right_logical(query, _BITS)
  query &= 2**_BITS - 1
  is_visible = (begin <= key) & (key <= query) & (query < end)
  return jnp.where(is_visible, score, hidden)


@functools.cache
def _kernels(*, has_begin: bool) -> types.ModuleType:
  """Copies JAX's kernels, and changes which keys of a block are visible.

  Theirs takes a mark for each query and each key, and compares them for
  equality: segments. `_hide` takes places of queries and ends of keys. Nothing
  else differs, and JAX's own module stays as it is. Copied when a kernel is
  first made: other kernels do without JAX's, whose import takes long.
  """
  spec = importlib.util.find_spec(_KERNELS)
  copy = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(copy)
  if not hasattr(copy, "_apply_mask_and_soft_cap"):
    raise ImportError(
      f"jax {jax.__version__} has no _apply_mask_and_soft_cap in "
      f"{copy.__name__}, which masks the scores in jax 0.10: install that one"
    )
  copy._apply_mask_and_soft_cap = functools.partial(_hide, has_begin=has_begin)
  return copy


def _block_sizes(
  kernels: types.ModuleType, block: int, num_queries: int, num_keys: int
):
  queries = block_length(block, num_queries)
  keys = block_length(block, num_keys)
  return kernels.BlockSizes(
    block_q=queries,
    block_kv=keys,
    block_q_dkv=queries,
    block_kv_dkv=keys,
    block_q_dq=queries,
    block_kv_dq=keys,
  )


def block_length(block: int, length: int) -> int:
  """Returns the largest multiple of SLOTS <= `block` that divides `length`.

  `block` is `compute.attention_block`; 0 leaves it to this module.
  """
  parts = length // SLOTS
  most = max(1, min((block or _BLOCK) // SLOTS, parts))
  return SLOTS * next(n for n in range(most, 0, -1) if parts % n == 0)
