"""Chooses the kernel for attention over packed rows, and runs it on a mesh.

Rows are sequences one after another, or prefix trees (`data.packing`).
Heads and rows never meet, so devices that share them exchange nothing. Tokens
do meet: where a row is split over `sequence`, each device keeps its queries and
fetches the keys and values of the whole row.
"""

import functools

import jax
import jax.numpy as jnp
from absl import logging
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.attention import blockwise, reference, splash
from agentrl_jax.model.compute import ATTENDED, ComputeConfig

_Q = sharding.spec("rows", "tokens", "kv_heads", None, None)
_KV = sharding.spec("rows", "tokens", "kv_heads", None)
_MORE = {
  "window": sharding.spec(),
  "begin_BT": sharding.BATCH_SPEC,
  "sink_KG": sharding.spec("kv_heads", None),
}
_OF_PLATFORM = {"tpu": "splash", "gpu": "cudnn", "cuda": "cudnn"}
# Tokens of a block on a CPU, and of the longest row that is computed at once:
# shorter rows have too few blocks that nobody sees. On a core with AVX-512 and
# 512 tokens of 9 heads of 64, forward and backward take 23 ms against 30 ms at
# once, and 10 ms against 37 ms if they are a tree of four prompts.
_CPU_BLOCK, _CPU_WHOLE = 64, 256


def platform_of(mesh: Mesh | None) -> str:
  """Returns the platform of the mesh to compile for, present or not."""
  if mesh is None:
    return jax.default_backend()
  return mesh.devices.flat[0].platform


def choose(
  compute: ComputeConfig,
  platform: str,
  head_dim: int,
  *,
  has_sinks: bool = False,
) -> tuple[str, str]:
  """Returns the kernel's name and, if it is a fallback, the reason.

  Raises `ConfigError` if `compute.attention` names a kernel that cannot run.
  """
  is_auto, chosen = compute.attention == "auto", compute.attention
  if is_auto:
    chosen = _OF_PLATFORM.get(platform, "xla")
  obstacle = ""
  if chosen == "cudnn":
    obstacle = _cudnn_obstacle(compute.dtype, platform, head_dim, has_sinks)
  if is_auto:
    return ("xla", f"{chosen} {obstacle}") if obstacle else (chosen, "")
  if obstacle:
    raise ConfigError(
      f"compute.attention={compute.attention!r} {obstacle}; set "
      "--config.compute.attention=auto, which takes what there is"
    )
  return compute.attention, ""


def block_of(platform: str, chosen: str, length: int) -> int:
  """Returns the tokens of a block that `compute.attention_block=0` stands for.

  0 leaves it to the kernel; plain XLA then takes all pairs of a row at once.
  """
  if platform != "cpu" or chosen != "xla" or length <= _CPU_WHOLE:
    return 0
  return _CPU_BLOCK


def attend(
  q_BTKGH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  *,
  segment_BT: jax.Array | None,
  end_BT: jax.Array | None = None,
  begin_BT: jax.Array | None = None,
  window: int | jax.Array = 0,
  sink_KG: jax.Array | None = None,
  compute: ComputeConfig,
  mesh: Mesh | None,
) -> jax.Array:
  """Each token attends to earlier tokens of its own segment, itself included.

  Given the ends of subtrees in place of segments, it attends to itself and its
  ancestors. Of these it sees the last `window`, where that is not 0; in trees,
  those from `begin_BT` on. `sink_KG` are scores of `reference.softmax`. Returns
  [B, T, K, G, H]. See `attention.blockwise` for the rule.
  """
  length, channels = q_BTKGH.shape[1], max(q_BTKGH.shape[4], v_BTKH.shape[3])
  platform = platform_of(mesh)
  chosen, reason = choose(
    compute, platform, channels, has_sinks=sink_KG is not None
  )
  if reason:
    warn_once(f"attention is computed by plain XLA, in memory T x T: {reason}")
  shards = mesh.shape["sequence"] if mesh is not None else 1
  settings = {
    "block": compute.attention_block or block_of(platform, chosen, length),
    "interpret": platform != "tpu",
    "name": ATTENDED,
  }
  if chosen == "splash":
    splash.check_length(length, shards, has_begin=begin_BT is not None)
  attend_on_device = functools.partial(
    _attend_on_device, chosen, settings, end_BT is not None
  )
  given = {
    "window": None if isinstance(window, int) and not window else window,
    "begin_BT": begin_BT,
    "sink_KG": sink_KG,
  }
  more = {name: jnp.asarray(x) for name, x in given.items() if x is not None}
  if sharding.is_split(mesh):
    attend_on_device = jax.shard_map(
      functools.partial(attend_on_device, is_split=shards > 1),
      mesh=mesh,
      in_specs=(
        _Q,
        _KV,
        _KV,
        sharding.BATCH_SPEC,
        {name: _MORE[name] for name in more},
      ),
      out_specs=_Q,
      check_vma=chosen == "xla",  # kernels do not say over what they vary
    )
  mark_BT = segment_BT if end_BT is None else end_BT
  mixed = attend_on_device(q_BTKGH, k_BTKH, v_BTKH, mark_BT, more)
  return checkpoint_name(mixed, ATTENDED)


def _attend_on_device(
  chosen, settings, is_tree, q, k, v, mark_BS, more, is_split=False
):
  """Attends with the queries, heads and rows of one device.

  `mark_BS` are segments, or the ends of subtrees if `is_tree`; `more` may have
  `window`, `begin_BT` and `sink_KG`.
  """
  first = 0
  if is_split:
    k, v, mark_BS = (
      jax.lax.all_gather(x, "sequence", axis=1, tiled=True)
      for x in (k, v, mark_BS)
    )
    first = jax.lax.axis_index("sequence") * q.shape[1]
  end_BS = mark_BS if is_tree else segment_ends(mark_BS)
  # Padding sees itself, so that it stays finite.
  end_BS = jnp.maximum(end_BS, jnp.arange(1, end_BS.shape[1] + 1))
  if "window" in more:
    # Between tokens of a sequence lie as many positions as places of the row.
    end_BS = jnp.minimum(end_BS, jnp.arange(end_BS.shape[1]) + more["window"])
  # Every device has a part of the sinks' gradient.
  sink_KG = sharding.varying_like(more.get("sink_KG"), q)
  limits = end_BS, more.get("begin_BT"), sink_KG
  if chosen == "splash":
    # Trees differ more than sequences in what can be skipped.
    return splash.attend(
      q, k, v, *limits, first=first, by_row=is_tree, **settings
    )
  if chosen == "cudnn":
    return _attend_cudnn(q, k, v, *limits[:2], first=first)
  if settings["block"]:
    return blockwise.attend(
      q, k, v, *limits, first=first, block=settings["block"]
    )
  return reference.attend_packed(q, k, v, *limits, first=first)


def first_visible(position_BT: jax.Array, window: int) -> jax.Array:
  """Returns the first token of a tree that each token's window holds, [B, T].

  0 where the window holds all ancestors. Ancestors stand before a token by
  depth, so that the window holds the last ones; that of a depth is the last
  token of that depth before it.
  """
  token_T = jnp.arange(position_BT.shape[1])

  def of_row(position_T: jax.Array) -> jax.Array:
    order_T = jnp.argsort(position_T)  # by depth, then by place
    wanted_T = position_T - window + 1
    place = functools.partial(jnp.searchsorted, position_T[order_T], wanted_T)
    low_T, high_T = place(side="left"), place(side="right")
    for _ in range(len(token_T).bit_length()):
      middle_T = (low_T + high_T) // 2
      is_before_T = order_T[middle_T] <= token_T
      low_T = jnp.where(is_before_T, middle_T, low_T)
      high_T = jnp.where(is_before_T, high_T, middle_T)
    return jnp.where(wanted_T > 0, order_T[low_T], 0)

  return jax.vmap(of_row)(position_BT)


def segment_ends(segment_BT: jax.Array) -> jax.Array:
  """Returns the index after the last token of each token's segment, [B, T].

  0 for padding, which is segment 0.
  """
  length = segment_BT.shape[1]
  following_BT = jnp.pad(segment_BT[:, 1:], ((0, 0), (0, 1)))
  is_last_BT = (segment_BT != following_BT).at[:, -1].set(True)
  end_BT = jnp.where(is_last_BT, jnp.arange(1, length + 1), length)
  end_BT = jax.lax.cummin(end_BT, axis=1, reverse=True)
  return jnp.where(segment_BT > 0, end_BT, 0)


def _cudnn_obstacle(
  dtype: str, platform: str, head_dim: int, has_sinks: bool
) -> str:
  """Explains why cuDNN cannot compute it; empty if it can."""
  if _OF_PLATFORM.get(platform) != "cudnn":
    return f"runs on NVIDIA GPUs, and this is a {platform}"
  if has_sinks:
    return "knows no sinks, and model.sinks=True"
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
  end_BS: jax.Array,
  begin_BT: jax.Array | None,
  *,
  first: int | jax.Array,
) -> jax.Array:
  """Computes `reference.attend_packed` by cuDNN's kernel, [B, T, K, G, H].

  Scores stay in fast memory. A bias per pair of tokens hides tokens of other
  segments: B T S numbers for all heads, so rows of 8192 tokens take 128 MiB
  each in bfloat16.
  """
  num_rows, length, _, _, channels = q_BTKGH.shape
  scale = channels**-0.5
  # The kernel takes queries and values of as many channels.
  most = max(channels, v_BSKH.shape[-1])
  num_values, shape = v_BSKH.shape[-1], (*q_BTKGH.shape[:-1], most)
  q_BTKGH, k_BSKH, v_BSKH = (
    jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])])
    for x in (q_BTKGH, k_BSKH, v_BSKH)
  )
  is_whole = length == k_BSKH.shape[1]
  visible_BTS = reference.visible(end_BS, length, first, begin_BT)
  mixed_BTNH = jax.nn.dot_product_attention(
    q_BTKGH.reshape(num_rows, length, -1, most),
    k_BSKH,
    v_BSKH,
    mask=visible_BTS[:, None],
    scale=scale,
    is_causal=is_whole,  # the kernel's own mask starts at the first key
    implementation="cudnn",
  )
  return mixed_BTNH.reshape(shape)[..., :num_values]


@functools.cache
def warn_once(sentence: str) -> None:
  """Logs a warning, once per text."""
  logging.warning(sentence)
