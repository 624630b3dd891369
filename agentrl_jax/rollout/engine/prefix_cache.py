"""Which blocks of keys and values are kept, for which tokens, and where.

A tree: each node is one block of up to `block_size` tokens that follow those
of its parent, so conversations that begin alike share their first blocks. Only
a conversation's last block may be part full. Keys and values of a token depend
on it and those before it, so any leading part of a block is of use.

Blocks lie on the device or, when it is full, on the host; who was used longest
ago goes first, from the device to the host and from there out. This module
moves no keys or values: it says what has to be moved, in `Moves`, batch by
batch. Nothing that the current batch touches is evicted.

Plain Python and numpy. Not thread-safe.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentrl_jax.rollout.engine import prefix_tree
from agentrl_jax.rollout.engine.prefix_tree import Node


@dataclasses.dataclass(frozen=True)
class Match:
  """The longest beginning of a prompt that is kept."""

  nodes: tuple[Node, ...] = ()
  size: int = 0  # tokens

  def is_moving(self, batch: int) -> bool:
    """Whether part of it is on its way to the host in this batch."""
    return any(node.on_host and node.spilled == batch for node in self.nodes)


class Save(NamedTuple):
  """Block `index` of a slot goes to the store."""

  slot: int
  index: int
  block: int  # on the device


class Fill(NamedTuple):
  """A block of the store goes to a slot, as its block `index`."""

  block: int  # on the device
  slot: int
  index: int


class Carry(NamedTuple):
  """A block changes between device and host."""

  source: int
  target: int


@dataclasses.dataclass
class Moves:
  """What a batch moves, in this order; what is uploaded is read before all."""

  spills: list[Carry] = dataclasses.field(default_factory=list)
  uploads: list[Carry] = dataclasses.field(default_factory=list)
  # By block of the device: a block that grows twice is saved once.
  saves: dict[int, Save] = dataclasses.field(default_factory=dict)
  fills: list[Fill] = dataclasses.field(default_factory=list)


class PrefixCache:
  """What is kept under one publication of the weights."""

  def __init__(self, block_size: int, num_device: int, num_host: int):
    """Sizes of the tiers are in blocks."""
    self.block_size = block_size
    self._num_device, self._num_host = num_device, num_host
    self._edition = -1
    self.batch = 0
    self.num_evicted = 0  # blocks that left for want of room
    self._empty()

  def set_weights(self, publication: int) -> None:
    """Drops everything if it was computed with other weights."""
    if publication != self._edition:
      self._edition = publication
      self._empty()

  def clear(self) -> None:
    """Drops everything, what the batch was to move included."""
    self._empty()

  def take_moves(self) -> Moves:
    """What the batch moves; the next one begins."""
    moves, self._moves = self._moves, Moves()
    self.batch += 1
    return moves

  def find(self, token: np.ndarray) -> Match:
    """The longest beginning of the tokens that is kept; changes nothing."""
    node, nodes, size = self._root, [], 0
    while size < len(token):
      chunk = token[size : size + self.block_size]
      child, shared = prefix_tree.closest(node, chunk)
      if child is None or not shared:
        break
      nodes.append(child)
      size += shared
      if shared < self.block_size:
        break
      node = child
    return Match(tuple(nodes), size)

  def has_room(self, match: Match, num_tokens: int) -> bool:
    """Whether a match, and so many tokens of a slot, fit beside the batch."""
    untouched = len(self._device)
    for node in reversed(self._device):
      if node.batch != self.batch:
        break
      untouched -= 1
    pinned = sum(
      not node.on_host and node.batch != self.batch for node in match.nodes
    )
    needed = sum(node.on_host for node in match.nodes)
    needed += -(-num_tokens // self.block_size)
    return needed <= len(self._free_device) + untouched - pinned

  @property
  def has_moves(self) -> bool:
    """Whether the batch moves anything."""
    moves = self._moves
    return bool(moves.spills or moves.uploads or moves.saves or moves.fills)

  def fetch(self, match: Match, slot: int) -> int:
    """Moves a match to a slot; how many of its tokens there is room to move."""
    self._touch(match.nodes)
    size = 0
    for index, node in enumerate(match.nodes):
      if node.on_host and not self._lift(node):
        break
      self._moves.fills.append(Fill(node.place, slot, index))
      size += len(node.token)
    self._touch(match.nodes)
    return min(size, match.size)

  def insert(self, token: np.ndarray, slot: int) -> int:
    """Keeps a slot's tokens; how many of them have to be moved for it.

    What is there is shared. Where no room can be made, the rest is not kept.
    """
    node, nodes, moved = self._root, [], 0
    for index, start in enumerate(range(0, len(token), self.block_size)):
      chunk = token[start : start + self.block_size]
      child = self._child_for(node, chunk)
      if child.on_host or len(child.token) < len(chunk):
        if not self._hold(child, chunk):
          break
        self._moves.saves[child.place] = Save(slot, index, child.place)
        moved += len(chunk)
      self._touch([child])
      nodes.append(child)
      node = child
    self._touch(nodes)
    return moved

  def check(self) -> None:
    """Raises `AssertionError` if any block is lost, or has two owners."""
    nodes = list(prefix_tree.below(self._root))
    for tier, on_host, free, size in (
      (self._device, False, self._free_device, self._num_device),
      (self._host, True, self._free_host, self._num_host),
    ):
      mine = [node for node in nodes if node.on_host == on_host]
      owned = [node.place for node in mine]
      assert set(tier) == set(mine), f"{len(tier)} listed, {len(mine)} linked"
      assert sorted(owned + free) == list(range(size)), (owned, free, size)
    for node in nodes:
      assert node.parent is not None, "only the root has no parent"
      assert node.parent.children[prefix_tree.key_of(node.token)] is node, (
        node.token
      )
      assert node.order == sorted(node.children), node.order
      assert node.on_host or not node.parent.on_host, "device below host"
      assert not node.children or len(node.token) == self.block_size

  @property
  def num_held(self) -> tuple[int, int]:
    """Blocks in use on the device and on the host."""
    return len(self._device), len(self._host)

  def _empty(self) -> None:
    self._root = Node(np.zeros(0, np.int32), None)
    # Oldest first. Touching goes from the end of a conversation to its
    # beginning, so the first one of a tier has no children in it.
    self._device: OrderedDict[Node, None] = OrderedDict()
    self._host: OrderedDict[Node, None] = OrderedDict()
    self._free_device = list(range(self._num_device))
    self._free_host = list(range(self._num_host))
    self._moves = Moves()

  def _touch(self, nodes: Sequence[Node]) -> None:
    for node in reversed(nodes):
      node.batch = self.batch
      (self._host if node.on_host else self._device).move_to_end(node)

  def _child_for(self, node: Node, chunk: np.ndarray) -> Node:
    """The child that has the chunk or can grow to it, or one without tokens."""
    child, shared = prefix_tree.closest(node, chunk)
    if child is not None and shared == min(len(chunk), len(child.token)):
      return child
    return Node(chunk[:0], node)

  def _hold(self, node: Node, chunk: np.ndarray) -> bool:
    """Gives a node a block on the device that a slot is to fill."""
    if len(chunk) < len(node.token):
      return False  # it is on the host, and the slot has less than it has
    if (node.on_host or node.place < 0) and not self._place_on_device(node):
      return False
    prefix_tree.relink(node, chunk)
    return True

  def _lift(self, node: Node) -> bool:
    """Moves a node from the host to the device, if there is room."""
    source = node.place
    if not self._place_on_device(node):
      return False
    self._moves.uploads.append(Carry(source, node.place))
    return True

  def _place_on_device(self, node: Node) -> bool:
    if node.on_host:
      self._touch([node])  # or making room might evict it
    place = self._device_room()
    if place is None:
      return False
    if node.on_host:
      del self._host[node]
      self._free_host.append(node.place)
    node.place, node.on_host, node.batch = place, False, self.batch
    self._device[node] = None
    return True

  def _device_room(self) -> int | None:
    """A free block of the device, if need be that of the oldest leaf."""
    if self._free_device:
      return self._free_device.pop()
    node = self._oldest(self._device)
    if node is None:
      return None
    source, target = node.place, self._host_room()
    if target is None:
      if node.children:
        return None  # all of them are on a host that this batch is filling
      prefix_tree.unlink(node)
      self.num_evicted += 1
    else:
      self._moves.spills.append(Carry(source, target))
      node.place, node.on_host = target, True
      node.batch = node.spilled = self.batch
      self._host[node] = None
    del self._device[node]
    return source

  def _host_room(self) -> int | None:
    if self._free_host:
      return self._free_host.pop()
    node = self._oldest(self._host)
    if node is None:
      return None
    prefix_tree.unlink(node)
    self.num_evicted += 1
    del self._host[node]
    return node.place

  def _oldest(self, tier: "OrderedDict[Node, None]") -> Node | None:
    """Who is evicted next; None if this batch touches all there are."""
    node = next(iter(tier), None)
    return None if node is None or node.batch == self.batch else node
