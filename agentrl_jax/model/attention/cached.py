"""Chooses the kernel for attention over a KV cache, and runs it on a mesh.

Heads never meet, so devices that share them exchange nothing.
"""

import functools

import jax
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import ragged, reference
from agentrl_jax.model.attention.packed import platform_of, warn_once
from agentrl_jax.model.compute import ComputeConfig

_CACHE = sharding.spec(None, "kv_heads", None, None)


def choose(
  compute: ComputeConfig, platform: str, cache_length: int
) -> tuple[str, str]:
  """Returns the kernel for one token per slot, and why if it is a fallback.

  Raises `ConfigError` if `compute.cache_attention` names a kernel that cannot
  run.
  """
  obstacle = ragged.obstacle(cache_length)
  if compute.cache_attention == "auto":
    if platform != "tpu":
      return "xla", ""
    return (
      ("xla", f"ragged attention {obstacle}") if obstacle else ("ragged", "")
    )
  if compute.cache_attention == "ragged" and obstacle:
    raise ConfigError(
      f"compute.cache_attention='ragged' {obstacle}, or set "
      "--config.compute.cache_attention=auto, which takes what there is"
    )
  return compute.cache_attention, ""


def attend(
  q_BCKGH: jax.Array,
  k_BKSH: jax.Array,
  v_BKSH: jax.Array,
  position_BC: jax.Array,
  *,
  compute: ComputeConfig,
  mesh: Mesh | None,
) -> jax.Array:
  """Lets each token attend to its slot's positions up to its own position.

  Returns [B, C, K, G, H]. Plain XLA computes chunks of several tokens, since
  only a few slots are prefilled at a time.
  """
  if q_BCKGH.shape[1] > 1:
    return reference.attend_cache(q_BCKGH, k_BKSH, v_BKSH, position_BC)
  platform = platform_of(mesh)
  chosen, reason = choose(compute, platform, k_BKSH.shape[2])
  if reason:
    warn_once(f"decoding reads whole slots, however little they hold: {reason}")
  if chosen == "xla":
    return reference.attend_cache(q_BCKGH, k_BKSH, v_BKSH, position_BC)
  attend_on_device = functools.partial(
    ragged.attend, interpret=platform != "tpu"
  )
  if sharding.is_split(mesh):
    query = _query_spec(mesh, q_BCKGH.shape[3])
    attend_on_device = jax.shard_map(
      attend_on_device,
      mesh=mesh,
      in_specs=(query, _CACHE, _CACHE, jax.sharding.PartitionSpec()),
      out_specs=query,
      check_vma=False,  # kernels do not say over what they vary
    )
  mixed_BKGH = attend_on_device(
    q_BCKGH[:, 0], k_BKSH, v_BKSH, position_BC[:, 0] + 1
  )
  return mixed_BKGH[:, None]


def _query_spec(mesh: Mesh, num_queries: int) -> jax.sharding.PartitionSpec:
  """Splits queries [B, K, G, H] as the kernel that makes them is split."""
  split = sharding.spec_on(mesh, None, "kv_heads", "heads", None)
  if num_queries % sharding.axis_size(mesh, split[2]):
    return sharding.spec(None, "kv_heads", None, None)
  return split
