"""Roofline of a program: its least time, and the resource that limits it.

Four things take time: products, the chip's memory, the links between chips,
and the data center network between slices. If they overlap as far as the
program lets them, a step takes as long as the longest, where products and
memory wait for synchronous exchanges; if they do not overlap at all, their sum.
Real steps lie between.

Products are counted by formula. Tokens that attempts share are computed once
(`data.packing`); how many these are, and which pairs of blocks attention
visits, is taken from groups of equal attempts, packed as an update packs them.

Links: a group of chips moves data along every axis of the grid that it spans,
both ways round if the axis is a ring, one way if it ends. Chips are at their
place in the mesh; links that two groups share are counted fully for both.
Between slices each chip has its share of its host's network cards.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentrl_jax.data.packing import SortedPrefixes, assign_tree_rows
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.attention import splash
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.config import ModelConfig
from launch.planning.chips import Chip, Slice
from launch.planning.collectives import Collective, between_slices


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


_MOST_ROWS = 64  # of groups that are packed to plan


@dataclasses.dataclass(frozen=True)
class Flops:
  """Operations of all chips together, in one run of a program."""

  needed: float
  executed: float
  imbalance: float = 1.0  # executed by the busiest chip, over the mean

  def of_busiest(self, num_chips: int) -> float:
    """Operations that the busiest of `num_chips` chips executes."""
    return self.executed * self.imbalance / num_chips


def layers_weights(c: ModelConfig) -> int:
  """Number of all layers' weights that each token is multiplied by."""
  queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  routers = c.num_mixtures * c.num_experts
  channels = c.num_layers * 2 * (queries + keys) + routers + 3 * mlp_channels(c)
  return c.width * channels


def mlp_channels(c: ModelConfig) -> int:
  """Channels of all layers' MLPs that a token has: its experts', if any."""
  if not c.num_experts:
    return c.num_layers * c.mlp_width
  chosen = (c.experts_per_token + c.shared_experts) * c.mlp_width
  return c.num_mixtures * chosen + c.dense_layers * c.dense_mlp_width


def expert_params(c: ModelConfig, number: int) -> int:
  """Numbers in the matrices of so many experts of each layer."""
  return c.num_mixtures * number * 3 * c.width * c.mlp_width


def head_weights(c: ModelConfig) -> int:
  """Size of the output matrix."""
  return c.width * c.vocab_size


def embedding_params(c: ModelConfig) -> int:
  """Numbers of the embedding, and of the output matrix if it is another."""
  return (1 if c.tied_embedding else 2) * head_weights(c)


def layer_params(c: ModelConfig) -> int:
  """Trained numbers of all layers; norms are left out."""
  others = expert_params(c, c.num_experts - c.experts_per_token)
  return layers_weights(c) + others


def num_params(c: ModelConfig) -> int:
  """Trained numbers of products and embedding; norms are left out."""
  return layer_params(c) + embedding_params(c)


def attention(c: ModelConfig, keys: float) -> float:
  """Operations of a token's scores over `keys`, and of mixing their values."""
  return 4 * c.num_heads * c.head_dim * keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempts:
  """Attempts of a group: mean tokens of each, and what they share."""

  prompt: int  # tokens that all attempts share, from the first on
  turns: int  # tokens of an attempt after these
  num: int  # attempts of a group

  def __post_init__(self) -> None:
    for name, least in (("prompt", 0), ("turns", 1), ("num", 1)):
      if (found := getattr(self, name)) < least:
        flag = "attempts" if name == "num" else name
        raise ConfigError(f"--{flag}={found} must be {least} or more")

  @property
  def length(self) -> int:
    """Tokens of one attempt."""
    return self.prompt + self.turns

  @property
  def num_nodes(self) -> int:
    """Tokens of a group, shared ones once."""
    return self.prompt + self.num * self.turns

  @property
  def unshared(self) -> "Attempts":
    """Attempts as long as these, which share nothing."""
    return Attempts(prompt=0, turns=self.length, num=self.num)


@dataclasses.dataclass(frozen=True)
class PackedRows:
  """Rows of equal attempts.

  A row is written as the number of tokens that each of its attempts shares with
  the one before, as from `SortedPrefixes.walk`.
  """

  attempts: Attempts
  row_length: int
  num_rows: Mapping[tuple[int, ...], int]  # rows that are alike

  @property
  def num_all(self) -> int:
    """Number of rows."""
    return sum(self.num_rows.values())

  @property
  def computed(self) -> float:
    """Mean tokens of a row, without padding."""
    length = self.attempts.length
    return self._mean(lambda row: sum(length - shared for shared in row))

  @property
  def tokens(self) -> float:
    """Mean tokens of the trajectories of a row."""
    return self._mean(lambda row: self.attempts.length * len(row))

  def keys_needed(self, window: int = 0) -> float:
    """Mean keys that a computed token sees, of the last `window` if not 0.

    On average half of the prompt for a token of the prompt; all of the prompt
    and half of the turns for a token after it.
    """
    prompt, length = self.attempts.prompt, self.attempts.length
    of_prompt = pairs_needed(prompt, window)
    keys = self._mean(len) * (pairs_needed(length, window) - of_prompt)
    if prompt:
      keys += self._mean(lambda row: row.count(0)) * of_prompt
    return keys / self.computed

  def keys_visited(self, blocks: tuple[int, int], window: int = 0) -> float:
    """Mean keys that a token of a row is multiplied with, by `blocks`."""

    def visited(row: tuple[int, ...]) -> float:
      return pairs_visited(self.ends(row), *blocks, self._begins(row, window))

    return self._mean(visited) / self.row_length

  def imbalance(self, blocks: tuple[int, int], shards: int) -> float:
    """Pairs of the busiest of `shards` of a row's queries, over the mean."""
    pairs = [
      pairs_by_shard(self.ends(row), *blocks, shards) * num
      for row, num in self.num_rows.items()
    ]
    return _imbalance(np.sum(pairs, axis=0))

  def ends(self, row: Sequence[int]) -> np.ndarray:
    """Returns `PrefixTree.end` of a row, int [T]."""
    end_T = np.zeros(self.row_length, int)
    path, cursor = np.zeros(0, int), 0
    for shared in row:
      end_T[path[shared:]] = cursor
      new = self.attempts.length - shared
      path = np.append(path[:shared], np.arange(cursor, cursor + new))
      cursor += new
    end_T[path] = cursor
    return end_T

  def _begins(self, row: Sequence[int], window: int) -> np.ndarray | None:
    """Returns `attention.packed.first_visible` of a row, int [T]."""
    if not window:
      return None
    begin_T = np.zeros(self.row_length, int)
    path, cursor = np.zeros(0, int), 0
    for shared in row:
      new = self.attempts.length - shared
      path = np.append(path[:shared], np.arange(cursor, cursor + new))
      first = np.arange(shared, self.attempts.length) - window + 1
      begin_T[cursor : cursor + new] = np.where(first > 0, path[first], 0)
      cursor += new
    return begin_T

  def _mean(self, of_row: Callable[[tuple[int, ...]], float]) -> float:
    total = sum(of_row(row) * num for row, num in self.num_rows.items())
    return total / self.num_all


class _EqualGroups(SortedPrefixes):
  """Prefixes of groups of equal attempts, without their tokens."""

  def __init__(self, attempts: Attempts, num_groups: int):
    size = num_groups * attempts.num
    self.order = list(range(size))
    self.rank = np.arange(size)
    self.lengths = np.full(size, attempts.length)
    of_group = [0] + [attempts.prompt] * (attempts.num - 1)
    self.shared = np.array(of_group * num_groups, int)


@functools.cache
def pack_groups(
  attempts: Attempts, *, row_length: int, sharing: int, num_groups: int
) -> PackedRows:
  """Packs groups of equal attempts as `data.packing.pack` does."""
  if sharing == 1:
    attempts = attempts.unshared
  # More groups than fill these rows change the last row alone.
  enough = -(-_MOST_ROWS * row_length // attempts.num_nodes)
  groups = _EqualGroups(attempts, min(num_groups, enough))
  rows = collections.Counter(
    tuple(shared for _, shared in groups.walk(members))
    for members in assign_tree_rows(groups, row_length, sharing)
  )
  return PackedRows(attempts, row_length, rows)


def pairs_needed(length: int, window: int = 0) -> float:
  """Counts pairs of tokens of a sequence, the last `window` of each if not 0.

  A token and itself are half a pair.
  """
  near = min(length, window or length)
  return near * near / 2 + (length - near) * near


def mean_over_layers(
  c: ModelConfig, of_window: Callable[[int], float]
) -> float:
  """Averages what depends on the window of a layer; 0 is none."""
  share = sum(c.local_layers) / c.num_layers
  if not share:
    return of_window(0)
  return share * of_window(c.window) + (1 - share) * of_window(0)


def pairs_visited(
  end_T: np.ndarray, queries: int, keys: int, begin_T: np.ndarray | None = None
) -> int:
  """Counts pairs of tokens in the pairs of blocks that attention computes.

  These have a visible pair: token t sees token s if begin[t] <= s <= t <
  end[s]. Padding sees itself. `queries` and `keys` are the tokens of a block.
  """
  return int(pairs_by_shard(end_T, queries, keys, 1, begin_T).sum())


def pairs_by_shard(
  end_T: np.ndarray,
  queries: int,
  keys: int,
  shards: int,
  begin_T: np.ndarray | None = None,
) -> np.ndarray:
  """Counts the same for equal parts of the queries, int [shards]."""
  length = len(end_T)
  begin_T = np.zeros(length, int) if begin_T is None else begin_T
  # A block of keys is seen up to its longest subtree. One that reaches beyond
  # the queries has the key of a query, which sees itself.
  key_M, query_N = np.arange(0, length, keys), np.arange(0, length, queries)
  end_S = np.maximum(end_T, np.arange(1, length + 1))
  end_M = np.maximum.reduceat(end_S, key_M)
  num_pairs = np.zeros(shards, int)
  for first in query_N:
    begin = begin_T[first : first + queries].min()
    visible_M = (key_M < first + queries) & (end_M > first)
    num_blocks = np.count_nonzero(visible_M & (key_M + keys > begin))
    num_pairs[first * shards // length] += num_blocks
  return num_pairs * queries * keys


def _imbalance(pairs: np.ndarray) -> float:
  return float(pairs.max() / pairs.mean())


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
  needed = 2 * passes * (layers + head) + 3 * c.num_layers * attention(
    c, load.keys_needed
  )
  attended = c.num_layers * attention(c, load.keys_visited)
  again = 0.0
  if compute.remat in ("full", "attention"):
    # The layer's last product is no input of any gradient.
    again = 2 * (layers - c.width * mlp_channels(c))
  attended *= 3 + _attention_again(compute, kernel)
  executed = 2 * passes * layers + again + attended
  executed += 2 * (passes + 1) * head  # its logits are computed again
  return Flops(
    needed * load.computed,
    executed * load.tokens,
    imbalance=1 + (load.imbalance - 1) * attended / executed,
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


def blocks_of(
  compute: ComputeConfig, row_length: int, kernel: str, shards: int = 1
) -> tuple[int, int] | None:
  """Tokens of a block of queries and of keys; None: the whole row at once.

  `shards` are the parts of `mesh.sequence` that queries are cut into.
  """
  block = compute.attention_block
  if kernel == "splash":
    queries = splash.block_length(block, row_length // shards)
    keys = splash.block_length(block, row_length)
    return min(queries, row_length), min(keys, row_length)
  if kernel == "xla" and block:
    return min(block, row_length), min(block, row_length)
  return None


@functools.cache
def keys_visited(
  row_length: int, blocks: tuple[int, int] | None, window: int = 0
) -> float:
  """Keys per query of a whole row that are multiplied, masked ones included.

  Blocks above the diagonal are skipped, and those before the window.
  """
  if blocks is None:
    return row_length
  end_T = np.full(row_length, row_length)
  begin_T = np.maximum(np.arange(row_length) - (window or row_length) + 1, 0)
  return pairs_visited(end_T, *blocks, begin_T) / row_length


@functools.cache
def imbalance(
  row_length: int, blocks: tuple[int, int] | None, shards: int
) -> float:
  """Keys visited by the busiest of `shards` of a whole row, over the mean.

  The last shard sees most: of s shards, (2 s - 1) / s times the mean if blocks
  are small. Without blocks all compute the same.
  """
  if blocks is None:
    return 1.0
  end_T = np.full(row_length, row_length)
  return _imbalance(pairs_by_shard(end_T, *blocks, shards))


def extend(
  c: ModelConfig, *, tokens: int, context: int, with_head: bool
) -> Flops:
  """Tokens fed to slots that attend to `context` positions of a cache."""
  weights = layers_weights(c)
  if with_head:
    weights += head_weights(c)
  keys = mean_over_layers(c, lambda window: min(context, window or context))
  each = 2 * weights + c.num_layers * attention(c, keys)
  return Flops(each * tokens, each * tokens)
