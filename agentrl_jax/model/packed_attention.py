"""Which kernel computes attention over packed rows, and on which device what.

Heads and rows never meet, so devices that share them share nothing else. Tokens
do meet: where a row is split over `sequence`, each device keeps its queries and
fetches the keys and values of the whole row.
"""

import functools

import jax
from absl import logging
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import (
  attention,
  attention_cudnn,
  attention_splash,
  sharding,
)
from agentrl_jax.model.compute import ATTENDED, ComputeConfig

_Q = sharding.spec("rows", "tokens", "kv_heads", None, None)
_KV = sharding.spec("rows", "tokens", "kv_heads", None)
_OF_PLATFORM = {"tpu": "splash", "gpu": "cudnn", "cuda": "cudnn"}


def platform_of(mesh: Mesh | None) -> str:
  """Of the devices to compile for, which need not be at hand."""
  if mesh is None:
    return jax.default_backend()
  return mesh.devices.flat[0].platform


def choose(
  compute: ComputeConfig, platform: str, head_dim: int
) -> tuple[str, str]:
  """The kernel's name, and why it is not the platform's own, if it is not.

  Raises `ConfigError` if `compute.attention` names one that cannot do it.
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
    tell(f"attention is computed by plain XLA, in memory T x T: {reason}")
  shards = mesh.shape["sequence"] if mesh is not None else 1
  kernel = None
  if chosen == "splash":
    kernel = attention_splash.make_kernel(
      length,
      heads_per_key,
      shards=shards,
      block=compute.attention_block,
      interpret=platform != "tpu",
      name=ATTENDED,
    )
  here = functools.partial(_attend_here, chosen, compute.attention_block)
  if sharding.is_split(mesh):
    here = _on_devices(here, chosen, kernel, mesh)
  mixed = here(kernel, q_BTKGH, k_BTKH, v_BTKH, segment_BT)
  return checkpoint_name(mixed, ATTENDED)


def _on_devices(here, chosen: str, kernel, mesh: Mesh):
  of_kernel = None
  if kernel is not None:
    of_kernel = kernel.manual_sharding_spec(
      NamedSharding(mesh, PartitionSpec(None, "sequence"))
    )
  return jax.shard_map(
    functools.partial(here, is_split=mesh.shape["sequence"] > 1),
    mesh=mesh,
    in_specs=(of_kernel, _Q, _KV, _KV, sharding.BATCH_SPEC),
    out_specs=_Q,
    check_vma=chosen == "xla",  # kernels do not say over what they vary
  )


def _attend_here(chosen, block, kernel, q, k, v, segment_BT, is_split=False):
  """With the queries, heads and rows of one device."""
  segment_BS, first = segment_BT, 0
  if is_split:
    k, v, segment_BS = (
      jax.lax.all_gather(x, "sequence", axis=1, tiled=True)
      for x in (k, v, segment_BT)
    )
    first = jax.lax.axis_index("sequence") * q.shape[1]
  if chosen == "splash":
    return attention_splash.attend(kernel, q, k, v, segment_BT, segment_BS)
  if chosen == "cudnn":
    return attention_cudnn.attend(q, k, v, segment_BT, segment_BS, first)
  return attention.attend_packed(
    q, k, v, segment_BT, segment_BS, first=first, block=block
  )


def _obstacle(
  chosen: str, compute: ComputeConfig, platform: str, head_dim: int
) -> str:
  """Why this kernel cannot be had here; empty if it can."""
  if chosen != "cudnn":
    return ""
  if _OF_PLATFORM.get(platform) != "cudnn":
    return f"runs on NVIDIA GPUs, and this is a {platform}"
  return attention_cudnn.obstacle(compute.dtype, head_dim)


@functools.cache
def tell(sentence: str) -> None:
  """Warns once."""
  logging.warning(sentence)
