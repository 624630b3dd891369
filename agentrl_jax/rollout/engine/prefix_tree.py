"""Conversations as a tree of blocks: those that begin alike share a branch.

A node is one block of tokens that follow those of its parent. Where blocks lie,
and when they go, `rollout.engine.prefix_cache` decides. Plain Python and numpy.
"""

import bisect
import dataclasses
from collections.abc import Iterator

import numpy as np


@dataclasses.dataclass(eq=False)
class Node:
  """A block, and where it lies."""

  token: np.ndarray  # int32, what the block stands for after its parent's
  parent: "Node | None"
  place: int = -1  # of the block, in its tier
  on_host: bool = False
  batch: int = -1  # the last that touched it
  spilled: int = -1  # the batch that moved it to the host
  children: dict[bytes, "Node"] = dataclasses.field(default_factory=dict)
  # Keys of the children, sorted: those that begin most alike are neighbours.
  order: list[bytes] = dataclasses.field(default_factory=list)


def key_of(token: np.ndarray) -> bytes:
  """What a parent knows its child by."""
  return token.tobytes()


def closest(node: Node, chunk: np.ndarray) -> tuple[Node | None, int]:
  """The child that begins most like the chunk, and how many tokens alike."""
  key = key_of(chunk)
  if key in node.children:
    return node.children[key], len(chunk)
  at = bisect.bisect(node.order, key)
  best, most = None, 0
  for neighbor in node.order[max(at - 1, 0) : at + 1]:
    child = node.children[neighbor]
    shared = num_alike(child.token, chunk)
    if shared > most:
      best, most = child, shared
  return best, most


def num_alike(a: np.ndarray, b: np.ndarray) -> int:
  """How many tokens two rows begin with alike."""
  size = min(len(a), len(b))
  differs = a[:size] != b[:size]
  return int(differs.argmax()) if differs.any() else size


def relink(node: Node, token: np.ndarray) -> None:
  """Puts a node, which may be without tokens, under its tokens."""
  if len(node.token):
    unlink(node)
  assert node.parent is not None, "the root stands for no tokens"
  node.token = token.copy()
  node.parent.children[key_of(token)] = node
  bisect.insort(node.parent.order, key_of(token))


def unlink(node: Node) -> None:
  """Takes a node, and what is below it, out of the tree."""
  assert node.parent is not None, "the root is never evicted"
  key = key_of(node.token)
  del node.parent.children[key]
  del node.parent.order[bisect.bisect_left(node.parent.order, key)]


def below(node: Node) -> Iterator[Node]:
  """Every node below one, parents first."""
  nodes = [node]
  while nodes:
    children = nodes.pop().children.values()
    yield from children
    nodes.extend(children)
