"""A prefix cache: blocks of keys and values that outlive their slots.

`PrefixCache` decides which blocks are kept, for which tokens, on which tier;
it is plain Python. `BlockPool` holds the arrays and copies blocks.
"""

import bisect
import collections
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from agentrl_jax.model.cache import KVCache, place
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.engine import programs

# Blocks per call that the copying programs are compiled for.
_SIZES = (8, 32, 128)
_PADDING = 2**30  # a slot or block that does not exist


@dataclasses.dataclass(eq=False)
class Node:
  """A block in the tree, and where its keys and values are."""

  tokens: np.ndarray  # int32, those that follow the tokens of the parent
  parent: "Node | None"
  block: int = -1  # index in its tier
  on_host: bool = False
  last_batch: int = -1  # that used the block
  offload_batch: int = -1  # that moved the block to the host
  children: dict[bytes, "Node"] = dataclasses.field(default_factory=dict)
  # Sorted keys of the children, so that similar ones are neighbors.
  sorted_keys: list[bytes] = dataclasses.field(default_factory=list)

  def closest_child(self, chunk: np.ndarray) -> "tuple[Node | None, int]":
    """Returns the child that shares most leading tokens, and their number."""
    key = chunk.tobytes()
    if key in self.children:
      return self.children[key], len(chunk)
    index = bisect.bisect(self.sorted_keys, key)
    best, most = None, 0
    for neighbor in self.sorted_keys[max(index - 1, 0) : index + 1]:
      child = self.children[neighbor]
      shared = _num_shared(child.tokens, chunk)
      if shared > most:
        best, most = child, shared
    return best, most

  def relink(self, tokens: np.ndarray) -> None:
    """Inserts the node under new tokens; it may have had none before."""
    if len(self.tokens):
      self.unlink()
    assert self.parent is not None, "the root has no tokens"
    self.tokens = tokens.copy()
    self.parent.children[tokens.tobytes()] = self
    bisect.insort(self.parent.sorted_keys, tokens.tobytes())

  def unlink(self) -> None:
    """Removes the node, and those below it, from the tree."""
    assert self.parent is not None, "the root is never evicted"
    key, keys = self.tokens.tobytes(), self.parent.sorted_keys
    del self.parent.children[key]
    del keys[bisect.bisect_left(keys, key)]

  def descendants(self) -> "Iterator[Node]":
    """Every node below this one, parents first."""
    nodes = [self]
    while nodes:
      children = nodes.pop().children.values()
      yield from children
      nodes.extend(children)


def _num_shared(a: np.ndarray, b: np.ndarray) -> int:
  size = min(len(a), len(b))
  differs = a[:size] != b[:size]
  return int(differs.argmax()) if differs.any() else size


@dataclasses.dataclass(frozen=True)
class PrefixMatch:
  """The longest cached prefix of a prompt."""

  nodes: tuple[Node, ...] = ()
  size: int = 0  # tokens

  def is_offloading(self, batch: int) -> bool:
    """Returns whether this batch moves a part of the match to the host."""
    return any(
      node.on_host and node.offload_batch == batch for node in self.nodes
    )


class Save(NamedTuple):
  """Copies block `index` of a slot to a block on the device."""

  slot: int
  index: int
  block: int


class Fill(NamedTuple):
  """Copies a block on the device to a slot, as its block `index`."""

  block: int
  slot: int
  index: int


class Transfer(NamedTuple):
  """Copies a block between device and host."""

  source: int
  target: int


@dataclasses.dataclass
class CopyBatch:
  """Copies to make, in this order; upload sources are read before all others.

  `saves` is keyed by block: a block that grows twice is saved once.
  """

  offloads: list[Transfer] = dataclasses.field(default_factory=list)
  uploads: list[Transfer] = dataclasses.field(default_factory=list)
  saves: dict[int, Save] = dataclasses.field(default_factory=dict)
  fills: list[Fill] = dataclasses.field(default_factory=list)


class PrefixCache:
  """A radix tree of cached blocks, for one publication of the weights.

  - A node is a block of up to `block_size` tokens that follow those of its
    parent; only the last block of a conversation may be partly full.
    Conversations with a common prefix share its blocks.
  - Keys and values depend on their token and those before it, so each leading
    part of a block can be used.
  - A block is on the device or, if that is full, on the host. The least
    recently used one moves first: from device to host, from host to nowhere.
  - A batch never evicts what it uses.
  - No arrays are moved here: `take_batch` returns the copies to make.

  Not thread-safe.
  """

  def __init__(self, block_size: int, num_device: int, num_host: int):
    """`num_device` and `num_host` are numbers of blocks."""
    self.block_size = block_size
    self._num_device, self._num_host = num_device, num_host
    self._publication = -1
    self.batch_number = 0
    self.num_evicted = 0  # blocks that left for want of room
    self.clear()

  def set_weights(self, publication: int) -> None:
    """Drops everything if it was computed with other weights."""
    if publication != self._publication:
      self._publication = publication
      self.clear()

  def clear(self) -> None:
    """Drops everything, the copies of the current batch included."""
    self._root = Node(np.zeros(0, np.int32), None)
    # Least recently used first. `_touch` goes from the end of a conversation to
    # its start, so the first node of a tier has no children in this tier.
    self._device: OrderedDict[Node, None] = OrderedDict()
    self._host: OrderedDict[Node, None] = OrderedDict()
    self._free_device = list(range(self._num_device))
    self._free_host = list(range(self._num_host))
    self._batch = CopyBatch()

  def take_batch(self) -> CopyBatch:
    """Returns the copies of the current batch, and starts the next one."""
    batch, self._batch = self._batch, CopyBatch()
    self.batch_number += 1
    return batch

  def match_prefix(self, tokens: np.ndarray) -> PrefixMatch:
    """Finds the longest cached prefix; changes nothing."""
    node, nodes, size = self._root, [], 0
    while size < len(tokens):
      chunk = tokens[size : size + self.block_size]
      child, shared = node.closest_child(chunk)
      if child is None or not shared:
        break
      nodes.append(child)
      size += shared
      if shared < self.block_size:
        break
      node = child
    return PrefixMatch(tuple(nodes), size)

  def has_room(self, match: PrefixMatch, num_tokens: int) -> bool:
    """Returns whether a match and `num_tokens` of a slot fit in the batch."""
    evictable = len(self._device)
    for node in reversed(self._device):
      if node.last_batch != self.batch_number:
        break
      evictable -= 1
    pinned = sum(
      not node.on_host and node.last_batch != self.batch_number
      for node in match.nodes
    )
    needed = sum(node.on_host for node in match.nodes)
    needed += -(-num_tokens // self.block_size)
    return needed <= len(self._free_device) + evictable - pinned

  @property
  def has_copies(self) -> bool:
    """True if the current batch copies anything."""
    batch = self._batch
    return bool(batch.offloads or batch.uploads or batch.saves or batch.fills)

  def load(self, match: PrefixMatch, slot: int) -> int:
    """Copies a match to a slot; returns how many tokens there was room for."""
    self._touch(match.nodes)
    size = 0
    for index, node in enumerate(match.nodes):
      if node.on_host and not self._upload(node):
        break
      self._batch.fills.append(Fill(node.block, slot, index))
      size += len(node.tokens)
    self._touch(match.nodes)
    return min(size, match.size)

  def insert(self, tokens: np.ndarray, slot: int) -> int:
    """Keeps the tokens of a slot; returns how many of them must be copied.

    Cached blocks are shared. If no more room can be made, the rest is dropped.
    """
    node, nodes, num_copied = self._root, [], 0
    for index, start in enumerate(range(0, len(tokens), self.block_size)):
      chunk = tokens[start : start + self.block_size]
      child = self._child_for(node, chunk)
      if child.on_host or len(child.tokens) < len(chunk):
        if not self._store(child, chunk):
          break
        self._batch.saves[child.block] = Save(slot, index, child.block)
        num_copied += len(chunk)
      self._touch([child])
      nodes.append(child)
      node = child
    self._touch(nodes)
    return num_copied

  def check(self) -> None:
    """Raises `AssertionError` if a block is lost or belongs to two nodes."""
    nodes = list(self._root.descendants())
    for tier, on_host, free, size in (
      (self._device, False, self._free_device, self._num_device),
      (self._host, True, self._free_host, self._num_host),
    ):
      linked = [node for node in nodes if node.on_host == on_host]
      used = [node.block for node in linked]
      assert set(tier) == set(linked), f"{len(tier)} listed, {len(linked)} used"
      assert sorted(used + free) == list(range(size)), (used, free, size)
    for node in nodes:
      assert node.parent is not None, "only the root has no parent"
      assert node.parent.children[node.tokens.tobytes()] is node, node.tokens
      assert node.sorted_keys == sorted(node.children), node.sorted_keys
      assert node.on_host or not node.parent.on_host, "device below host"
      assert not node.children or len(node.tokens) == self.block_size

  @property
  def num_used(self) -> tuple[int, int]:
    """Blocks in use on the device and on the host."""
    return len(self._device), len(self._host)

  def _touch(self, nodes: Sequence[Node]) -> None:
    for node in reversed(nodes):
      node.last_batch = self.batch_number
      (self._host if node.on_host else self._device).move_to_end(node)

  def _child_for(self, node: Node, chunk: np.ndarray) -> Node:
    """Returns the child that has the chunk or can grow to it, or a new one."""
    child, shared = node.closest_child(chunk)
    if child is not None and shared == min(len(chunk), len(child.tokens)):
      return child
    return Node(chunk[:0], node)

  def _store(self, node: Node, chunk: np.ndarray) -> bool:
    """Gives a node a block on the device for the tokens of a slot."""
    if len(chunk) < len(node.tokens):
      return False  # the block on the host has more tokens than the slot
    if (node.on_host or node.block < 0) and not self._place_on_device(node):
      return False
    node.relink(chunk)
    return True

  def _upload(self, node: Node) -> bool:
    """Moves a node from the host to the device, if there is room."""
    source = node.block
    if not self._place_on_device(node):
      return False
    self._batch.uploads.append(Transfer(source, node.block))
    return True

  def _place_on_device(self, node: Node) -> bool:
    if node.on_host:
      self._touch([node])  # or making room might evict it
    block = self._allocate_on_device()
    if block is None:
      return False
    if node.on_host:
      del self._host[node]
      self._free_host.append(node.block)
    node.block, node.on_host = block, False
    node.last_batch = self.batch_number
    self._device[node] = None
    return True

  def _allocate_on_device(self) -> int | None:
    """Returns a free block, if need be that of the least recently used leaf."""
    if self._free_device:
      return self._free_device.pop()
    node = self._least_recent(self._device)
    if node is None:
      return None
    source, target = node.block, self._allocate_on_host()
    if target is None:
      if node.children:
        return None  # all children are on a host that this batch is filling
      self._evict(node)
    else:
      self._batch.offloads.append(Transfer(source, target))
      node.block, node.on_host = target, True
      node.last_batch = node.offload_batch = self.batch_number
      self._host[node] = None
    del self._device[node]
    return source

  def _allocate_on_host(self) -> int | None:
    if self._free_host:
      return self._free_host.pop()
    node = self._least_recent(self._host)
    if node is None:
      return None
    self._evict(node)
    del self._host[node]
    return node.block

  def _evict(self, node: Node) -> None:
    node.unlink()
    self.num_evicted += 1

  def _least_recent(self, tier: "OrderedDict[Node, None]") -> Node | None:
    """The next node to evict; None if this batch uses all nodes of the tier."""
    node = next(iter(tier), None)
    used = node is not None and node.last_batch == self.batch_number
    return None if used else node


class _Offload(NamedTuple):
  """Blocks on their way to the host."""

  target_N: np.ndarray  # on the host
  blocks: KVCache


class BlockPool:
  """The arrays of `num_device` and `num_host` blocks of `block_size` tokens.

  - On the device the blocks are a cache whose slots are one block long.
  - Copies are launched in the order of `CopyBatch` and are not waited for.
    Blocks on their way to the host arrive some steps later; `copy` waits for
    them only if the batch needs blocks back from the host.
  """

  def __init__(
    self,
    policy: Policy,
    block_size: int,
    num_device: int,
    num_host: int,
    sharding: jax.sharding.Sharding | None = None,
    *,
    keeps_experts: bool = False,
  ):
    self._pool = place(
      policy.empty_cache(num_device, block_size, keeps_experts=keeps_experts),
      sharding,
    )
    self._host = jax.tree.map(
      lambda x: np.zeros((num_host, *x.shape[1:]), x.dtype), self._pool
    )
    self._offloads: collections.deque[_Offload] = collections.deque()

  def copy(self, batch: CopyBatch, cache: KVCache) -> None:
    """Launches a batch's copies except `fills`; `cache` is of the slots."""
    self.finish_offloads(wait=bool(batch.uploads))
    uploads = [
      (row_N2[:, 1], self._read_host(row_N2[:, 0]))
      for row_N2 in _padded_rows(batch.uploads, 2)
    ]
    for row_N2 in _padded_rows(batch.offloads, 2):
      blocks = programs.read(self._pool, row_N2[:, 0])
      for x in jax.tree.leaves(blocks):
        x.copy_to_host_async()
      self._offloads.append(_Offload(row_N2[:, 1], blocks))
    for target_N, blocks in uploads:
      self._pool = programs.upload(self._pool, target_N, blocks)
    for row_N3 in _padded_rows(list(batch.saves.values()), 3):
      self._pool = programs.save(self._pool, cache, *row_N3.T)

  def fill(self, cache: KVCache, fills: Sequence[Fill]) -> KVCache:
    """Copies blocks to slots; takes over `cache` and returns the new one."""
    for row_N3 in _padded_rows(fills, 3):
      cache = programs.fill(cache, self._pool, *row_N3.T)
    return cache

  def finish_offloads(self, *, wait: bool = False) -> None:
    """Stores blocks that have arrived on the host; with `wait`, all of them."""
    while self._offloads and (wait or _is_ready(self._offloads[0].blocks)):
      target_N, blocks = self._offloads[0]
      real_N = target_N != _PADDING
      for host, rows in zip(
        jax.tree.leaves(self._host), jax.tree.leaves(blocks), strict=True
      ):
        host[target_N[real_N]] = np.asarray(rows)[real_N]
      self._offloads.popleft()

  def _read_host(self, source_N: np.ndarray) -> KVCache:
    real_N = np.where(source_N == _PADDING, 0, source_N)
    return jax.tree.map(lambda x: x[real_N], self._host)


def _is_ready(blocks: KVCache) -> bool:
  return all(x.is_ready() for x in jax.tree.leaves(blocks))


def _padded_rows(
  copies: Sequence[Save | Fill | Transfer], num_fields: int
) -> Iterator[np.ndarray]:
  """Yields copies as int32 [N, fields] in compiled sizes, with few padding."""
  left = np.array(copies, np.int32).reshape(-1, num_fields)
  while len(left):
    size = max((n for n in _SIZES if n <= len(left)), default=_SIZES[0])
    rows = np.full((size, num_fields), _PADDING, np.int32)
    rows[: min(size, len(left))] = left[:size]
    yield rows
    left = left[size:]
