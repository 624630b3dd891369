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
  queries = _fitting(block or _BLOCK, length // shards)
  keys = _fitting(block or _BLOCK, length)
  return kernels.make_splash_mqa(
    mask,
    block_sizes=kernels.BlockSizes(
      block_q=queries,
      block_kv=keys,
      block_q_dkv=queries,
      block_kv_dkv=keys,
      block_q_dq=queries,
      block_kv_dq=keys,
    ),
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
  """Computes `reference.attend_packed` by splash, [B, T, K, G, H]."""
  q_BTKGH = q_BTKGH * q_BTKGH.shape[-1] ** -0.5
  of_heads = jax.vmap(kernel, in_axes=(0, 0, 0, None))
  of_rows = jax.vmap(of_heads)
  mixed_BKGTH = of_rows(
    q_BTKGH.transpose(0, 2, 3, 1, 4),
    k_BSKH.swapaxes(1, 2),
    v_BSKH.swapaxes(1, 2),
    kernels.SegmentIds(q=segment_BT, kv=segment_BS),
  )
  return mixed_BKGTH.transpose(0, 3, 1, 2, 4)


def _fitting(block: int, length: int) -> int:
  """Returns the largest multiple of SLOTS <= `block` that divides `length`."""
  parts = length // SLOTS
  most = max(1, min(block // SLOTS, parts))
  return SLOTS * next(n for n in range(most, 0, -1) if parts % n == 0)
