"""Recurrent states on the host: whose they are, and which can be shared.

A state holds all tokens of a sequence at once, so no part of it can be shared,
as a page can. A later sequence can only begin where a copy was made: after a
prompt, from which all answers to it begin, and after an answer, from which the
next turn goes on. Plain Python; the arrays are `kv_cache.KVCacheManager`'s.
"""

from collections import OrderedDict

import numpy as np

from agentrl_jax.rollout.engine.cache.pages import Node, PrefixMatch


class StatePool:
  """Numbers of states: one of each slot, then those of copies.

  - A slot writes its own state, which keeps its number.
  - A copy holds a sequence up to some token of a page. The least recently used
    one is overwritten when none is free.
  - Copies are planned, and launched together: all are read before any is
    written.
  """

  def __init__(self, num_slots: int, num_states: int, page_size: int):
    self.num_states = num_states
    self._num_slots, self._page_size = num_slots, page_size
    self.clear()

  def clear(self) -> None:
    """Drops all copies, also those that are planned."""
    self._copies: list[tuple[int, int]] = []  # states: source, target
    # By the page above and the tokens below it, least recently used first.
    self._kept: OrderedDict[tuple[Node, bytes], int] = OrderedDict()
    self._free = list(range(self._num_slots, self.num_states))

  def match(self, tokens: np.ndarray, match: PrefixMatch) -> PrefixMatch:
    """Shortens a match to the longest prefix that there is a copy of."""
    for index in reversed(range(len(match.nodes))):
      begin = index * self._page_size
      end = min(match.size, begin + self._page_size)
      chunk = tokens[begin:end].tobytes()
      kept = filter(chunk.startswith, _above(match.nodes[index]).states)
      if size := max(map(len, kept), default=0) // tokens.itemsize:
        return PrefixMatch(match.nodes[: index + 1], begin + size)
    return PrefixMatch((), 0)

  def restore(self, slot: int, tokens: np.ndarray, match: PrefixMatch) -> None:
    """Plans to begin a slot from the copy of a shortened match, if any."""
    if match.size:
      key = self._key(match.nodes[-1], tokens[: match.size])
      self._kept.move_to_end(key)
      self._copies.append((self._kept[key], slot))

  def keep(self, slot: int, tokens: np.ndarray, node: Node) -> None:
    """Plans a copy of a slot's state; `node` is the page of the last token."""
    above, chunk = key = self._key(node, tokens)
    if key not in self._kept:
      self._kept[key] = above.states[chunk] = self._take()
      self._copies.append((slot, self._kept[key]))
    self._kept.move_to_end(key)

  def planned(self) -> list[tuple[int, int]]:
    """Returns the planned copies, which the caller launches."""
    copies, self._copies = self._copies, []
    return copies

  def check(self) -> None:
    """Raises `AssertionError` if a copy is lost."""
    numbers = [*self._kept.values(), *self._free]
    assert sorted(numbers) == list(range(self._num_slots, self.num_states))
    for (above, chunk), number in self._kept.items():
      assert above.states[chunk] == number, (number, above.states)

  def _take(self) -> int:
    if self._free:
      return self._free.pop()
    (above, chunk), number = self._kept.popitem(last=False)
    del above.states[chunk]
    return number

  def _key(self, node: Node, tokens: np.ndarray) -> tuple[Node, bytes]:
    begin = (len(tokens) - 1) // self._page_size * self._page_size
    return _above(node), tokens[begin:].tobytes()


def _above(node: Node) -> Node:
  assert node.parent is not None, "the root has no tokens"
  return node.parent
