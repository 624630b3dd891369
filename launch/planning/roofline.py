"""Roofline of a program: its least time, and the resource that limits it.

Four things take time: products, the chip's memory, the links between chips,
and the data center network between slices. If they overlap as far as the
program lets them, a step takes as long as the longest, where products and
memory wait for synchronous exchanges; if they do not overlap at all, their sum.
Real steps lie between.

Products are counted by formula, for groups of equal attempts. Tokens that
attempts share are computed once in each row (`data.packing`).

Links: a group of chips moves data along every axis of the grid that it spans,
both ways round if the axis is a ring, one way if it ends. Chips are at their
place in the mesh; links that two groups share are counted fully for both.
Between slices each chip has its share of its host's network cards.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention import splash
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.recurrent.delta_rule import CHUNK
from launch.planning.chips import Chip, Slice
from launch.planning.compiler.collectives import Collective, between_slices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
  """Seconds of one run of a program, per chip."""

  compute_s: float
  memory_s: float
  links_s: float
  waiting_s: float  # part of `links_s` that nothing overlaps
  network_s: float  # between slices

  @property
  def step_s(self) -> float:
    """The bound: the longest of the four, after synchronous exchanges."""
    cores_s = max(self.compute_s, self.memory_s) + self.waiting_s
    return max(cores_s, self.links_s, self.network_s)

  @property
  def in_turn_s(self) -> float:
    """Seconds without any overlap."""
    return sum(self._parts.values())

  @property
  def binds(self) -> str:
    """The resource that sets the bound."""
    parts = self._parts
    return max(parts, key=lambda name: parts[name])

  @property
  def _parts(self) -> Mapping[str, float]:
    return {
      "compute": self.compute_s,
      "memory": self.memory_s,
      "links": self.links_s,
      "network": self.network_s,
    }


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
  within = [one for one in exchanges if one.num_slices == 1]
  seconds = [
    one.total_bytes / bandwidth(slice_, [coordinates[n] for n in one.group])
    for one in within
  ]
  return Roofline(
    compute_s=executed_flops / chip.flops,
    memory_s=moved / chip.memory_bandwidth,
    links_s=sum(seconds),
    waiting_s=sum(
      s for s, one in zip(seconds, within, strict=True) if not one.is_overlapped
    ),
    network_s=between_slices(exchanges) / chip.network_bandwidth,
  )


def bandwidth(slice_: Slice, members: Sequence[tuple[int, ...]]) -> float:
  """Bytes per second into each device of a group, over the axes it spans.

  The devices of one chip share its links. A group with all of them brings what
  they need to the chip once; the devices of a chip pass it on six times as
  fast as one link (docs.cloud.google.com/tpu/docs/tpu7x).
  """
  num_places = len(set(members))
  if num_places == 1:
    return 6 * slice_.chip.link_bandwidth
  share = len(members) / num_places / slice_.chip.devices
  links = 0
  for axis, (size, wraps) in enumerate(
    zip(slice_.dims, slice_.wraps, strict=True)
  ):
    spanned = len({place[axis] for place in members})
    if spanned > 1:
      links += 2 if wraps and spanned == size else 1
  return max(links, 1) * slice_.chip.link_bandwidth * share


@dataclasses.dataclass(frozen=True)
class Flops:
  """Operations of all chips together, in one run of a program."""

  needed: float
  executed: float
  imbalance: float = 1.0  # executed by the busiest chip, over the mean

  def of_busiest(self, num_chips: int) -> float:
    """Operations that the busiest of `num_chips` chips executes."""
    return self.executed * self.imbalance / num_chips

  def forward_share(self, *, frozen: bool) -> float:
    """Share of a gradient that a forward pass takes.

    A gradient needs a forward pass and two backward passes as long, or one if
    the weights are `frozen` under adapters; and executes more than it needs.
    """
    return self.needed / self.executed / (2 if frozen else 3)


def layers_weights(c: ModelConfig) -> int:
  """Number of all layers' weights that each token is multiplied by."""
  attending = sum(
    len(numbers) * attention_weights(of)
    for of, numbers in c.stacks.values()
    if not of.is_delta
  )
  # Of values those of the gate and of the output, too; and two rates.
  values = c.delta_heads * c.delta_value_dim
  remembering = c.delta_channels + 2 * (values + c.delta_heads)
  routers = c.num_mixtures * (c.num_experts + c.shared_gate)
  # Into what a layer reads of a token: of hidden states, and twice of its own.
  others = (
    c.num_delta * remembering
    + routers
    + 3 * (mlp_channels(c) + c.num_layers * c.layer_input_dim)
  )
  return attending + c.width * others


def attention_weights(c: ModelConfig) -> int:
  """Number of the weights of a layer's attention."""
  queries = c.num_heads * c.head_dim
  if not c.latent_dim:
    # None where those of another layer are read.
    keys = (0 if c.shares_kv else 2 - c.keys_as_values) * (
      c.num_kv_heads * c.head_dim
    )
    return c.width * ((2 + c.attention_gate) * queries + keys)
  values = c.num_heads * c.value_dim
  still = queries - c.num_heads * c.rotary_key_dim
  shared = c.width * (c.query_rank + c.latent_dim + c.rotary_key_dim)
  of_heads = (c.query_rank or c.width) * queries + c.width * values
  return shared + of_heads + c.latent_dim * (still + values)


def head_channels(c: ModelConfig) -> float:
  """Mean channels of a layer's heads."""
  stacks = c.stacks.values()
  return sum(len(n) * of.head_dim for of, n in stacks) / c.num_layers


def mlp_channels(c: ModelConfig) -> int:
  """Channels of all layers' MLPs that a token has: its experts', if any."""
  if not c.num_experts:
    return sum(len(n) * of.mlp_width for of, n in c.stacks.values())
  chosen = (c.experts_per_token + c.shared_experts) * c.mlp_width
  return c.num_mixtures * chosen + c.dense_layers * c.dense_mlp_width


def expert_params(c: ModelConfig, number: int) -> int:
  """Numbers in the matrices of so many experts of each layer."""
  return c.num_mixtures * number * 3 * c.width * c.mlp_width


def delta_flops(
  keys: int, values: int, *, is_tree: bool = False, chunk: int = CHUNK
) -> float:
  """Counts `delta_rule.chunked`, a token and head; a gradient adds twice.

  Products alone, of keys and values with so many channels. A tree's are those
  of the most parts that it can have, since all of them are computed.
  """
  inside = 4 * chunk * (keys + values) + (2 / 3 + 2) * chunk**2
  if not is_tree:
    return inside + 2 * chunk * keys + 6 * keys * values
  memory = keys + chunk
  link = 6 * chunk * keys + 4 * chunk**2 + 2 * memory**2 * values / chunk
  return inside + 2 * (link + 2 * memory * values)


def delta_bytes(c: ModelConfig, *, is_tree: bool) -> int:
  """Temporaries of a token in one layer's gradient, of all heads.

  Of heads with 128 channels, where one layer at a time is computed again, the
  compiler takes 14 KiB a token and head, and 32 KiB in a tree.
  """
  numbers = 32 if is_tree else 14
  return 4 * numbers * c.delta_heads * (c.delta_key_dim + c.delta_value_dim)


def head_weights(c: ModelConfig) -> int:
  """Size of the output matrix."""
  return c.width * c.vocab_size


def embedding_params(c: ModelConfig) -> int:
  """Numbers of the embeddings, and of the output matrix if it is another."""
  return (1 if c.tied_embedding else 2) * head_weights(c) + (
    c.vocab_size * c.num_layers * c.layer_input_dim
  )


def layer_params(c: ModelConfig) -> int:
  """Trained numbers of all layers; norms are left out."""
  others = expert_params(c, c.num_experts - c.experts_per_token)
  return layers_weights(c) + others


def num_params(c: ModelConfig) -> int:
  """Trained numbers of products and embedding; norms are left out."""
  return layer_params(c) + embedding_params(c)


def attention(c: ModelConfig, keys: float) -> float:
  """Operations of a token's scores over `keys`, and of mixing their values."""
  channels = head_channels(c)
  return 2 * c.num_heads * (channels + (c.value_dim or channels)) * keys


def attended(c: ModelConfig, keys: float) -> float:
  """Operations of all attending layers on a token that sees `keys`."""
  return (c.num_layers - c.num_delta) * attention(c, keys)


def recalled(c: ModelConfig, *, is_tree: bool = False) -> float:
  """Operations of all delta layers' states on a token, see `delta_flops`."""
  sizes = c.delta_key_dim, c.delta_value_dim
  return c.num_delta * c.delta_heads * delta_flops(*sizes, is_tree=is_tree)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempts:
  """Attempts of a group: mean tokens of each, and what they share."""

  prompt: int  # tokens that all attempts share, from the first on
  turns: int  # tokens of an attempt after these
  num: int  # attempts of a group

  def __post_init__(self) -> None:
    for name, least in (("prompt", 0), ("turns", 1)):
      if (found := getattr(self, name)) < least:
        raise ConfigError(f"--{name}={found} must be {least} or more")

  @property
  def length(self) -> int:
    """Tokens of one attempt."""
    return self.prompt + self.turns

  @property
  def running(self) -> int:
    """Mean tokens of an attempt that is being played."""
    return self.prompt + -(-self.turns // 2)

  @property
  def num_nodes(self) -> int:
    """Tokens of a group, shared ones once."""
    return self.prompt + self.num * self.turns


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedRow:
  """The mean row of an update."""

  of: Attempts
  prompts: float  # that are computed
  attempts: float

  @property
  def computed(self) -> float:
    """Tokens of a row, without padding."""
    return self.prompts * self.of.prompt + self.attempts * self.of.turns

  @property
  def tokens(self) -> float:
    """Tokens of the trajectories of a row."""
    return self.attempts * self.of.length

  def keys_needed(self, window: int = 0) -> float:
    """Mean keys that a computed token sees, of the last `window` if not 0.

    On average half of the prompt for a token of the prompt; all of the prompt
    and half of the turns for a token after it.
    """
    of_prompt = pairs_needed(self.of.prompt, window)
    of_turns = pairs_needed(self.of.length, window) - of_prompt
    pairs = self.prompts * of_prompt + self.attempts * of_turns
    return pairs / self.computed


def pack_attempts(
  attempts: Attempts, *, row_length: int, sharing: int
) -> PackedRow:
  """Counts what fits a row, about as `data.packing.pack` fills it.

  Rows have as many attempts of one group as they can hold; whole groups, and
  what is left of groups that are cut, share rows.
  """
  a, length = attempts, attempts.length
  if sharing == 1 or not a.prompt:
    number = row_length // length
    return PackedRow(of=a, prompts=number, attempts=number)
  most = min(sharing * row_length // length, (row_length - a.prompt) // a.turns)
  parts, rest = divmod(a.num, min(most, a.num))
  rows = float(parts)
  if most >= a.num:
    rows = 1 / min(row_length // a.num_nodes, most // a.num or 1)
  elif rest:
    rows += 1 / (row_length // (a.prompt + rest * a.turns))
  prompts = parts + bool(rest)
  return PackedRow(of=a, prompts=prompts / rows, attempts=a.num / rows)


def pairs_needed(length: int, window: int = 0) -> float:
  """Counts pairs of tokens of a sequence, the last `window` of each if not 0.

  A token and itself are half a pair.
  """
  near = min(length, window or length)
  return near * near / 2 + (length - near) * near


def keys_needed(length: int, window: int = 0) -> float:
  """Mean keys that a token of a sequence sees."""
  return pairs_needed(length, window) / length


def mean_over_layers(
  c: ModelConfig, of_window: Callable[[int], float]
) -> float:
  """Averages what depends on the window of a layer; 0 is none.

  Layers count by the channels of their heads.
  """
  share = sum(c.local_layers) / c.num_layers
  if not share:
    return of_window(0)
  if c.global_head_dim:
    share *= c.head_dim / head_channels(c)
  return share * of_window(c.window) + (1 - share) * of_window(0)


def cached_numbers(c: ModelConfig) -> int:
  """Numbers that a layer's cache has of a token."""
  return sum(heads * channels for heads, channels in c.cached_shapes)


def cached(c: ModelConfig, of_window: Callable[[int], float]) -> float:
  """Numbers that all layers cache for the tokens that `of_window` counts."""
  stacks = c.stacks
  of_layer = (stacks[stack][0] for stack in c.layer_stacks)
  return sum(
    cached_numbers(of) * of_window(c.window * is_local)
    for of, is_local in zip(of_layer, c.local_layers, strict=True)
    if not (of.is_delta or of.shares_kv)
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
  """Tokens that one run of a gradient computes, and the keys that they meet."""

  attempts: Attempts | None  # None: not known, and rows are full
  tokens: int  # of the rows, with padding
  computed: float  # without padding
  of_trajectories: float  # that the computed ones stand for
  # Means over layers, of which some may see a window alone.
  keys_needed: float  # per computed token
  keys_visited: float  # per token of the rows
  is_tree: bool = False  # rows are prefix trees
  # Keys that the busiest shard of a row's tokens visits, over the mean: later
  # tokens see more.
  imbalance: float = 1.0

  @property
  def shared(self) -> float:
    """Share of the trajectories' tokens that is not computed again."""
    return 1 - self.computed / self.of_trajectories


def gradient(
  c: ModelConfig,
  compute: ComputeConfig,
  load: Load,
  *,
  kernel: str,
  frozen: bool = False,
) -> Flops:
  """Forward and backward over packed rows, and the log-probabilities.

  `kernel` is attention's, as `attention.packed.choose` names it. If the weights
  are `frozen` under adapters, none has a gradient, and adapters cost nothing.
  """
  layers, head = layers_weights(c), head_weights(c)
  passes = 2 if frozen else 3  # forward, to the inputs, to the weights
  mixed = attended(c, load.keys_needed) + recalled(c)
  needed = 2 * passes * (layers + head) + 3 * mixed
  again = 0.0
  if compute.remat in ("full", "attention"):
    # The layer's last product is no input of any gradient.
    again = 2 * (layers - c.width * mlp_channels(c))
  repeated = 3 + _attention_again(compute, kernel)
  scores = repeated * attended(c, load.keys_visited)
  states = recalled(c, is_tree=load.is_tree) * (3 + (compute.remat != "none"))
  executed = 2 * passes * layers + again + scores + states
  executed += 2 * (passes + 1) * head  # its logits are computed again
  return Flops(
    needed * load.computed,
    executed * load.tokens,
    imbalance=1 + (load.imbalance - 1) * scores / executed,
  )


def _attention_again(compute: ComputeConfig, kernel: str) -> float:
  """Attention computed beyond one forward and two backward passes.

  In forward passes. Kernels and blocks keep no scores and compute them again;
  splash's two backward parts each compute the scores and their slopes: 7
  products for the 4 of two passes. A remat policy that drops what the backward
  pass reads runs attention forward again; "attention" keeps all of it for
  splash alone.
  """
  if kernel == "splash":
    return 1.5 + (compute.remat in ("full", "dots"))
  keeps_scores = kernel == "xla" and not compute.attention_block
  return 0.5 * (not keeps_scores) + (compute.remat != "none")


def keys_visited(
  compute: ComputeConfig,
  row_length: int,
  kernel: str,
  *,
  seen: float,
  length: int,
) -> float:
  """Keys per token of a row that are multiplied, masked ones included.

  Attention visits whole blocks: half a block more than is `seen`, and
  half at the start of a sequence of `length` that does not start the row.
  """
  block = compute.attention_block
  if kernel == "splash":
    block = min(splash.block_length(block, row_length), row_length)
  elif kernel != "xla" or not block:
    return row_length
  return min(seen + block / (1 if length < row_length else 2), row_length)


def imbalance(row_length: int, length: int, shards: int) -> float:
  """Keys seen by the busiest of a row's shards, over the mean.

  The last of the s shards that a sequence spans sees most: (2 s - 1) / s times
  the mean.
  """
  spanned = max(shards * min(length / row_length, 1), 1)
  return (2 * spanned - 1) / spanned


def extend(
  c: ModelConfig, *, tokens: int, context: int, with_head: bool
) -> Flops:
  """Tokens fed to slots that attend to `context` positions of a cache."""
  weights = layers_weights(c)
  if with_head:
    weights += head_weights(c)
  keys = mean_over_layers(c, lambda window: min(context, window or context))
  if c.latent_dim:
    # They are mixed as they are, by queries of as many channels.
    mixed = c.num_layers * 4 * c.num_heads * cached_numbers(c) * keys
  else:
    # A state is recalled from, written to and read, by one product each.
    state = c.delta_heads * c.delta_key_dim * c.delta_value_dim
    mixed = attended(c, keys) + c.num_delta * 6 * state
  each = 2 * weights + mixed
  return Flops(each * tokens, each * tokens)
