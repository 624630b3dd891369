"""KV cache of one policy slot: a pool of pages, and its page table."""

import collections
from collections import Counter

import jax
import numpy as np

from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.engine import programs
from agentrl_jax.rollout.engine.cache.arrays import place
from agentrl_jax.rollout.engine.cache.pages import (
  PagePool,
  PageTree,
  PrefixMatch,
)
from agentrl_jax.rollout.engine.cache.slot_table import SlotTable, padded
from agentrl_jax.rollout.engine.cache.states import StatePool


class KVCacheManager:
  """Owns the pages and gives them to slots.

  - The arrays are donated to each program that runs on them.
  - A slot has pages for the tokens that launched calls may write, no more. A
    free slot has none.
  - Full pages of a prefix are shared. A page that is shared in part is copied,
    since its next token differs; copies are launched together, before any call
    that could write their sources.
  - The tree holds the pages of ended sequences; pages are evicted from it when
    a slot needs one and none is free.
  - In a model with states, a prefix is shared as far as a copy of its state is
    there.
  """

  def __init__(
    self,
    policy: Policy,
    config: EngineConfig,
    policy_slot: int,
    counts: collections.Counter[str],
    sharding: jax.sharding.Sharding | None = None,
  ):
    self._config, self._counts = config, counts
    self._num_slots = config.slots[policy_slot]
    self._num_pages = config.num_pages(policy_slot)
    self._size = config.tokens_per_page
    self._states, num_states = None, config.num_states(policy_slot)
    if policy.config.has_states:
      self._states = StatePool(self._num_slots, num_states, self._size)
    self.arrays = place(
      policy.empty_cache(
        self._num_pages,
        self._size,
        keeps_experts=config.router_replay,
        num_states=num_states,
      ),
      sharding,
    )
    self.reset()

  def reset(self) -> None:
    """Frees all pages."""
    self._pool = PagePool(self._num_pages)
    self._tree = PageTree(self._pool, self._size)
    self._pages: list[list[int]] = [[] for _ in range(self._num_slots)]
    # A page outside the pool is none. The last row is for padding.
    self._page_BW = np.full(
      (self._num_slots + 1, self._config.pages_of(self._config.context)),
      self._num_pages,
      np.int32,
    )
    self._copies: list[tuple[int, int]] = []  # pages: source, target
    if self._states is not None:
      self._states.clear()

  @property
  def has_states(self) -> bool:
    """Says if sequences have states beside their pages."""
    return self._states is not None

  @property
  def publication(self) -> int:
    """The publication of the weights whose pages can be shared."""
    return self._tree.publication

  def set_weights(self, publication: int) -> None:
    """Drops pages of ended sequences that other weights computed."""
    self._tree.set_weights(publication)
    if self._states is not None:
      self._states.clear()

  def num_cached(self, tokens: np.ndarray) -> int:
    """Returns how many of the first tokens are in pages that can be shared."""
    return self._match(tokens).size

  def allocate(
    self, slot: int, tokens: np.ndarray, num_tokens: int, num_spare: int
  ) -> int | None:
    """Gives a free slot pages for `num_tokens`, shared where they can be.

    Returns how many of the first tokens they contain; None, and gives nothing,
    if too few pages can be had. `num_spare` more have to be available.
    """
    assert not self._pages[slot], f"slot {slot} has pages already"
    match = self._match(tokens)
    self._tree.touch(match.nodes)
    shared = [node.page for node in match.nodes[: match.size // self._size]]
    num_new = self._config.pages_of(num_tokens) - len(shared)
    self._pool.share(shared)
    if not self._make_room(num_new, num_spare):
      self._pool.release(shared)
      return None
    self._set_pages(slot, shared + self._pool.take(num_new))
    if match.size % self._size:
      # It may have been evicted for this request. Its keys and values are
      # intact until the copies are made, which read all pages before they
      # write any.
      source = match.nodes[-1].page
      self._copies.append((source, self._pages[slot][len(shared)]))
      self._counts["copied"] += match.size % self._size
    if self._states is not None:
      self._states.restore(slot, tokens, match)
    return match.size

  def reserve(self, slot: int, num_tokens: int) -> bool:
    """Gives a slot pages for `num_tokens`; returns False if there are none."""
    num_new = self._config.pages_of(num_tokens) - len(self._pages[slot])
    if num_new <= 0:
      return True
    if not self._make_room(num_new, 0):
      return False
    self._set_pages(slot, self._pages[slot] + self._pool.take(num_new))
    return True

  def num_growing(self, table: SlotTable) -> int:
    """Returns how many slots will need more pages than they have."""
    return sum(
      len(pages) < self._config.pages_of(int(most))
      for pages, most in zip(self._pages, table.max_length, strict=True)
      if pages
    )

  def keep(self, slot: int, tokens: np.ndarray, *, is_exact: bool) -> None:
    """Lets other sequences use the pages of a slot's computed tokens.

    Also its state, if it `is_exact`: if it holds these tokens and no more.
    """
    node = self._tree.insert(tokens, self._pages[slot])
    if self._states is not None and is_exact and len(tokens):
      self._states.keep(slot, tokens, node)

  def free(self, slot: int) -> None:
    """Releases the pages of a slot."""
    self._pool.release(self._pages[slot])
    self._set_pages(slot, [])

  def copy_states(self) -> None:
    """Launches the planned copies of states."""
    if self._states is None or not (copies := self._states.planned()):
      return
    sources, targets = zip(*copies, strict=True)
    sizes, none = (self._states.num_states,), self._states.num_states
    self.arrays = programs.copy_states(
      self.arrays, padded(sources, sizes, none), padded(targets, sizes, none)
    )

  def copy(self) -> None:
    """Launches the planned copies of pages and states."""
    self.copy_states()
    self._counts["evicted"] = self._tree.num_evicted
    if not self._copies:
      return
    sources, targets = zip(*self._copies, strict=True)
    self._copies.clear()
    sizes = self._config.slot_sizes(self._num_slots)
    self.arrays = programs.copy(
      self.arrays,
      padded(sources, sizes, self._num_pages),
      padded(targets, sizes, self._num_pages),
    )

  def table_of(self, slot_P: np.ndarray) -> np.ndarray:
    """Returns the pages of slots, int32 [P, W]; none for slots outside.

    W is the shortest compiled length that these slots need.
    """
    row_PW = self._page_BW[np.minimum(slot_P, self._num_slots)]
    num_pages = int((row_PW < self._num_pages).sum(axis=1).max())
    return row_PW[:, : self._config.table_width(num_pages)]

  def states_of(self, slot_P: np.ndarray) -> np.ndarray | None:
    """Returns the states of slots, int32 [P], if the model has any.

    A slot that does not exist gets a state that does not exist.
    """
    if self._states is None:
      return None
    none = np.int32(self._states.num_states)
    return np.where(slot_P < self._num_slots, slot_P, none)

  def check(self, table: SlotTable) -> None:
    """Raises `AssertionError` if a page is lost, or might be overwritten."""
    assert not self._copies, "planned and never copied"
    if self._states is not None:
      self._states.check()
    self._tree.check()
    held = Counter(page for pages in self._pages for page in pages)
    for slot, pages in enumerate(self._pages):
      is_busy = table.request[slot] is not None
      assert is_busy or not pages, f"free slot {slot} has pages {pages}"
      width = self._page_BW.shape[1]
      row = pages + [self._num_pages] * (width - len(pages))
      assert self._page_BW[slot].tolist() == row, (self._page_BW[slot], pages)
      begin = table.num_computed[slot] // self._size
      assert all(held[page] == 1 for page in pages[begin:]), (slot, pages)
    self._pool.check(held + Counter(self._tree.pages))

  def _match(self, tokens: np.ndarray) -> PrefixMatch:
    """Finds the longest prefix that a sequence can begin from."""
    match = self._tree.match_prefix(tokens)
    if self._states is None:
      return match
    return self._states.match(tokens, match)

  def _make_room(self, number: int, num_spare: int) -> bool:
    """Frees pages until `number` are; False if they, or the spare, are not."""
    num_free = self._pool.num_free
    if number + num_spare > num_free + self._tree.num_evictable:
      return False
    self._tree.evict(number - num_free)
    return number <= self._pool.num_free

  def _set_pages(self, slot: int, pages: list[int]) -> None:
    self._pages[slot] = pages
    self._page_BW[slot] = self._num_pages
    self._page_BW[slot, : len(pages)] = pages
