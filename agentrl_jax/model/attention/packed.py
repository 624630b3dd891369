"""Chooses the kernel for attention over packed rows, and runs it on a mesh.

Heads and rows never meet, so devices that share them exchange nothing. Tokens
do meet: where a row is split over `sequence`, each device keeps its queries and
fetches the keys and values of the whole row.
"""

import functools

import jax
import jax.numpy as jnp
from absl import logging
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import reference, splash
from agentrl_jax.model.compute import ATTENDED, ComputeConfig

_Q = sharding.spec("rows", "tokens", "kv_heads", None, None)
_KV = sharding.spec("rows", "tokens", "kv_heads", None)
_OF_PLATFORM = {"tpu": "splash", "gpu": "cudnn", "cuda": "cudnn"}


def platform_of(mesh: Mesh | None) -> str:
  """Returns the platform of the mesh to compile for, present or not."""
  if mesh is None:
    return jax.default_backend()
  return mesh.devices.flat[0].platform


def choose(
  compute: ComputeConfig, platform: str, head_dim: int
) -> tuple[str, str]:
  """Returns the kernel's name and, if it is a fallback, the reason.

  Raises `ConfigError` if `compute.attention` names a kernel that cannot run.
  """
  if compute.attention == "auto":
    chosen = _OF_PLATFORM.get(platform, "xla")
    obstacle = _obstacle(chosen, compute, platform, head_dim)
    return ("xla", f"{chosen} {obstacle}") if obstacle else (chosen, "")
  obstacle = _obstacle(compute.attention, compute, platform, head_dim)
  if obstacle:
    raise ConfigError(
      f"compute.attention={compute.attention!r} {obstacle}; set "
      "--config.compute.attention=auto, which takes what there is"
    )
  return compute.attention, ""


def attend(
  q_BTKGH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  *,
  segment_BT: jax.Array,
  compute: ComputeConfig,
  mesh: Mesh | None,
) -> jax.Array:
  """Each token attends to earlier tokens of its own segment, itself included.

  Returns [B, T, K, G, H]. See `attention.attend_packed` for the arithmetic.
  """
  length, heads_per_key, channels = (q_BTKGH.shape[n] for n in (1, 3, 4))
  platform = platform_of(mesh)
  chosen, reason = choose(compute, platform, channels)
  if reason:
    warn_once(f"attention is computed by plain XLA, in memory T x T: {reason}")
  shards = mesh.shape["sequence"] if mesh is not None else 1
  kernel = None
  if chosen == "splash":
    kernel = splash.make_kernel(
      length,
      heads_per_key,
      shards=shards,
      block=compute.attention_block,
      interpret=platform != "tpu",
      name=ATTENDED,
    )
  attend_on_device = functools.partial(
    _attend_on_device, chosen, compute.attention_block
  )
  if sharding.is_split(mesh):
    attend_on_device = _on_devices(attend_on_device, chosen, kernel, mesh)
  mixed = attend_on_device(kernel, q_BTKGH, k_BTKH, v_BTKH, segment_BT)
  return checkpoint_name(mixed, ATTENDED)


def _on_devices(attend_on_device, chosen: str, kernel, mesh: Mesh):
  of_kernel = None
  if kernel is not None:
    of_kernel = kernel.manual_sharding_spec(
      NamedSharding(mesh, PartitionSpec(None, "sequence"))
    )
  return jax.shard_map(
    functools.partial(attend_on_device, is_split=mesh.shape["sequence"] > 1),
    mesh=mesh,
    in_specs=(of_kernel, _Q, _KV, _KV, sharding.BATCH_SPEC),
    out_specs=_Q,
    check_vma=chosen == "xla",  # kernels do not say over what they vary
  )


def _attend_on_device(
  chosen, block, kernel, q, k, v, segment_BT, is_split=False
):
  """Attends with the queries, heads and rows of one device."""
  segment_BS, first = segment_BT, 0
  if is_split:
    k, v, segment_BS = (
      jax.lax.all_gather(x, "sequence", axis=1, tiled=True)
      for x in (k, v, segment_BT)
    )
    first = jax.lax.axis_index("sequence") * q.shape[1]
  if chosen == "splash":
    return splash.attend(kernel, q, k, v, segment_BT, segment_BS)
  if chosen == "cudnn":
    return _attend_cudnn(q, k, v, segment_BT, segment_BS, first)
  return reference.attend_packed(
    q, k, v, segment_BT, segment_BS, first=first, block=block
  )


def _obstacle(
  chosen: str, compute: ComputeConfig, platform: str, head_dim: int
) -> str:
  """Explains why this kernel cannot run; empty if it can."""
  if chosen != "cudnn":
    return ""
  if _OF_PLATFORM.get(platform) != "cudnn":
    return f"runs on NVIDIA GPUs, and this is a {platform}"
  return _cudnn_obstacle(compute.dtype, head_dim)


def _cudnn_obstacle(dtype: str, head_dim: int) -> str:
  """Explains why cuDNN cannot compute it; empty if it can."""
  if dtype not in ("bfloat16", "float16"):
    return f"computes in bfloat16 and float16, and compute.dtype={dtype!r}"
  if head_dim > 256 or head_dim % 8:
    return (
      "takes heads of up to 256 channels, a multiple of 8, and "
      f"model.head_dim={head_dim}"
    )
  return ""


def _attend_cudnn(
  q_BTKGH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  segment_BT: jax.Array,
  segment_BS: jax.Array,
  first: int | jax.Array,
) -> jax.Array:
  """Computes `reference.attend_packed` by cuDNN's kernel, [B, T, K, G, H].

  Scores stay in fast memory. A bias per pair of tokens hides tokens of other
  segments: B T S numbers for all heads, so rows of 8192 tokens take 128 MiB
  each in bfloat16.
  """
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


@functools.cache
def warn_once(sentence: str) -> None:
  """Logs a warning, once per text."""
  logging.warning(sentence)
