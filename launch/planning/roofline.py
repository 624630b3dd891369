"""Roofline of a program: its least time, and the resource that limits it.

Three things take time: products, the chip's memory, the links between chips.
If they overlap perfectly, a step takes as long as the longest; if they do not
overlap at all, their sum. Real steps lie between.

Links: a group of chips moves data along every axis of the grid that it spans,
both ways round if the axis is a ring, one way if it ends. Chips are at their
place in the mesh; links that two groups share are counted fully for both.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from launch.planning.chips import Chip, Slice
from launch.planning.collectives import Collective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
  """Seconds of one run of a program, per chip."""

  compute_s: float
  memory_s: float
  links_s: float

  @property
  def step_s(self) -> float:
    """The bound: the longest of the three."""
    return max(self.compute_s, self.memory_s, self.links_s)

  @property
  def in_turn_s(self) -> float:
    """Seconds without any overlap."""
    return self.compute_s + self.memory_s + self.links_s

  @property
  def binds(self) -> str:
    """The resource that sets the bound."""
    parts: Mapping[str, float] = {
      "compute": self.compute_s,
      "memory": self.memory_s,
      "links": self.links_s,
    }
    return max(parts, key=lambda name: parts[name])


def roofline(
  chip: Chip,
  *,
  executed_flops: float,
  moved: float,
  exchanges: Sequence[Collective],
  slice_: Slice,
  coordinates: Sequence[tuple[int, ...]],
) -> Roofline:
  """Computes the roofline; `executed_flops` and `moved` are of one chip."""
  return Roofline(
    compute_s=executed_flops / chip.flops,
    memory_s=moved / chip.memory_bandwidth,
    links_s=sum(
      one.total_bytes / bandwidth(slice_, [coordinates[n] for n in one.group])
      for one in exchanges
    ),
  )


def bandwidth(slice_: Slice, members: Sequence[tuple[int, ...]]) -> float:
  """Bytes per second into each chip of a group, over the axes it spans."""
  links = 0
  for axis, (size, wraps) in enumerate(
    zip(slice_.dims, slice_.wraps, strict=True)
  ):
    spanned = len({place[axis] for place in members})
    if spanned > 1:
      links += 2 if wraps and spanned == size else 1
  return max(links, 1) * slice_.chip.link_bandwidth


_SPLASH_BLOCK = 512  # tokens, of queries and of keys


@dataclasses.dataclass(frozen=True)
class Flops:
  """Operations of all chips together, in one run of a program."""

  needed: float
  executed: float


def layer_weights(c: ModelConfig) -> int:
  """Number of a layer's weights that each token is multiplied by."""
  queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  attention = 2 * c.width * queries + 2 * c.width * keys
  return attention + 3 * c.width * c.mlp_width


def head_weights(c: ModelConfig) -> int:
  """Size of the output matrix."""
  return c.width * c.vocab_size


def num_params(c: ModelConfig) -> int:
  """Trained numbers of products and embedding; norms are left out."""
  embeddings = 1 if c.tied_embedding else 2
  return c.num_layers * layer_weights(c) + embeddings * head_weights(c)


def attention(c: ModelConfig, keys: float) -> float:
  """Operations of a token's scores over `keys`, and of mixing their values."""
  return 4 * c.num_heads * c.head_dim * keys


def gradient(
  c: ModelConfig,
  compute: ComputeConfig,
  *,
  tokens: int,
  row_length: int,
  segment: float,
  kernel: bool,
  frozen: bool = False,
) -> Flops:
  """Forward and backward over packed rows, and the log-probabilities.

  `segment` is the mean length of a token's segment; `kernel` says that
  attention is a kernel which never keeps its scores. If the weights are
  `frozen` under adapters, none has a gradient, and adapters cost nothing.
  """
  layers, head = c.num_layers * layer_weights(c), head_weights(c)
  passes = 2 if frozen else 3  # forward, to the inputs, to the weights
  needed = 2 * passes * (layers + head) + 3 * c.num_layers * attention(
    c, segment / 2
  )
  keys = keys_visited(compute, row_length, kernel=kernel)
  attended = c.num_layers * attention(c, keys)
  again = 0.0
  if compute.remat in ("full", "attention"):
    # The layer's last product is no input of any gradient.
    again = 2 * (layers - c.num_layers * c.width * c.mlp_width)
  attended_again = attended * _attention_again(compute.remat, kernel)
  executed = 2 * passes * layers + again + 3 * attended + attended_again
  executed += 2 * (passes + 1) * head  # its logits are computed again
  return Flops(needed * tokens, executed * tokens)


def _attention_again(remat: str, kernel: bool) -> float:
  """Attention computed beyond one forward and two backward passes.

  In forward passes. The kernel's two backward parts each compute the scores and
  their slopes: 7 products for the 4 of two passes. A remat policy that drops
  attention's output runs it forward again; one that keeps the output and not
  the scores computes these.
  """
  dropped = remat in ("full", "dots")
  if kernel:
    return 1.5 + dropped
  return {"attention": 0.5}.get(remat, float(dropped))


def keys_visited(
  compute: ComputeConfig, row_length: int, *, kernel: bool
) -> float:
  """Keys per query that are multiplied, masked ones included."""
  block = compute.attention_block
  if kernel:
    block = min(block or _SPLASH_BLOCK, row_length)
  if not block:
    return row_length
  return (row_length + block) / 2


def extend(
  c: ModelConfig, *, tokens: int, context: int, with_head: bool
) -> Flops:
  """Tokens fed to slots that attend to `context` positions of a cache."""
  weights = c.num_layers * layer_weights(c)
  if with_head:
    weights += head_weights(c)
  each = 2 * weights + c.num_layers * attention(c, context)
  return Flops(each * tokens, each * tokens)
