"""Attention over packed rows by cuDNN's kernel for NVIDIA GPUs.

Scores stay in fast memory. That tokens of other segments are not seen is told
by a bias of one number per pair of tokens, B T S in all, for all heads: rows of
8192 tokens take 128 MiB each of bfloat16.
"""

import jax
import jax.numpy as jnp


def obstacle(dtype: str, head_dim: int) -> str:
  """Why cuDNN cannot do it; empty if it can."""
  if dtype not in ("bfloat16", "float16"):
    return f"computes in bfloat16 and float16, and compute.dtype={dtype!r}"
  if head_dim > 256 or head_dim % 8:
    return (
      "takes heads of up to 256 channels, a multiple of 8, and "
      f"model.head_dim={head_dim}"
    )
  return ""


def attend(
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  segment_BT: jax.Array,
  segment_BS: jax.Array,
  first: int | jax.Array,
) -> jax.Array:
  """What `attention.attend_packed` computes, [B, T, K, G, H]."""
  num_rows, length, _, _, channels = q_BTKGH.shape
  visible_BTS = segment_BT[:, :, None] == segment_BS[:, None, :]
  is_whole = length == k_BSKH.shape[1]
  if not is_whole:  # the kernel's own causal mask starts at the first key
    query_T = first + jnp.arange(length)
    visible_BTS &= jnp.arange(k_BSKH.shape[1]) <= query_T[:, None]
  mixed_BTNH = jax.nn.dot_product_attention(
    q_BTKGH.reshape(num_rows, length, -1, channels),
    k_BSKH,
    v_BSKH,
    mask=visible_BTS[:, None],
    is_causal=is_whole,
    implementation="cudnn",
  )
  return mixed_BTNH.reshape(q_BTKGH.shape)
