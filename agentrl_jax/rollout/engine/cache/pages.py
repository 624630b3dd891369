"""Pages of a KV cache on the host: who holds them, and what they contain.

`PagePool` counts the holders of each page. `PageTree` finds the pages of a
prefix, and keeps those of ended sequences until their room is needed. Plain
Python; the arrays are `kv_cache.KVCacheManager`'s.
"""

import bisect
import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np


class PagePool:
  """Counts how many sequences and trees hold each page.

  - A page is free or held. It is taken by one holder, shared with others, and
    free again once all have released it.
  - A page is written by the sequence that took it, and only behind the tokens
    that others read.
  """

  def __init__(self, num_pages: int):
    self.num_holders = np.zeros(num_pages, np.int32)
    self._free = list(range(num_pages))[::-1]

  def __len__(self) -> int:
    return len(self.num_holders)

  @property
  def num_free(self) -> int:
    """Pages that nobody holds."""
    return len(self._free)

  def take(self, number: int) -> list[int]:
    """Returns free pages, each with one holder; raises if there are too few."""
    if number > len(self._free):
      raise RuntimeError(
        f"{number} pages were asked for, and {len(self._free)} of {len(self)} "
        "are free: make room first"
      )
    pages = [self._free.pop() for _ in range(number)]
    self.num_holders[pages] = 1
    return pages

  def share(self, pages: Sequence[int]) -> None:
    """Adds a holder to pages that are held; raises if one is free."""
    self._require_held(pages)
    np.add.at(self.num_holders, list(pages), 1)

  def release(self, pages: Sequence[int]) -> None:
    """Removes a holder; raises, and changes nothing, if a page has none."""
    self._require_held(pages)
    for page in pages:
      self.num_holders[page] -= 1
      if not self.num_holders[page]:
        self._free.append(page)

  def check(self, held: Counter[int]) -> None:
    """Raises `AssertionError` if these are not the holders of each page."""
    counted = [held[page] for page in range(len(self))]
    assert self.num_holders.tolist() == counted, (self.num_holders, counted)
    unheld = np.flatnonzero(self.num_holders == 0).tolist()
    assert sorted(self._free) == unheld, (self._free, unheld)

  def _require_held(self, pages: Sequence[int]) -> None:
    for page, number in Counter(pages).items():
      if self.num_holders[page] < number:
        raise RuntimeError(
          f"page {page} has {self.num_holders[page]} holders, and {number} "
          "were expected: it was released too often"
        )


@dataclasses.dataclass(eq=False)
class Node:
  """A page in the tree, and the tokens whose keys and values it has."""

  tokens: np.ndarray  # int32, those that follow the tokens of the parent
  parent: "Node | None"
  page: int = -1
  # By the tokens of a page below this one, or its first ones, the copy of the
  # state after them.
  states: dict[bytes, int] = dataclasses.field(default_factory=dict)
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

  nodes: tuple[Node, ...]
  size: int  # tokens


class PageTree:
  """A radix tree of pages, for one publication of the weights.

  - A node is a page with up to `page_size` tokens that follow those of its
    parent; only a full page has children.
  - The tree holds its pages, and so do the sequences that use them. A page
    that only the tree holds can be evicted, the least recently used leaf first.
  """

  def __init__(self, pool: PagePool, page_size: int):
    self._pool, self._page_size = pool, page_size
    self.publication = -1
    self.num_evicted = 0
    self._root = Node(np.zeros(0, np.int32), None)
    # Least recently used first. `touch` goes from the end of a sequence to its
    # start, so a node comes before its parent.
    self._order: OrderedDict[Node, None] = OrderedDict()
    self._is_page_in_tree = np.zeros(len(pool), bool)

  def set_weights(self, publication: int) -> None:
    """Drops everything if it was computed with other weights."""
    if publication != self.publication:
      self.publication = publication
      self.clear()

  def clear(self) -> None:
    """Drops everything; pages of running sequences stay theirs."""
    self._pool.release([node.page for node in self._order])
    self._order.clear()
    self._is_page_in_tree[:] = False
    self._root = Node(np.zeros(0, np.int32), None)

  @property
  def num_evictable(self) -> int:
    """Pages that only the tree holds."""
    is_alone = self._pool.num_holders == 1
    return int(np.count_nonzero(self._is_page_in_tree & is_alone))

  def match_prefix(self, tokens: np.ndarray) -> PrefixMatch:
    """Finds the pages of the longest prefix; changes nothing."""
    node, nodes, size = self._root, [], 0
    while size < len(tokens):
      chunk = tokens[size : size + self._page_size]
      child, shared = node.closest_child(chunk)
      if child is None or not shared:
        break
      nodes.append(child)
      size += shared
      if shared < self._page_size:
        break
      node = child
    return PrefixMatch(tuple(nodes), size)

  def touch(self, nodes: Sequence[Node]) -> None:
    """Marks the nodes of a sequence, first to last, as just used."""
    for node in reversed(nodes):
      self._order.move_to_end(node)

  def insert(self, tokens: np.ndarray, pages: Sequence[int]) -> Node:
    """Holds the pages of a sequence that has computed these tokens.

    Where the tree has a page of the same tokens, it keeps that one. Returns the
    page of the last token.
    """
    node, nodes = self._root, []
    for index, start in enumerate(range(0, len(tokens), self._page_size)):
      chunk = tokens[start : start + self._page_size]
      child, shared = node.closest_child(chunk)
      if child is None or shared < min(len(chunk), len(child.tokens)):
        child = self._link(Node(chunk[:0], node), chunk, pages[index])
      elif len(child.tokens) < len(chunk):
        self._unhold(child)
        self._link(child, chunk, pages[index])
      nodes.append(child)
      node = child
    self.touch(nodes)
    return node

  def evict(self, number: int) -> None:
    """Frees up to `number` pages, the least recently used leaf first."""
    for node in list(self._order) if number > 0 else ():
      if number <= 0:
        return
      if not node.children and self._pool.num_holders[node.page] == 1:
        self._unlink(node)
        number -= 1
    if number > 0 and self.num_evictable:
      # Pages above those of a sequence that has pages of its own for the same
      # tokens: they are not leaves, and the sequence does not need them.
      self.num_evicted += len(self._order)
      self.clear()

  def check(self) -> None:
    """Raises `AssertionError` if the tree and its order disagree."""
    nodes = list(self._root.descendants())
    assert set(nodes) == set(self._order), (len(nodes), len(self._order))
    pages = [node.page for node in nodes]
    assert len(set(pages)) == len(pages), pages
    assert sorted(pages) == np.flatnonzero(self._is_page_in_tree).tolist()
    for node in nodes:
      assert node.parent is not None, "only the root has no parent"
      assert node.parent.children[node.tokens.tobytes()] is node, node.tokens
      assert not node.children or len(node.tokens) == self._page_size

  @property
  def pages(self) -> list[int]:
    """The pages that the tree holds."""
    return [node.page for node in self._order]

  def _link(self, node: Node, tokens: np.ndarray, page: int) -> Node:
    """Puts a node under its tokens, with a page that others may hold too."""
    self._pool.share([page])
    node.relink(tokens)
    node.page = page
    self._is_page_in_tree[page] = True
    self._order[node] = None
    return node

  def _unlink(self, node: Node) -> None:
    node.unlink()
    self._unhold(node)
    del self._order[node]
    self.num_evicted += 1

  def _unhold(self, node: Node) -> None:
    self._is_page_in_tree[node.page] = False
    self._pool.release([node.page])
