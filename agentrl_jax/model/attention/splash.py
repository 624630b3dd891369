"""Attention over packed rows by JAX's splash kernel for TPUs (Pallas).

Scores never leave the chip's fast memory, and blocks above the diagonal are
skipped. One call serves the query heads of one key/value head, so that keys and
values are not repeated. Off a TPU the kernel runs in Pallas's interpreter,
correct but slow.
"""

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernels,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as masks,
)

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention import reference

SLOTS = 128  # tokens that the kernel takes at least, and multiples of them
_BLOCK = 512  # tokens, where `compute.attention_block` does not say


def check_length(length: int, shards: int) -> None:
  """Raises `ConfigError` for row lengths that the kernel cannot cut."""
  if length % (SLOTS * shards):
    allowed = SLOTS * shards
    raise ConfigError(
      f"train.row_length={length} must be a multiple of {SLOTS} tokens x "
      f"mesh.sequence={shards} for splash attention: set "
      f"--config.train.row_length={-(-length // allowed) * allowed} or "
      "--config.compute.attention=xla"
    )


def make_kernel(
  length: int,
  heads_per_key: int,
  *,
  shards: int,
  block: int,
  interpret: bool,
  name: str,
) -> kernels.SplashAttentionKernel:
  """Makes a causal kernel for rows of `length` tokens in `shards` of queries.

  Its arrays say which blocks to skip; inside shard_map each device needs its
  own part, which `kernel.manual_sharding_spec` describes. `name` is the name of
  the residuals in checkpoint policies.
  """
  check_length(length, shards)
  mask = masks.MultiHeadMask(
    [masks.CausalMask((length, length))] * heads_per_key
  )
  return kernels.make_splash_mqa(
    mask,
    block_sizes=_block_sizes(block, length // shards, length),
    head_shards=1,
    q_seq_shards=shards,
    residual_checkpoint_name=name,
    interpret=interpret,
  )


def attend(
  kernel: kernels.SplashAttentionKernel,
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  segment_BT: jax.Array,
  segment_BS: jax.Array,
) -> jax.Array:
  """Attends to earlier tokens of the segment, [B, T, K, G, H]."""
  of_heads = jax.vmap(kernel, in_axes=(0, 0, 0, None))
  return _over_rows(
    of_heads,
    q_BTKGH,
    k_BSKH,
    v_BSKH,
    kernels.SegmentIds(q=segment_BT, kv=segment_BS),
  )


def attend_tree(
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  end_BS: jax.Array,
  *,
  first: int | jax.Array,
  block: int,
  interpret: bool,
  name: str,
) -> jax.Array:
  """Computes `reference.attend_packed` by splash, [B, T, K, G, H].

  Which blocks are skipped is known at run time only, so the kernel takes the
  mask of each row, T S bytes.
  """
  length, num_keys = q_BTKGH.shape[1], k_BSKH.shape[1]
  block_sizes = _block_sizes(block, length, num_keys)

  def of_heads(q_KGTH, k_KSH, v_KSH, visible_TS):
    kernel = kernels.make_splash_mqa(
      visible_TS[None],
      block_sizes=block_sizes,
      head_shards=1,
      q_seq_shards=1,
      residual_checkpoint_name=name,
      interpret=interpret,
    )
    return jax.vmap(_with_static_flags(kernel))(q_KGTH, k_KSH, v_KSH)

  visible_BTS = reference.visible(end_BS, length, first)
  return _over_rows(of_heads, q_BTKGH, k_BSKH, v_BSKH, visible_BTS)


def _with_static_flags(
  kernel: kernels.SplashAttentionKernel,
) -> kernels.SplashAttentionKernel:
  """Undoes what jax 0.10 does to a flag when a kernel is made while tracing.

  It becomes an array, and calling the kernel asks for its value.
  """
  for name in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
    info = getattr(kernel, name)
    setattr(kernel, name, info._replace(is_dynamic_mask=True))
  return kernel


def _over_rows(of_heads, q_BTKGH, k_BSKH, v_BSKH, marks) -> jax.Array:
  q_BTKGH = q_BTKGH * q_BTKGH.shape[-1] ** -0.5
  mixed_BKGTH = jax.vmap(of_heads)(
    q_BTKGH.transpose(0, 2, 3, 1, 4),
    k_BSKH.swapaxes(1, 2),
    v_BSKH.swapaxes(1, 2),
    marks,
  )
  return mixed_BKGTH.transpose(0, 3, 1, 2, 4)


def _block_sizes(
  block: int, num_queries: int, num_keys: int
) -> kernels.BlockSizes:
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
