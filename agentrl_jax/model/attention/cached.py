"""Chooses the kernel for attention over a KV cache, and runs it on a mesh.

Heads never meet, so devices that share them exchange nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import cache as kv
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import paged, reference
from agentrl_jax.model.attention.packed import platform_of, warn_once
from agentrl_jax.model.compute import ComputeConfig

_CACHE = sharding.spec(None, "kv_heads", None, None)


def choose(
  compute: ComputeConfig, platform: str, page_size: int
) -> tuple[str, str]:
  """Returns the kernel for one token per slot, and why if it is a fallback.

  Raises `ConfigError` if `compute.cache_attention` names a kernel that cannot
  run.
  """
  obstacle = paged.obstacle(page_size)
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
  cached: Sequence[jax.Array],
  page_BW: jax.Array,
  position_BC: jax.Array,
  sink_KG: jax.Array | None = None,
  *,
  window: int = 0,
  compute: ComputeConfig,
  mesh: Mesh | None,
) -> jax.Array:
  """Lets each token attend to its sequence's positions up to its own position.

  `cached` are keys and values [N, K, T, H], or keys alone, whose values are the
  keys; those are of one head, and on every device. Of these it sees the last
  `window`, where that is not 0. `sink_KG` are scores of `reference.softmax`.
  Returns [B, C, K, G, H]; of a sequence at position -1,
  nothing is read, and its result means nothing. The plain form, which also
  computes chunks of several tokens, copies the pages to rows first.
  """
  if q_BCKGH.shape[1] == 1:
    platform = platform_of(mesh)
    chosen, reason = choose(compute, platform, cached[0].shape[2])
    if reason:
      warn_once(f"decoding copies the pages that it reads: {reason}")
    if chosen == "ragged":
      mixed_BKGH = _on_devices(
        functools.partial(
          paged.attend, window=window, interpret=platform != "tpu"
        ),
        mesh,
        (q_BCKGH[:, 0], tuple(cached)),
        (page_BW, position_BC[:, 0] + 1),
        sink_KG,
      )
      return mixed_BKGH[:, None]
  rows = [kv.take_pages(x, page_BW) for x in cached]
  return reference.attend_cache(
    q_BCKGH, rows[0], rows[-1], position_BC, sink_KG, window=window
  )


def _on_devices(
  attend: Callable[..., jax.Array],
  mesh: Mesh | None,
  arrays: tuple[jax.Array, tuple[jax.Array, ...]],
  places: tuple[jax.Array, ...],
  sink_KG: jax.Array | None,
) -> jax.Array:
  """Calls a kernel with queries, keys and values of each device's heads.

  Keys that are their own values are whole on each, and only queries are split.
  `places` say which keys are whose, and are the same on all devices.
  """
  queries, cached = arrays
  if not sharding.is_split(mesh):
    return attend(*arrays, *places, sink_KG)
  query, of_cache = _query_spec(mesh, queries.shape[2]), _CACHE
  if len(cached) == 1:
    query, of_cache = sharding.spec(None, None, "kv_heads", None), jax.P()
  on_device = jax.shard_map(
    attend,
    mesh=mesh,
    in_specs=(
      query,
      (of_cache,) * len(cached),
      *[jax.P()] * len(places),
      jax.P(*query[1:3]) if sink_KG is not None else None,
    ),
    out_specs=query,
    check_vma=False,  # kernels do not say over what they vary
  )
  return on_device(*arrays, *places, sink_KG)


def _query_spec(mesh: Mesh, num_queries: int) -> jax.sharding.PartitionSpec:
  """Splits queries [B, K, G, H] as the kernel that makes them is split."""
  split = sharding.spec_on(mesh, None, "kv_heads", "heads", None)
  if num_queries % sharding.axis_size(mesh, split[2]):
    return sharding.spec(None, "kv_heads", None, None)
  return split


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
  """The next tokens of some sequences, as arguments of `Policy.extend`."""

  token_BC: jax.Array
  start_B: jax.Array
  length_B: jax.Array
  page_BW: jax.Array
  # The state that each row continues; one outside of them is dropped. None is
  # for models without states.
  state_B: jax.Array | None = None

  def positions(self, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the position of each token, and where its entry is written.

    Padding is written past the end, where it is dropped.
    """
    offset_C = jnp.arange(self.token_BC.shape[1])
    position_BC = self.start_B[:, None] + offset_C
    is_token_BC = offset_C < self.length_B[:, None]
    end = self.page_BW.shape[1] * page_size
    return position_BC, jnp.where(is_token_BC, position_BC, end)

  def attend(
    self,
    q_BCKGH: jax.Array,
    cached: Sequence[jax.Array],
    position_BC: jax.Array,
    **how: Any,
  ) -> jax.Array:
    """Lets the tokens attend; `cached` and `how` are those of `attend`."""
    is_read_B1 = self.length_B[:, None] > 0
    position_BC = jnp.where(is_read_B1, position_BC, -1)
    return attend(q_BCKGH, cached, self.page_BW, position_BC, **how)


class ChunkRows:
  """Joins arrays of several chunks to rows of one token, and splits them.

  A single chunk keeps its shape.
  """

  def __init__(self, shapes: Sequence[tuple[int, ...]]):
    self._shapes = [(shape[0], shape[1]) for shape in shapes]

  def join(self, parts: Sequence[jax.Array]) -> jax.Array:
    """Joins [B, C, ...] of each chunk to [N, 1, ...]."""
    if len(parts) == 1:
      return parts[0]
    rows = [x.reshape(-1, 1, *x.shape[2:]) for x in parts]
    return jnp.concatenate(rows)

  def split(self, x: jax.Array) -> list[jax.Array]:
    """Splits [N, 1, ...] to [B, C, ...] of each chunk."""
    if len(self._shapes) == 1:
      return [x]
    ends = list(itertools.accumulate(b * c for b, c in self._shapes))
    parts = jnp.split(x, ends[:-1])
    return [
      part.reshape(*shape, *x.shape[2:])
      for part, shape in zip(parts, self._shapes, strict=True)
    ]
