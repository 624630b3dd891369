"""Which kernel computes attention over a cache, and on which device what.

Heads never meet, so devices that share them share nothing else.
"""

import functools

import jax
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import ragged, reference
from agentrl_jax.model.attention.packed import platform_of, warn_once
from agentrl_jax.model.compute import ComputeConfig

_QUERY = sharding.spec(None, "kv_heads", None, None)
_CACHE = sharding.spec(None, "kv_heads", None, None)


def choose(
  compute: ComputeConfig, platform: str, cache_length: int
) -> tuple[str, str]:
  """The kernel for a step of one token a slot, and why it is not the usual one.

  Raises `ConfigError` if `compute.cache_attention` names one that cannot do it.
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
  """Each token attends to its slot's positions up to its own position.

  Returns [B, C, K, G, H]. Chunks of several tokens are computed by plain XLA:
  prompts are fed a few slots at a time.
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
    attend_on_device = jax.shard_map(
      attend_on_device,
      mesh=mesh,
      in_specs=(_QUERY, _CACHE, _CACHE, jax.sharding.PartitionSpec()),
      out_specs=_QUERY,
      check_vma=False,  # kernels do not say over what they vary
    )
  mixed_BKGH = attend_on_device(
    q_BCKGH[:, 0], k_BKSH, v_BKSH, position_BC[:, 0] + 1
  )
  return mixed_BKGH[:, None]
